/** The contents of a run's folder at its end, as data, and the words for what the run reached. */
import { join } from "node:path";
import { setting } from "../config/schema.ts";
import type { Tree } from "../config/yaml/tree.ts";
import type { BestCheckpoint } from "../log/checkpoint/folder_checkpoints.ts";
import { shortNumber } from "../log/format.ts";
import type { RunData } from "../log/page/page_data.ts";
import type { TrainOutcome } from "../loop/contract.ts";
import type { RunPlace } from "./place/run_place.ts";
import { readRun, writeReport } from "./place/write_report.ts";

export interface Left {
  readonly outcome: TrainOutcome;
  readonly dir: string;
  /** The latest checkpoint. */
  readonly model: string | undefined;
  readonly best: BestCheckpoint | undefined;
  /** The page of the run. */
  readonly report: string | undefined;
  readonly run: RunData;
}

/** Writes the report where the run has begun, and reads what is there. */
export async function whatIsLeft(
  { dir, checkpoints, hasBegun }: RunPlace,
  { config, outcome }: { readonly config: Tree; readonly outcome: TrainOutcome },
): Promise<Left> {
  const run = readRun(dir);
  const report = hasBegun ? writeReport(config, { dir, run }) : undefined;
  const latest = await checkpoints.latest();
  const model = latest === undefined ? undefined : join(dir, latest);
  return { outcome, dir, model, best: await checkpoints.best(), report, run };
}

/** Values for programs. */
export function summary({ outcome, dir, model, best, report, run }: Left) {
  const { step } = outcome.state;
  return {
    complete: outcome.isComplete,
    step,
    dir,
    model: model ?? null,
    best: best ? { ...best, model: join(dir, best.checkpoint) } : null,
    report: report ?? null,
    validation: lastValidation(run),
  };
}

/** The model as the head of a run names it. A service does not report the number of parameters. */
export function modelText(config: Tree, trainableParameters: number): string {
  const size = trainableParameters > 0 ? `, ${shortNumber(trainableParameters)} trainable parameters` : "";
  return `${setting(config, "model.name") ?? "new"}${size}`;
}

/** The best value, and what the model had before training where that was as good. */
export function howGood(
  { metric, value }: BestCheckpoint,
  { run, isGreaterBetter }: { run: RunData; isGreaterBetter: boolean },
): string {
  const curve = run.curves.val[metric];
  const isBetter = curve && (isGreaterBetter ? value > curve.first : value < curve.first);
  const start = curve?.x[0] === 0 && !isBetter ? `, no better than ${curve.first.toFixed(3)} before training` : "";
  return `${metric} ${value.toFixed(3)}${start}`;
}

/** The last validation's step and metrics. */
function lastValidation({ curves: { val } }: RunData): Record<string, number | string> | null {
  const step = Math.max(...Object.values(val).map(({ x }) => x[x.length - 1]!));
  const last = Object.entries(val).filter(([, { x }]) => x[x.length - 1] === step);
  if (last.length === 0) return null;
  return { phase: "val", step, ...Object.fromEntries(last.map(([name, curve]) => [name, curve.last])) };
}

/** `first -> last` of the first metric of that name, where it was measured at more than one step. */
export function valueChange({ curves: { val } }: RunData, name: RegExp): string | undefined {
  const found = Object.entries(val).find(([key]) => name.test(key))?.[1];
  return found && found.x[0] !== found.x.at(-1) ? `${found.first.toFixed(3)} -> ${found.last.toFixed(3)}` : undefined;
}
