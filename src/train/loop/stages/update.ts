/** Stage 7, update: one optimiser step per mini-batch. */
import { advantageReader, checkAdvantages } from "../../../engine/algorithm/advantage/level.ts";
import type { Backend, LossSpec, Metrics, OptimParams, TrainBatch } from "../../../engine/contract/backend.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { largest, mean, smallest } from "../../../leaves/statistics.ts";
import { rowCount } from "../../data/pack.ts";
import type { AdvantageRows, StageContext, Staged } from "../contract.ts";
import { isTeacherOnly, topkSpec } from "../distill/choices.ts";
import { reportMoment } from "../moment.ts";
import { updateCritic } from "./critic.ts";
import { optimParams } from "./learning_rate.ts";
import { lossSpec } from "./loss_settings.ts";
import { denominators, minibatches, partsByLoss } from "./minibatches.ts";

/**
 * Trains on the rows in `training.num_minibatches` optimiser steps. Roles with different losses share each step: their
 * gradients are summed under common denominators. Metrics are reduced over the calls as in verl. A critic trains first, and
 * before step `trainer.critic_warmup` alone.
 * @throws {ConfigError} for advantages with a length that does not fit their level, and for a value at a trained token
 * that is not finite
 */
export async function update(rows: AdvantageRows, context: StageContext): Promise<Staged<undefined>> {
  const { backend, settings } = context;
  const params = optimParams(context);
  checkAdvantages(rows.advantages, { rows: rowCount(rows), tokens: rows.tokens.length });
  refuseNonFinite(rows);
  const measured: Metrics[] = backend.critic ? await updateCritic(backend.critic, rows, context) : [];
  if (backend.critic && context.step < settings.trainer.critic_warmup)
    return { value: undefined, metrics: reduceMetrics(measured) };
  const ranges = [...minibatches(rowCount(rows), settings.training.num_minibatches)];
  for (const [done, range] of ranges.entries()) {
    const counted = ranges.length > 1 && { done, total: ranges.length, unit: "mini-batches" };
    reportMoment(context, { doing: "updating", ...counted });
    const parts = [...partsByLoss(rows, { range, settings })];
    if (parts.length === 0) continue;
    const totals = denominators(parts.map(([, part]) => part));
    const calls = parts.flatMap(([loss, { teacherTop, ...batch }]) => {
      const spec = { ...lossSpec(loss, settings), ...(parts.length > 1 && totals) };
      if (!teacherTop) return [{ batch, loss: spec }];
      const distilled = { batch: { ...batch, teacherTop }, loss: topkSpec(spec, settings) };
      return isTeacherOnly(settings) ? [distilled] : [{ batch, loss: spec }, distilled];
    });
    measured.push(...(await takeStep(backend, { calls, params })));
  }
  return { value: undefined, metrics: reduceMetrics(measured) };
}

/** The per-token inputs of a loss, besides the advantage. */
const STREAMS = ["oldLogprobs", "rolloutLogprobs", "refLogprobs", "rolloutIsWeights", "values"] as const;

/** Refuses values that are not finite: without this check a NaN would reach the service behind a backend. */
function refuseNonFinite(rows: AdvantageRows): void {
  const { offsets, mask } = rows;
  const advantage = advantageReader(rows.advantages);
  for (let row = 0; row < rowCount(rows); row++) {
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) {
      if (mask[t] === 0) continue;
      if (!Number.isFinite(advantage(t, row))) refuse(rows, { what: "advantage", value: advantage(t, row), row, t });
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
    `Cannot train on the trajectory ${uid}: its ${what} must be finite (${value}, at token ${t - offsets[row]!} of row ${row}). Check the stage that computes it.`,
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
