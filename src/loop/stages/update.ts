/** Stage 7, update: one optimiser step per mini-batch. */
import { advantageReader, checkAdvantages } from "../../algorithm/advantage/level.ts";
import { planLoss } from "../../algorithm/loss/definition.ts";
import { findLoss } from "../../algorithm/loss/resolve.ts";
import type { Backend, LossSpec, Metrics, OptimParams, TrainBatch } from "../../contract/backend.ts";
import { rowCount, sliceTokens } from "../../data/pack.ts";
import { ConfigError } from "../../errors.ts";
import { largest, mean, smallest } from "../../statistics.ts";
import type { AdvantageRows, StageContext, Staged } from "../contract.ts";
import type { LoopSettings } from "../settings.ts";
import { algorithmOf } from "./roles.ts";

/**
 * Trains on the rows in `training.num_minibatches` optimiser steps. Roles with a loss of their own share each step:
 * their gradients are summed under common denominators. Metrics are averaged over the calls as verl does.
 * @throws {ConfigError} for advantages whose length is not that of their level, and for a number of a trained token that
 * is not finite
 */
export async function update(rows: AdvantageRows, context: StageContext): Promise<Staged<undefined>> {
  const { backend, settings } = context;
  const params = optimParams(context);
  checkAdvantages(rows.advantages, { rows: rowCount(rows), tokens: rows.tokens.length });
  refuseNonFinite(rows);
  const measured: Metrics[] = [];
  for (const range of minibatches(rowCount(rows), settings.training.num_minibatches)) {
    const parts = [...partsByLoss(rows, { range, settings })];
    if (parts.length === 0) continue;
    const totals = denominators(parts.map(([, part]) => part));
    const calls = parts.map(([loss, batch]) => ({
      batch,
      loss: { ...lossSpec(loss, settings), ...(parts.length > 1 && totals) },
    }));
    measured.push(...(await takeStep(backend, { calls, params })));
  }
  return { value: undefined, metrics: reduceMetrics(measured) };
}

/** What the loss reads at a trained token, besides the advantage. */
const STREAMS = ["oldLogprobs", "rolloutLogprobs", "refLogprobs", "rolloutIsWeights"] as const;

/** A NaN would reach a service as it is. */
function refuseNonFinite(rows: AdvantageRows): void {
  const { offsets, mask } = rows;
  const advantage = advantageReader(rows.advantages);
  for (let row = 0; row < rowCount(rows); row++) {
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
      if (mask[t] === 0) continue;
      if (!Number.isFinite(advantage(t, row)))
        refuse(rows, { what: "advantage", value: advantage(t, row), row, t });
      const what = STREAMS.find((name) => !Number.isFinite(rows[name]?.[t] ?? 0));
      if (what) refuse(rows, { what, value: rows[what]?.[t], row, t });
    }
  }
}

function refuse(
  { offsets, trajectories, trajectoryOfRow }: AdvantageRows,
  { what, value, row, t }: { what: string; value: number | undefined; row: number; t: number },
): never {
  const { uid } = trajectories[trajectoryOfRow[row]!]!;
  throw new ConfigError(
    `Cannot train on the trajectory ${uid}: its ${what} must be finite (${value}, at token ${t - offsets[row]!} of row ${row}). Look at the stage that gave it`,
    { kind: "code" },
  );
}

async function takeStep(
  backend: Backend,
  { calls, params }: { calls: readonly { batch: TrainBatch; loss: LossSpec }[]; params: OptimParams },
): Promise<Metrics[]> {
  if (backend.forwardBackwardAndOptimStep) return backend.forwardBackwardAndOptimStep(calls, params);
  const measured: Metrics[] = [];
  for (const { batch, loss } of calls) measured.push(await backend.forwardBackward(batch, loss));
  return [...measured, await backend.optimStep(params)];
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
): Generator<[loss: RoleLoss, part: TrainBatch]> {
  const chosen = new Map<string, { loss: RoleLoss; members: number[] }>();
  for (let row = range.from; row < range.to; row++) {
    if (!rows.mask.subarray(rows.offsets[row], rows.offsets[row + 1]).includes(1)) continue;
    const role = rows.groups[rows.groupOfTrajectory[rows.trajectoryOfRow[row]!]!]!.group_role;
    const { loss: name, loss_args } = algorithmOf(role, settings.algorithm);
    const key = JSON.stringify([name, loss_args]);
    const part = chosen.get(key) ?? { loss: { name, loss_args }, members: [] };
    part.members.push(row);
    chosen.set(key, part);
  }
  for (const { loss, members } of chosen.values()) yield [loss, pickRows(rows, members)];
}

interface RoleLoss {
  readonly name: string;
  readonly loss_args: Readonly<Record<string, unknown>>;
}

function pickRows(rows: AdvantageRows, members: readonly number[]): TrainBatch {
  const offsets = new Uint32Array(members.length + 1);
  members.forEach((row, i) => {
    offsets[i + 1] = offsets[i]! + rows.offsets[row + 1]! - rows.offsets[row]!;
  });
  const gather = <A extends Uint32Array | Float32Array>(array: A): A => {
    const gathered = new (array.constructor as new (length: number) => A)(offsets[members.length]!);
    members.forEach(
      (row, i) => void gathered.set(sliceTokens(array, rows, { from: row, to: row + 1 }), offsets[i]),
    );
    return gathered;
  };
  const { level, values } = rows.advantages;
  return {
    offsets,
    tokens: gather(rows.tokens),
    mask: gather(rows.mask),
    advantages: {
      level,
      values: level === "token" ? gather(values) : Float32Array.from(members, (row) => values[row]!),
    },
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

function lossSpec({ name, loss_args }: RoleLoss, { algorithm, rollout }: LoopSettings): LossSpec {
  const { loss_agg_mode, kl_beta } = algorithm;
  return {
    name,
    loss_agg_mode: loss_agg_mode ?? "token-mean",
    settings: lossSettings(name, { algorithm, loss_args }),
    entropy_coeff: 0,
    ...(kl_beta > 0 && { kl: { type: "low_var_kl", coef: kl_beta } }),
    temperature: rollout.train.temperature || 1,
  };
}

/**
 * The settings of a loss: the clip range, and over it the loss's own arguments.
 * @throws {ConfigError} for a loss that is not registered, or arguments that it does not take.
 */
export function lossSettings(
  name: string,
  { algorithm, loss_args }: Pick<RoleLoss, "loss_args"> & Pick<LoopSettings, "algorithm">,
): Record<string, number> {
  const { eps_clip, eps_clip_high } = algorithm;
  const clip = clipSettings(name, { low: eps_clip, high: eps_clip_high ?? eps_clip });
  const settings = { ...clip, ...loss_args } as Record<string, number>;
  planLoss(findLoss(name), settings);
  return settings;
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
