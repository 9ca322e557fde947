/** Results of an evaluation, as plain JSON: `--json`, the table and the page's script share it. */

/** A mean with its 95% confidence interval, null where fewer than two tasks were measured. */
export interface IntervalEstimate {
  readonly mean: number;
  /** Standard error of the mean, clustered by task. */
  readonly standard_error: number | null;
  readonly interval: readonly [low: number, high: number] | null;
  readonly tasks: number;
}

/** Estimates by measure: `reward`, `pass@1`, `maj@4`, ... */
export type Estimates = Readonly<Record<string, IntervalEstimate>>;

export interface ModelScores {
  readonly model: string;
  readonly attempts: number;
  /** Estimates by data source. */
  readonly sources: Readonly<Record<string, Estimates>>;
}

/** `model` minus `baseline`, task by task, over the tasks that both attempted. */
export interface PairedDifference {
  readonly model: string;
  readonly baseline: string;
  readonly sources: Readonly<Record<string, Estimates>>;
}

/** An attempt, for people. */
export interface ShownAttempt {
  readonly reward: number;
  readonly is_correct: boolean;
  readonly answer?: string;
  readonly response: string;
  readonly termination_reason: string;
}

/** One task as each model attempted it. */
export interface TaskRow {
  readonly id: string;
  readonly source: string;
  readonly prompt: string;
  /** One list per model of the report, in its order. */
  readonly models: readonly (readonly ShownAttempt[])[];
}

export interface EvaluationReport {
  readonly models: readonly ModelScores[];
  /** Every model after the first, compared with the first. */
  readonly differences: readonly PairedDifference[];
}

/** Data of the page's script. */
export interface EvaluationPageData extends EvaluationReport {
  readonly tasks: readonly TaskRow[];
  /** When it was made, in ms since 1970. */
  readonly made: number;
}
