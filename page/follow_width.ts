/** Redraws when the page's width changes: its height changes with every drawing. */
export function followWidth(page: HTMLElement, redraw: () => void): void {
  let width = page.clientWidth;
  new ResizeObserver(() => {
    if (page.clientWidth === width) return;
    width = page.clientWidth;
    redraw();
  }).observe(page);
}
