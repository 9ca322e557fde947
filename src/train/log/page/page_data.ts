/** The data of the page of runs, as plain JSON: types shared with the page's script. */
import type { Phase } from "../logger.ts";
import type { GroupsLine, SampleLine } from "../run_files.ts";

/** Data of the page's script. */
export interface PageData {
  readonly runs: readonly RunData[];
  /** When the page was made, in ms since 1970. */
  readonly made: number;
  /** The page asks its server for news. */
  readonly live: boolean;
  /** Address of the page of recorded conversations, where the run has some. */
  readonly traces?: string;
}

/** One run. */
export interface RunData {
  /** Unique on the page. */
  readonly name: string;
  readonly title: string;
  readonly subtitle: string;
  /** `open`: the run is in progress, or crashed. */
  readonly status: "complete" | "stopped" | "open";
  /** Time of the last write, in ms since 1970. */
  readonly updated: number;
  readonly totalSteps: number | null;
  readonly curves: Readonly<Record<Phase, Readonly<Record<string, CurveData>>>>;
  /** The first and the last validation. */
  readonly samples: readonly SampleLine[];
  readonly groups: readonly GroupsLine[];
  /** Settings by path, as text. */
  readonly settings: Readonly<Record<string, string>>;
  readonly config: string;
  /** Lines of the run's files that could not be read. */
  readonly badLines: number;
}

/** A metric over the steps of a phase: points to draw, and totals over all values, drawn or not. */
export interface CurveData {
  readonly x: readonly number[];
  readonly y: readonly number[];
  readonly count: number;
  readonly sum: number;
  readonly first: number;
  readonly last: number;
  readonly min: number;
  readonly max: number;
}

/** Name of the mean reward over all roles, a curve that the reader adds: no logger writes it. */
export const MEAN_REWARD = "reward";
