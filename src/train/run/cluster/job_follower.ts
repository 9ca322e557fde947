/** Turns the lines of a job's log into metrics for the run's loggers, and keeps the whole log. */

import { once } from "node:events";
import { createWriteStream, type WriteStream } from "node:fs";
import { type Cause, CauseFinder } from "../../../cluster/ray/cause.ts";
import type { LogLine } from "../../../cluster/ray/contract.ts";
import type { TrainerEvent, TrainerLog } from "../../../cluster/ray/trainer.ts";
import type { Logger, LogRecord } from "../../log/logger.ts";

export interface FollowerOptions {
  /** Reads the log of the trainer. */
  readonly log: TrainerLog;
  readonly loggers: readonly Logger[];
  /** The file that keeps the log. */
  readonly file: string;
  /** Takes what is worth a line for people. */
  readonly notify: (text: string) => void;
  /** The validation attempts since the last call. */
  readonly takeSamples: () => LogRecord["episodes"];
  /** Takes the number of steps that the run will have made, once the trainer says so. */
  readonly onTotal: (steps: number) => void;
}

/** Failures of rollouts and rewards that are printed; all are counted. */
const PRINTED_FAILURES = 5;

/** Events of a step that is made. */
const MADE: ReadonlySet<TrainerEvent["kind"]> = new Set(["metrics", "reached", "resumed", "saved"]);

export class JobFollower {
  /** Steps that the run will have made, once the trainer has said so. */
  totalSteps = 0;
  step = 0;
  /** The newest step that the job was at, by its metrics, its checkpoints or its own words. */
  reached = 0;
  failures = 0;
  private readonly causes = new CauseFinder();
  private readonly options: FollowerOptions;
  private readonly kept: WriteStream;
  /** Records are logged one after the other. */
  private logging: Promise<void> = Promise.resolve();
  private error: unknown;

  constructor(options: FollowerOptions) {
    this.options = options;
    this.kept = createWriteStream(options.file);
    this.kept.on("error", (error) => {
      this.error ??= error;
    });
  }

  /** The newest complete checkpoint: its step and its folder on the cluster. */
  get lastSaved(): TrainerLog["lastSaved"] {
    return this.options.log.lastSaved;
  }

  /** The error that ended the run, as far as the log has one. */
  cause(): Cause | undefined {
    return this.causes.cause();
  }

  line(line: LogLine): void {
    const { worker, text } = line;
    this.kept.write(worker ? `(${worker.name} pid=${worker.pid}) ${text}\n` : `${text}\n`);
    const { log } = this.options;
    this.causes.take(log.plain?.(line) ?? line);
    for (const event of log.read(line)) this.take(event);
  }

  /** Waits for the loggers and the file. @throws what they threw */
  async finish(): Promise<void> {
    for (const event of this.options.log.finish?.() ?? []) this.take(event);
    await this.logging;
    for (const logger of this.options.loggers) await logger.finish?.();
    this.kept.end();
    await once(this.kept, "close");
    if (this.error !== undefined) throw this.error;
  }

  private take(event: TrainerEvent): void {
    const { notify } = this.options;
    if (MADE.has(event.kind) && "step" in event) this.reached = Math.max(this.reached, event.step);
    if (event.kind === "metrics") this.metrics(event);
    else if (event.kind === "total") {
      this.totalSteps = event.steps;
      this.options.onTotal(event.steps);
    } else if (event.kind === "resumed") notify(`continuing from step ${event.step} (${event.folder})`);
    else if (event.kind === "saved") notify(`saved step ${event.step} in ${event.folder}`);
    else if (event.kind === "rows" && event.kept < event.all)
      notify(`${event.all - event.kept} of ${event.all} tasks are left out: their prompts are too long`);
    else if (event.kind === "failure") this.failed(event.message);
  }

  private failed(message: string): void {
    this.failures++;
    if (this.failures <= PRINTED_FAILURES) this.options.notify(`a rollout failed: ${message}`);
    if (this.failures === PRINTED_FAILURES) this.options.notify(`further failures are in ${this.options.file}`);
  }

  /** The validation of a step may come with its training metrics. */
  private metrics({ step, metrics }: Extract<TrainerEvent, { kind: "metrics" }>): void {
    const entries: [string, number][] = Object.entries(metrics);
    const isValidation = ([name]: [string, number]) => name.startsWith("val-");
    const train = entries.filter((entry) => !isValidation(entry));
    const val = entries.filter(isValidation);
    // A validation may be of earlier weights.
    this.step = Math.max(this.step, step);
    // Step 0 is the validation before training.
    if (step > 0 && train.length > 0) this.record({ phase: "train", step, metrics: train });
    if (val.length > 0) this.record({ phase: "val", step, metrics: val });
  }

  private record({
    phase,
    step,
    metrics,
  }: {
    phase: "train" | "val";
    step: number;
    metrics: [string, number][];
  }): void {
    const record: LogRecord = {
      phase,
      step,
      totalSteps: this.totalSteps,
      metrics: Object.fromEntries(metrics),
      ...(phase === "val" && { episodes: this.options.takeSamples() }),
    };
    this.logging = this.logging
      .then(async () => {
        for (const logger of this.options.loggers) await logger.log(record);
      })
      .catch((error) => {
        this.error ??= error;
      });
  }
}
