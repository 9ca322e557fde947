/** Light or dark: the system's choice until the person makes their own. */
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");

/** Sets the system's theme, now and whenever it changes. */
export function followSystemTheme(redraw: () => void): void {
  root.dataset.theme = system.matches ? "dark" : "light";
  system.addEventListener("change", ({ matches }) => {
    root.dataset.theme = matches ? "dark" : "light";
    redraw();
  });
}

export function toggleTheme(): void {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
}
