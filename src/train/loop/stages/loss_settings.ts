/** The loss of a role, with its settings under the names that the loss publishes. */
import { planLoss } from "../../../engine/algorithm/loss/definition.ts";
import { findLoss } from "../../../engine/algorithm/loss/losses.ts";
import { STABLE_REINFORCE } from "../../../engine/algorithm/loss/service_losses.ts";
import { mergeSettings } from "../../../engine/algorithm/settings.ts";
import type { LossSpec } from "../../../engine/contract/backend.ts";
import { isTeacherOnly, teacherKl } from "../distill/choices.ts";
import type { LoopSettings } from "../settings.ts";

export interface RoleLoss {
  readonly name: string;
  readonly loss_args: Readonly<Record<string, unknown>>;
}

/** The loss beside the KL to a teacher that is the only loss: without advantages its value and its gradient are 0. */
const WITHOUT_ADVANTAGES: RoleLoss = { name: "importance_sampling", loss_args: {} };

export function lossSpec(role: RoleLoss, settings: LoopSettings): LossSpec {
  const { algorithm, rollout } = settings;
  const { name, loss_args } = isTeacherOnly(settings) && teacherKl(settings) ? WITHOUT_ADVANTAGES : role;
  const { loss_agg_mode, kl_beta, entropy_coeff } = algorithm;
  const kl = kl_beta > 0 ? { type: "low_var_kl", coef: kl_beta } : teacherKl(settings);
  return {
    name,
    // Where the loss brings its own, this is that of KL and entropy terms, as in verl.
    loss_agg_mode: loss_agg_mode ?? "token-mean",
    // As in verl, where every row is as long as the longest response allowed.
    loss_scale_factor: rollout.train.max_tokens,
    settings: lossSettings(name, { algorithm, loss_args }),
    entropy_coeff,
    ...(kl && { kl }),
    temperature: rollout.train.temperature || 1,
  };
}

/**
 * The settings of a loss: the clip range, which the loss's arguments override.
 * @throws {ConfigError} for an unknown loss or argument
 */
export function lossSettings(
  name: string,
  { algorithm, loss_args }: Pick<RoleLoss, "loss_args"> & Pick<LoopSettings, "algorithm">,
): Record<string, number> {
  if (name === STABLE_REINFORCE.name) return { ...mergeSettings("loss", STABLE_REINFORCE, loss_args) };
  const { eps_clip, eps_clip_high } = algorithm;
  const clip = clipSettings(name, { low: eps_clip, high: eps_clip_high ?? eps_clip });
  const settings = { ...clip, ...loss_args } as Record<string, number>;
  planLoss(findLoss(name), settings);
  return settings;
}

/** The clip range under the loss's own names: verl's are distances from 1, Tinker's are ratios. */
function clipSettings(name: string, { low, high }: { low: number; high: number }): Record<string, number> {
  const accepted = findLoss(name).settings;
  const names = {
    clip_ratio_low: low,
    clip_ratio_high: high,
    clip_low_threshold: 1 - low,
    clip_high_threshold: 1 + high,
  };
  return Object.fromEntries(Object.entries(names).filter(([key]) => key in accepted));
}
