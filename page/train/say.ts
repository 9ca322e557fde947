/** What screen readers are told while a run trains. */
const said = document.getElementById("said")!;

/** Messages of steps come at most this often. */
const EVERY_MS = 8000;
let last = 0;

export function say(text: string): void {
  last = performance.now();
  said.textContent = text;
}

/** Says it unless something was said a moment ago. */
export function sayRarely(text: string): void {
  if (performance.now() - last > EVERY_MS) say(text);
}
