/** Progress of a long task: one line that is redrawn on a terminal, a line every ten seconds elsewhere. */

import { clockDuration, shortNumber } from "./format.ts";
import type { Screen } from "./terminal.ts";

const REDRAW_MS = 100;
/** Much is under way at once: the first to end say little of how long all take. */
const LEAST_SHARE = 0.05;
/** Time before the first line and between lines, without a terminal. */
const LINE_MS = 10_000;

export interface ProgressOptions {
  /** Unit of the count, in the plural: `attempts`. */
  readonly unit: string;
  /** Milliseconds since some moment. Default: the runtime's clock. */
  readonly now?: () => number;
}

export class Progress {
  private readonly screen: Screen;
  private readonly label: string;
  private readonly options: Required<ProgressOptions>;
  private readonly started: number;
  private said: number;
  private isDrawn = false;

  constructor(screen: Screen, label: string, { unit, now = () => performance.now() }: ProgressOptions) {
    this.screen = screen;
    this.label = label;
    this.options = { unit, now };
    this.started = now();
    this.said = this.started;
  }

  update(done: number, total: number): void {
    const now = this.options.now();
    const { isTerminal, columns } = this.screen;
    if (now - this.said < (isTerminal ? REDRAW_MS : LINE_MS)) return;
    this.said = now;
    const rate = done / Math.max((now - this.started) / 1000, 1e-9);
    const { unit } = this.options;
    const left = done >= LEAST_SHARE * total && done > 0 ? `eta ${clockDuration((total - done) / rate)}` : "";
    // Of bytes alone: "2/s" says it of attempts.
    const perSecond = unit.endsWith("B") ? `${shortNumber(rate)} ${unit}/s` : `${shortNumber(rate)}/s`;
    const facts = [`${done}/${total} ${unit}`, perSecond, left];
    const text = [this.label, ...facts].filter(Boolean).join("  ");
    this.screen.err(isTerminal ? `\r\x1b[2K${text.slice(0, columns - 1)}` : `${text}\n`);
    this.isDrawn = isTerminal;
  }

  /** Clears the line. */
  finish(): void {
    if (this.isDrawn) this.screen.err("\r\x1b[2K");
    this.isDrawn = false;
  }
}
