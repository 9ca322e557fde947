/** Destinations of a run's metrics and rollouts. */
import type { Episode } from "../data/types.ts";

/** `warmup` steps are supervised, `train` and `val` count optimiser updates of the loop. */
export type Phase = "warmup" | "train" | "val";

/** The loop's report after a step: metrics, and the step's episodes and groups. */
export interface LogRecord {
  readonly phase: Phase;
  /** Step of the phase; for `val` the training steps done. */
  readonly step: number;
  readonly totalSteps: number;
  readonly metrics: Readonly<Record<string, number>>;
  /** Absent in warm-up. */
  readonly episodes?: readonly Episode[] | undefined;
  /** Reason why the step trained nothing. */
  readonly note?: string;
}

/** The stage that a step is at, while it runs. */
export interface Moment {
  readonly phase: Phase;
  /** The step under way, from 1; for `val` the training steps done. */
  readonly step: number;
  readonly totalSteps: number;
  /** `generating`, `scoring`, `updating`. */
  readonly doing: string;
  /** How much of it has ended; absent where it is one piece. */
  readonly done?: number;
  readonly total?: number;
  /** Name of what is counted, in the plural. */
  readonly unit?: string;
}

/** Receives every record of a run. Loggers that keep files also rewind them when a run resumes. */
export interface Logger {
  /** Identifies the logger in a checkpoint. Default: its index in the list. */
  readonly name?: string | undefined;
  log(record: LogRecord): void | Promise<void>;
  /** Called while a step runs, as often as its state changes. */
  during?(moment: Moment): void;
  /** The run's signal has aborted: the run is about to end. */
  stopping?(): void;
  /** How many attempts of a validation have ended. */
  progress?(done: number, total: number): void;
  /** The scores of a validation that was stopped, over the attempts that had ended. */
  partial?(record: LogRecord): void;
  /** A warning for the user, at most once in a run. */
  readonly warn?: ((message: string) => void) | undefined;
  /** The log's position, saved in a checkpoint so that a resumed run's log continues from it. */
  readonly position?: (() => Promise<number>) | undefined;
  /** Drops everything that was logged after `position`. */
  readonly rewind?: ((position: number) => Promise<void>) | undefined;
  /** The run ended or was stopped. */
  finish?(): void | Promise<void>;
}
