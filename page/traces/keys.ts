/** The keyboard: every action of the page has a key. */

export interface KeyActions {
  /** Opens the session so many places further. */
  readonly step: (by: number) => void;
  /** Brings the call so many places further to the top. */
  readonly call: (by: number) => void;
  readonly close: () => void;
  readonly search: () => void;
  readonly recolor: () => void;
  readonly tokens: () => void;
  readonly theme: () => void;
  readonly help: () => void;
}

export const KEYS: readonly (readonly [keys: string, action: string])[] = [
  ["j, k", "next, previous session"],
  ["n, p", "next, previous call"],
  ["m", "color by mask or by log-prob"],
  ["t", "tokens or messages"],
  ["/", "search"],
  ["Esc", "back to the list"],
  ["d", "light or dark"],
  ["?", "these keys"],
];

export function listenToKeys(act: KeyActions): void {
  const actions: Readonly<Record<string, () => void>> = {
    j: () => act.step(1),
    k: () => act.step(-1),
    n: () => act.call(1),
    p: () => act.call(-1),
    m: act.recolor,
    t: act.tokens,
    d: act.theme,
    "/": act.search,
    "?": act.help,
    Escape: act.close,
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof HTMLInputElement;
    if (event.ctrlKey || event.metaKey || event.altKey || (isTyping && event.key !== "Escape")) return;
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    if (isTyping) (event.target as HTMLInputElement).blur();
    else action();
  });
}
