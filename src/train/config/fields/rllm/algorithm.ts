/** Portable settings of the algorithm: advantages, loss, schedule, correction. */
import { builtInEstimators } from "../../../../engine/algorithm/advantage/estimators.ts";
import { builtInLosses } from "../../../../engine/algorithm/loss/losses.ts";
import { STABLE_REINFORCE } from "../../../../engine/algorithm/loss/service_losses.ts";
import { bool, dict, float, int, oneOf, str } from "../field.ts";

const ESTIMATORS = builtInEstimators().map(({ name }) => name);
/**
 * Losses with verl's mode in which the loss is chosen by the correction, and a loss that is computed from what a
 * service recorded.
 */
const LOSSES = [...builtInLosses().map(({ name }) => name), "bypass_mode", STABLE_REINFORCE.name];

const ACTOR = "actor_rollout_ref.actor";
/** Read by this loop, which verl and Trinity do not use. */
const LOOP_ONLY = "acts acts refused refused";
const IN_LOOP = {
  local: "read in the loop, where advantages are computed",
  tinker: "read in the loop, where advantages are computed",
  verl: "verl computes advantages in its own trainer",
};
/** Reaches verl and Trinity through a special rule, not through a name alone. */
const FORWARDED = "acts acts forwarded forwarded";
const SCHEDULE = { trinity: "as algorithm.optimizer, which has constant and cosine" };
const CLIPPED = {
  tinker: "sent to Tinker's ppo and cispo as clip_low_threshold and clip_high_threshold; other losses clip here",
  trinity: "as clip_range_low and clip_range_high of algorithm.policy_loss_fn_args",
};
const NEW_BUILDER = {
  trinity: "with config convert --target new; the older builder has no correction",
};

