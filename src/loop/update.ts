/** Stage 7, update: one optimiser step per mini-batch. */
import { findLoss } from "../algorithm/loss_spec.ts";
import type { LossSpec, Metrics, OptimParams, TrainBatch } from "../backend.ts";
import { rowCount, sliceTokens } from "../data/pack.ts";
import type { LoopSettings } from "./settings.ts";
import type { AdvantageRows, StageContext, Staged } from "./stages.ts";
import { largest, mean, smallest } from "./statistics.ts";

/**
 * Trains on the rows in `training.num_minibatches` optimiser steps. Roles with a loss of their own share each step:
 * their gradients are summed under common denominators. Metrics are averaged over the calls as verl does.
 */
export async function update(rows: AdvantageRows, context: StageContext): Promise<Staged<undefined>> {
  const { backend, settings } = context;
  const params = optimParams(context);
  const measured: Metrics[] = [];
  for (const range of minibatches(rowCount(rows), settings.training.num_minibatches)) {
    const parts = [...partsByLoss(rows, { range, settings })];
    if (parts.length === 0) continue;
    const totals = denominators(parts.map(([, part]) => part));
    for (const [loss, part] of parts) {
      measured.push(
        await backend.forwardBackward(part, { ...lossSpec(loss, settings), ...(parts.length > 1 && totals) }),
      );
    }
    measured.push(await backend.optimStep(params));
  }
  return { value: undefined, metrics: reduceMetrics(measured) };
}

interface Range {
  readonly from: number;
  readonly to: number;
}

/** Nearly equal runs of rows. Groups lie together, so a mini-batch cuts at most two of them. */
function minibatches(rows: number, count: number): Range[] {
  const ranges = Array.from({ length: count }, (_, i) => ({
    from: Math.floor((rows * i) / count),
    to: Math.floor((rows * (i + 1)) / count),
  }));
  return ranges.filter(({ from, to }) => to > from);
}

/** The rows of a range by the loss that their role trains with, without rows that have nothing to train on. */
function* partsByLoss(
  rows: AdvantageRows,
  { range, settings }: { range: Range; settings: LoopSettings },
): Generator<[loss: string, part: TrainBatch]> {
  const chosen = new Map<string, number[]>();
  for (let row = range.from; row < range.to; row++) {
    if (!rows.mask.subarray(rows.offsets[row], rows.offsets[row + 1]).includes(1)) continue;
    const role = rows.groups[rows.groupOfTrajectory[rows.trajectoryOfRow[row]]].group_role;
    const loss = lossOf(role, settings.algorithm);
    chosen.set(loss, [...(chosen.get(loss) ?? []), row]);
  }
  for (const [loss, members] of chosen) yield [loss, pickRows(rows, members)];
}

function pickRows(rows: AdvantageRows, members: readonly number[]): TrainBatch {
  const offsets = new Uint32Array(members.length + 1);
  members.forEach((row, i) => {
    offsets[i + 1] = offsets[i] + rows.offsets[row + 1] - rows.offsets[row];
  });
  const gather = <A extends Uint32Array | Float32Array>(array: A): A => {
    const gathered = new (array.constructor as new (length: number) => A)(offsets[members.length]);
    members.forEach(
      (row, i) => void gathered.set(sliceTokens(array, rows, { from: row, to: row + 1 }), offsets[i]),
    );
    return gathered;
  };
  const isPerToken = rows.advantages.length !== rowCount(rows);
  return {
    offsets,
    tokens: gather(rows.tokens),
    mask: gather(rows.mask),
    advantages: isPerToken
      ? gather(rows.advantages)
      : Float32Array.from(members, (row) => rows.advantages[row]),
    rolloutLogprobs: gather(rows.rolloutLogprobs),
    ...(rows.oldLogprobs && { oldLogprobs: gather(rows.oldLogprobs) }),
    ...(rows.refLogprobs && { refLogprobs: gather(rows.refLogprobs) }),
    ...(rows.rolloutIsWeights && { rolloutIsWeights: gather(rows.rolloutIsWeights) }),
  };
}

