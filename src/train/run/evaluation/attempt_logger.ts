/** The record that an evaluation keeps of its attempts, and the line that shows how far it is. */
import type { Episode } from "../../data/types.ts";
import type { Logger } from "../../log/logger.ts";
import { Progress } from "../../log/progress.ts";
import type { RunIo } from "../io.ts";

const TICK_MS = 1000;

/** Keeps the episodes of a validation, and shows how far it is. */
export class AttemptLogger implements Logger {
  episodes: readonly Episode[] = [];
  private readonly io: RunIo;
  private readonly line: Progress;
  /** All attempts are under way at once, and none may end for minutes: the line is due without one, too. */
  private readonly timer: NodeJS.Timeout;
  private done = 0;

  constructor(io: RunIo, total: number) {
    this.io = io;
    this.line = new Progress(io, "eval", { unit: "attempts" });
    this.timer = setInterval(() => this.line.update(this.done, total), TICK_MS);
  }

  close(): void {
    clearInterval(this.timer);
    this.line.finish();
  }

  get failed(): number {
    return this.episodes.filter(({ termination_reason }) => termination_reason === "error").length;
  }

  progress(done: number, total: number): void {
    this.done = done;
    this.line.update(done, total);
  }

  log({ episodes = [] }: Parameters<Logger["log"]>[0]): void {
    this.line.finish();
    this.episodes = episodes;
  }

  partial(record: Parameters<Logger["log"]>[0]): void {
    this.log(record);
  }

  warn(message: string): void {
    this.line.finish();
    this.io.err(`warning: ${message}\n`);
  }
}