export const ALGORITHM_FIELDS = {
  "rllm.algorithm.adv_estimator": oneOf(ESTIMATORS, "grpo", "advantage estimator", {
    open: true,
    note: "The first four are the guide's. A registered name works here; in rLLM only in the per-role map.",
    loop: true,
    verl: "algorithm.adv_estimator",
    why: { trinity: "where Trinity has it, with its algorithm_type" },
  }),
  "rllm.algorithm.norm_adv_by_std_in_grpo": bool(true, "divide by the group's standard deviation in grpo", {
    loop: true,
    verl: "algorithm.norm_adv_by_std_in_grpo",
    on: "acts acts forwarded refused",
    why: { trinity: "Trinity's grpo always divides" },
  }),
  "rllm.algorithm.traj_group_adv_estimator_map": dict(
    "estimator, or {estimator, estimator_args, loss_fn, loss_args}, by trajectory role",
    {
      note: "Only the Python API of rLLM has it; a key that only grpu has.",
      loop: true,
      on: LOOP_ONLY,
      why: IN_LOOP,
    },
  ),
  "rllm.algorithm.traj_grouping_hook": str(null, "registered grouping; null = by task and trajectory name", {
    note: "Only the Python API of rLLM has it; a key that only grpu has.",
    loop: true,
    on: LOOP_ONLY,
    why: { ...IN_LOOP, verl: "verl groups by prompt" },
  }),
  "rllm.algorithm.estimator_args": dict("settings of the estimator", {
    note: "A key that only grpu has. An estimator accepts its published settings, or those that its module declares.",
    loop: true,
    on: LOOP_ONLY,
    why: IN_LOOP,
  }),
  "rllm.algorithm.loss_args": dict("settings of the loss, besides the clip range", {
    note: "A key that only grpu has. A loss accepts its published settings, or those that its module declares.",
    loop: true,
    on: "acts acts refused refused",
    why: { verl: "verl's losses have settings of their own" },
  }),
  "rllm.algorithm.use_rllm": bool(null, "deprecated by rLLM: ignored there, refused here when set", {
    on: "refused refused refused refused",
    why: "rLLM deprecated it; advantages always come from this loop",
  }),
  "rllm.algorithm.use_precomputed_advantage": bool(false, "take step.advantage as it is and skip the estimator", {
    note: "In a group where any step has one, a step without one counts as 0 (rLLM's guide; its source raises). NaN and Infinity are refused.",
    loop: true,
    on: LOOP_ONLY,
    why: IN_LOOP,
  }),
  "rllm.algorithm.loss_fn": oneOf(LOSSES, null, "policy loss; null = the backend's own choice", {
    open: true,
    note: "The first five are Tinker's and the guide's, the plain names after them verl's; stable_reinforce is Tinker's, on recorded samples.",
    loop: true,
    verl: `${ACTOR}.policy_loss.loss_mode`,
    why: { trinity: "where Trinity has it" },
  }),
  "rllm.algorithm.loss_agg_mode": oneOf(
    ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"],
    null,
    "how token losses are reduced to one number; null = token-mean, or what the loss brings",
    { loop: true, verl: `${ACTOR}.loss_agg_mode` },
  ),
  "rllm.algorithm.lr_schedule": oneOf(["constant", "linear", "cosine"], "constant", "learning-rate schedule", {
    loop: true,
    on: FORWARDED,
    why: SCHEDULE,
  }),
  "rllm.algorithm.warmup_steps": int(-1, "learning-rate warm-up steps; 0 or below = use the ratio", {
    loop: true,
    verl: `${ACTOR}.optim.lr_warmup_steps`,
    why: { trinity: "as algorithm.optimizer.lr_warmup_steps" },
  }),
  "rllm.algorithm.warmup_steps_ratio": float(0, "warm-up as a share of all steps", {
    min: 0,
    max: 1,
    loop: true,
    verl: `${ACTOR}.optim.lr_warmup_steps_ratio`,
    why: { trinity: "as algorithm.optimizer.lr_warmup_steps_ratio" },
  }),
  "rllm.algorithm.kl_beta": float(0, "weight of the KL loss to the reference model; 0 = off", {
    min: 0,
    note: "On verl it also decides actor_rollout_ref.actor.use_kl_loss.",
    loop: true,
    verl: `${ACTOR}.kl_loss_coef`,
  }),
  "rllm.algorithm.entropy_coeff": float(0, "weight of the entropy bonus, which is subtracted from the loss; 0 = off", {
    note: "A key that only grpu has, under verl's name; rLLM sets verl's own. The entropy is aggregated like the KL loss, by loss_agg_mode.",
    loop: true,
    verl: `${ACTOR}.entropy_coeff`,
    on: "acts refused forwarded forwarded",
    why: { tinker: "the service returns no entropies" },
  }),
  "rllm.algorithm.eps_clip": float(0.2, "clip range of the probability ratio", {
    min: 0,
    loop: true,
    on: FORWARDED,
    why: CLIPPED,
  }),
  "rllm.algorithm.eps_clip_high": float(null, "upper clip range; null = eps_clip", {
    min: 0,
    loop: true,
    verl: `${ACTOR}.clip_ratio_high`,
    why: CLIPPED,
  }),
  "rllm.algorithm.router_replay": oneOf(["disabled", "R2", "R3"], "disabled", "replay of expert routing (MoE)", {
    verl: `${ACTOR}.router_replay.mode`,
    on: "refused refused forwarded forwarded",
    why: {
      local: "models here have no experts",
      tinker: "Tinker does not report routing",
      verl: "with engines that replay experts",
      trinity: "R3 as algorithm.enable_router_replay",
    },
  }),
  "rllm.algorithm.rollout_correction.bypass_mode": bool(
    null,
    "true = the sampler's log-probs serve as the old ones; null = the backend's default",
    { loop: true, verl: "algorithm.rollout_correction.bypass_mode", why: NEW_BUILDER },
  ),
  "rllm.algorithm.rollout_correction.tis_mode": oneOf(
    ["token", "sequence"],
    null,
    "truncated importance sampling per token or per sequence; null = off",
    { loop: true, verl: "algorithm.rollout_correction.rollout_is", why: NEW_BUILDER },
  ),
  "rllm.algorithm.rollout_correction.tis_cap": float(2, "upper bound of the importance weights", {
    min: 0,
    loop: true,
    verl: "algorithm.rollout_correction.rollout_is_threshold",
    why: NEW_BUILDER,
  }),

  "rllm.stepwise_advantage.enable": bool(false, "advantages for the steps of multi-step trajectories", {
    loop: true,
    on: LOOP_ONLY,
    why: IN_LOOP,
  }),
  "rllm.stepwise_advantage.mode": oneOf(
    ["broadcast", "per_step"],
    "broadcast",
    "one advantage for all steps, or one each",
    {
      note: "per_step is deprecated and coerced to broadcast in rLLM.",
      loop: true,
      on: LOOP_ONLY,
      why: IN_LOOP,
    },
  ),
  "rllm.stepwise_advantage.normalize_by_steps": bool(false, "divide by the number of steps", {
    loop: true,
    on: LOOP_ONLY,
    why: IN_LOOP,
  }),
} as const;
