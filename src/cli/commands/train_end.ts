/** How `grpu train` ends: what it reached, for people and for programs, and what to do next. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setting } from "../../config/schema.ts";
import type { BestCheckpoint } from "../../log/checkpoint/folder_checkpoints.ts";
import type { RunData } from "../../log/page/page_data.ts";
import type { TrainOutcome } from "../../loop/contract.ts";
import type { Input, Io } from "../command.ts";
import { deviceFlag, importsOf } from "../options.ts";
import { commandName, quoted } from "../run/command_line.ts";
import type { RunSession } from "../run/session.ts";

export interface TrainEnding {
  readonly outcome: TrainOutcome;
  readonly dir: string;
  readonly model: string | undefined;
  readonly best: BestCheckpoint | undefined;
  readonly report: string | undefined;
  readonly run: RunData;
}

/** Returns the outcome for `--json`. */
export function outcomeJson({ outcome, dir, model, best, report, run }: TrainEnding) {
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

export function printTrainEnd(ending: TrainEnding & { session: RunSession; input: Input; io: Io }): void {
  const { outcome, dir, model, best, report, run, session, input, io } = ending;
  const accuracy = valueChange(run, /\/pass@1$/);
  const reward = valueChange(run, /^val\/reward\/.*\/mean$/);
  io.err("\n");
  if (accuracy) io.err(`accuracy ${accuracy} on held-out tasks\n`);
  // The same thing where rewards are right or wrong; what there is to see where they are not.
  if (reward && reward !== accuracy) io.err(`reward   ${reward} on held-out tasks\n`);
  if (best) {
    const isGreaterBetter = setting(session.config, "training.greater_is_better");
    io.err(`best     ${join(dir, best.checkpoint)} (${howGood(best, { run, isGreaterBetter })})\n`);
  } else if (setting(session.config, "training.metric_for_best_model"))
    io.err("best     none: no validation ran after the first step\n");
  if (!outcome.isComplete && model === undefined) io.err("stopped before a checkpoint was saved\n");
  else if (!outcome.isComplete) {
    const flags = [...importsOf(input).flatMap((file) => ["--import", file]), ...deviceFlag(input)];
    const words = [...input.args, "training.resume_mode=auto", ...flags].map(quoted);
    const resume = `${commandName(io)} train ${words.join(" ")}`;
    io.err(`stopped after step ${outcome.state.step}; continue with:  ${resume}\n`);
  }
  if (report && existsSync(report)) io.err(`report   ${report}\n`);
  const isModel = ["config.json", "adapter_config.json"].some((file) => existsSync(join(model ?? "", file)));
  if (isModel && session.tasks.val.length > 0) {
    const { instruction, messages } = session.tasks.val[0]!;
    const chat = messages ? "--chat " : "";
    io.err(`sample   ${commandName(io)} sample --model ${model} ${chat}--prompt ${JSON.stringify(instruction)}\n`);
  }
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