function denominators(parts: readonly TrainBatch[]) {
  const count = (mask: Uint32Array) => mask.reduce((sum, bit) => sum + bit, 0);
  return {
    batch_num_tokens: parts.reduce((sum, { mask }) => sum + count(mask), 0),
    global_batch_size: parts.reduce((sum, part) => sum + rowCount(part), 0),
  };
}

/** rLLM's choice of loss for an estimator, where no loss is named. */
const LOSS_OF_ESTIMATOR: Readonly<Record<string, string>> = { grpo: "ppo" };
const OTHER_LOSS = "importance_sampling";

function lossOf(role: string, algorithm: LoopSettings["algorithm"]): string {
  const own = algorithm.traj_group_adv_estimator_map[role] as
    | string
    | { estimator?: string; loss_fn?: string }
    | undefined;
  const estimator = (typeof own === "string" ? own : own?.estimator) ?? algorithm.adv_estimator;
  const named = (typeof own === "object" ? own.loss_fn : undefined) ?? algorithm.loss_fn;
  return named ?? LOSS_OF_ESTIMATOR[estimator] ?? OTHER_LOSS;
}

function lossSpec(name: string, { algorithm, rollout }: LoopSettings): LossSpec {
  const { eps_clip, eps_clip_high, loss_agg_mode, kl_beta } = algorithm;
  return {
    name,
    loss_agg_mode: loss_agg_mode ?? "token-mean",
    settings: clipSettings(name, { low: eps_clip, high: eps_clip_high ?? eps_clip }),
    entropy_coeff: 0,
    ...(kl_beta > 0 && { kl: { type: "low_var_kl", coef: kl_beta } }),
    temperature: rollout.train.temperature || 1,
  };
}

/** The clip range under the names that the loss has for it: verl's are distances from 1, Tinker's are ratios. */
function clipSettings(name: string, { low, high }: { low: number; high: number }): Record<string, number> {
  const known = findLoss(name).settings;
  const names = {
    clip_ratio_low: low,
    clip_ratio_high: high,
    clip_low_threshold: 1 - low,
    clip_high_threshold: 1 + high,
  };
  return Object.fromEntries(Object.entries(names).filter(([key]) => key in known));
}

function optimParams({ settings, step, totalSteps }: StageContext): OptimParams {
  const { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = settings.training;
  const scale = learningRateScale(step, totalSteps, settings.algorithm);
  return { learning_rate: learning_rate * scale, beta1, beta2, eps, weight_decay, grad_clip_norm };
}

/** Factor on the learning rate at a step (from 1): linear warm-up, then the schedule. */
export function learningRateScale(
  step: number,
  totalSteps: number,
  options: Pick<LoopSettings["algorithm"], "lr_schedule" | "warmup_steps" | "warmup_steps_ratio">,
): number {
  const { lr_schedule, warmup_steps, warmup_steps_ratio } = options;
  const warmup = warmup_steps > 0 ? warmup_steps : Math.floor(totalSteps * warmup_steps_ratio);
  if (step < warmup) return step / warmup;
  const progress = Math.min((step - warmup) / Math.max(totalSteps - warmup, 1), 1);
  if (lr_schedule === "linear") return 1 - progress;
  if (lr_schedule === "cosine") return 0.5 * (1 + Math.cos(Math.PI * progress));
  return 1;
}

/** verl's rule: the largest of names with `max`, the smallest of names with `min`, else the mean. */
export function reduceMetrics(measured: readonly Metrics[]): Metrics {
  const names = new Set(measured.flatMap((metrics) => Object.keys(metrics)));
  return Object.fromEntries(
    Array.from(names, (name) => {
      const values = measured.map((metrics) => metrics[name]).filter((value) => value !== undefined);
      const reduce = name.includes("max") ? largest : name.includes("min") ? smallest : mean;
      return [name, reduce(values)];
    }),
  );
}
