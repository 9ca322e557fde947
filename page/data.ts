/** The page's data and what a person chose to see of it. */
import type { Phase } from "../src/train/log/logger.ts";
import type { CurveData, PageData, RunData } from "../src/train/log/page/page_data.ts";

export let data: PageData = JSON.parse(document.getElementById("data")?.textContent ?? "{}");

export const state = {
  /** Names of runs that the legend switched off. */
  hidden: new Set<string>(),
  /** Width of the smoothing window, as a share of the curve. */
  smoothing: 0.12,
  search: "",
  groupRun: 0,
  /** Index into the run's groups; -1 follows the last step. */
  groupStep: -1,
  isAllOpen: false,
  isSettingsOpen: false,
  /** The live server does not answer. */
  isLost: false,
};

export function replaceData(next: PageData): void {
  data = next;
}

/** A run and its place in the data, which fixes its color. */
export interface Placed {
  readonly run: RunData;
  readonly i: number;
}

export const isMany = () => data.runs.length > 1;
export const placed = (): Placed[] => data.runs.map((run, i) => ({ run, i }));
export const shown = (): Placed[] => placed().filter(({ run }) => !state.hidden.has(run.name));

/** Metrics of a phase over all runs, in order of appearance. */
export function metricNames(phase: Phase, pattern: RegExp): string[] {
  const all = new Set(data.runs.flatMap((run) => Object.keys(run.curves[phase])));
  return [...all].filter((name) => pattern.test(name));
}

export const curve = (run: RunData, phase: Phase, name: string): CurveData | undefined => run.curves[phase][name];

export const sum = (run: RunData, phase: Phase, name: string) => curve(run, phase, name)?.sum ?? 0;

export const mean = (it: CurveData | undefined) => (it && it.count > 0 ? it.sum / it.count : undefined);

/** Training steps done. */
export const steps = (run: RunData) =>
  curve(run, "train", "training/global_step")?.last ?? curve(run, "train", "time/step")?.count ?? 0;

/** Time that the run measured: warm-up, training and validation; of a trainer on a cluster, its steps. */
export const seconds = (run: RunData) =>
  sum(run, "warmup", "time/step") +
  sum(run, "train", "time/step") +
  sum(run, "val", "time/testing") +
  sum(run, "train", "timing_s/step");
