/** Draws what changed a part at a time, so that the page answers a person between any two. */

interface Waiting {
  readonly draw: () => void;
  /** Not before this time, ms. */
  readonly due: number;
}

const waiting = new Map<string, Waiting>();
const last = new Map<string, number>();
let isTimed = false;

/** Draws the part soon, and at most once in `every` ms; the last call for a part counts. */
export function schedule(part: string, draw: () => void, every = 0): void {
  waiting.set(part, { draw, due: (last.get(part) ?? Number.NEGATIVE_INFINITY) + every });
  if (!isTimed) setTimer(0);
}

/** One part a task. */
function drawNext(): void {
  const now = performance.now();
  const next = [...waiting].find(([, { due }]) => due <= now);
  if (next) {
    const [part, { draw }] = next;
    waiting.delete(part);
    last.set(part, now);
    draw();
  }
  isTimed = false;
  if (waiting.size > 0) setTimer(waitFor(now));
}

function setTimer(delay: number): void {
  isTimed = true;
  setTimeout(drawNext, delay);
}

function waitFor(now: number): number {
  const soonest = Math.min(...Array.from(waiting.values(), ({ due }) => due));
  return Math.max(soonest - now, 0);
}
