/** The critic's part of stage 7: its own optimiser steps on the rows of a step, before the policy's. */
import type { Critic, CriticBatch, CriticLoss, Metrics, OptimParams } from "../../../engine/contract/backend.ts";
import { rowCount } from "../../data/pack.ts";
import type { AdvantageRows, StageContext } from "../contract.ts";
import type { LoopSettings } from "../settings.ts";
import { learningRateScale } from "./learning_rate.ts";
import { minibatches, type RowRange, rowGatherer } from "./minibatches.ts";

/**
 * Trains the critic on the returns of the rows in `critic.ppo_epochs` rounds of mini-batches. Returns the metrics of each
 * call; none for rows without a target.
 */
export async function updateCritic(
  critic: Critic,
  rows: AdvantageRows,
  { settings, step, totalSteps }: Pick<StageContext, "settings" | "step" | "totalSteps">,
): Promise<Metrics[]> {
  const params = criticOptimParams(settings, { step, totalSteps });
  const loss = criticLoss(settings);
  const measured: Metrics[] = [];
  for (let epoch = 0; epoch < settings.critic.ppo_epochs; epoch++)
    for (const range of minibatches(rowCount(rows), minibatchCount(settings))) {
      const batch = criticBatch(rows, range);
      if (!batch) continue;
      measured.push(await critic.forwardBackward(batch, loss), await critic.optimStep(params));
    }
  return measured;
}

/** verl counts the prompts of a mini-batch; null is as many mini-batches as the policy has. */
function minibatchCount({ critic, data, training }: LoopSettings): number {
  const size = critic.ppo_mini_batch_size;
  return size === null ? training.num_minibatches : Math.ceil(data.train_batch_size / size);
}

function criticBatch(rows: AdvantageRows, { from, to }: RowRange): CriticBatch | undefined {
  const { values, advantages } = rows;
  const { targets } = advantages;
  if (!targets || !values) return undefined;
  const members = Array.from({ length: to - from }, (_, i) => from + i).filter((row) =>
    targets.mask.subarray(rows.offsets[row], rows.offsets[row + 1]).includes(1),
  );
  if (members.length === 0) return undefined;
  const { offsets, gather } = rowGatherer(rows, members);
  const [mask_T, returns_T] = [gather(targets.mask), gather(targets.returns)];
  return { offsets, tokens: gather(rows.tokens), mask: mask_T, returns: returns_T, oldValues: gather(values) };
}

export function criticLoss({ critic, algorithm, rollout }: LoopSettings): CriticLoss {
  return {
    loss_agg_mode: critic.loss_agg_mode ?? algorithm.loss_agg_mode ?? "token-mean",
    cliprange_value: critic.cliprange_value,
    // As for the policy.
    loss_scale_factor: rollout.train.max_tokens,
  };
}

/** Returns the parameters as in verl's optimisers, whose epsilon is torch's. */
function criticOptimParams(
  { critic }: LoopSettings,
  { step, totalSteps }: { step: number; totalSteps: number },
): OptimParams {
  const { lr, weight_decay, clip_grad, ...schedule } = critic.optim;
  const [beta1, beta2] = critic.optim.betas as readonly [number, number];
  const scale = learningRateScale(step, totalSteps, {
    lr_schedule: schedule.lr_scheduler_type,
    warmup_steps: schedule.lr_warmup_steps,
    warmup_steps_ratio: schedule.lr_warmup_steps_ratio,
  });
  return { learning_rate: lr * scale, beta1, beta2, eps: 1e-8, weight_decay, grad_clip_norm: clip_grad };
}
