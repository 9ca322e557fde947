/**
 * The algorithms of reinforcement learning on the device: advantages, policy losses, KL, rollout correction.
 *
 * For a trainer (nothing here waits; `submit` or `read` once per step):
 *
 *     const counts = countRows(offsets, mask);                       // host arrays, once per batch
 *     const loss = recordPolicyLoss(device, spec, { buffers: { logprobs, oldLogprobs?, refLogprobs?, advantages,
 *         mask, isWeights?, offsets, trajectoryOfToken, entropy? }, counts });
 *     // loss.dlogprobs: Buffer f32 [T]; loss.dentropy?: Buffer f32 [T] (given `entropy`); 0 where mask = 0
 *     const data = await device.read([...loss.reads, ...yours]);
 *     const { loss: value, metrics } = loss.decode(data.slice(0, loss.reads.length));
 *     loss.release();
 *
 * `spec` is a `LossSpec` of contract/backend.ts (plus `loss_scale_factor`, `dp_size`, `compat`). `advantages` is f32 with
 * its level, { level: "row", values: [N] } or { level: "token", values: [T] }; for `cross_entropy` it holds the weights.
 * Rows are whole sequences with the prompt masked out, or responses alone. Bare names of losses are verl's, or Tinker's
 * where verl has none (`ppo`, `importance_sampling`, `cross_entropy`); all of Tinker's are `tinker.NAME`, TRL's `trl.NAME`.
 */

export { rowAt, rowsOfTokens, unpack } from "../packing/offsets.ts";
export { packRollouts, RolloutsBuilder } from "../packing/rollouts/builder.ts";
export { checkRollouts } from "../packing/rollouts/check.ts";
export * from "../packing/rollouts/read.ts";
export * from "../packing/rollouts/rollouts.ts";
export { type CustomEstimator, defineEstimator, type Group } from "./advantage/custom.ts";
export type {
  AdvantageBatch,
  AdvantageBuffers,
  AdvantageRecorder,
  Estimate,
  Estimator,
  EstimatorElsewhere,
  EstimatorSettings,
  GroupForm,
  Recorded,
  RowsForm,
} from "./advantage/definition.ts";
export { type RecordedAdvantages, recordAdvantages } from "./advantage/device.ts";
export { estimatorNames, findEstimator, registerEstimator } from "./advantage/estimators.ts";
export { type Groups, numberGroups, packGroups } from "./advantage/groups.ts";
export { advantages, groupAdvantages, perToken } from "./advantage/host.ts";
export { type AdvantageCheck, advantageReader, checkAdvantages, factorsOf } from "./advantage/level.ts";
export { advantageMetrics, type GroupSummary, summarizeGroups } from "./advantage/metrics.ts";
export type { AdvantageInput } from "./advantage/recorder.ts";
export { CORRECTION_PRESETS, type CorrectionConfig, correctionPreset } from "./correction/config.ts";
export { type RecordedCorrection, recordCorrection } from "./correction/device.ts";
export { type Correction, rolloutCorrection } from "./correction/host.ts";
export { offPolicyMetrics, probabilityMetrics } from "./correction/metrics.ts";
export type { CorrectionBatch } from "./correction/rows.ts";
export { type DistillationBatch, type DistillationOptions, distillationAdvantages } from "./distill/advantages.ts";
export {
  isTopkMode,
  TOPK_MODES,
  type TopkLoss,
  type TopkMode,
  type TopkPlan,
  type TopkSettings,
  topkPlace,
  topkPlan,
} from "./distill/topk.ts";
export { type RecordedTopk, recordTopk, type TopkValues } from "./distill/topk_kernel.ts";
export { adaptiveKlController, fixedKlController, type KlController } from "./kl/controller.ts";
export { K3_BOUND, KL_NAMES, type KlEstimate, klCode, klEstimate } from "./kl/estimate.ts";
export { type KlRewardBatch, klInReward } from "./kl/reward.ts";
export { type HeadInput, type RecordedHeadLogprobs, recordHeadLogprobs } from "./logprobs/head.ts";
export { type RecordedLogprobs, recordLogprobs } from "./logprobs/logits.ts";
export type { StatisticsGradient, TokenStatistics } from "./logprobs/statistics.ts";
export {
  AGGREGATION_MODES,
  type AggregationMode,
  type Normalisers,
  type TokenWeights,
  tokenWeights,
  weightOfRow,
} from "./loss/aggregation.ts";
export type { LossBuffers } from "./loss/binding_slots.ts";
export { type CustomLoss, defineLoss } from "./loss/custom.ts";
export type { LossDefinition, LossPlan } from "./loss/definition.ts";
export {
  type DeviceLossBatch,
  type RecordedLoss,
  type RecordOptions,
  recordPolicyLoss,
} from "./loss/device.ts";
export { type HostLoss, type LossBatch, policyLoss } from "./loss/host.ts";
export { type KlBatch, type KlSpec, klLoss, type RecordedKl, recordKl } from "./loss/kl_loss.ts";
export { findLoss, lossNames, registerLoss } from "./loss/losses.ts";
export { isHostOnly, type LossResult, type PolicyLossSpec } from "./loss/resolve.ts";
export type { LossSettings, Token, TokenLoss } from "./loss/token.ts";
export { type TrlWeightBatch, type TrlWeightOptions, trlWeights } from "./loss/trl_weights.ts";
export {
  type RecordedValueLoss,
  recordValueLoss,
  type ValueBatch,
  type ValueLossSpec,
  valueLoss,
} from "./loss/value_loss.ts";
export {
  type HostRewardModelLoss,
  pairScoreMetrics,
  type RewardModelSpec,
  rewardModelLoss,
  type ScoredPairs,
} from "./preference/bradley_terry.ts";
export { type RecordedRewardModelLoss, recordRewardModelLoss } from "./preference/bradley_terry_device.ts";
export type { PreferenceLoss, PreferenceLossForm } from "./preference/definition.ts";
export { type PreferenceBuffers, type RecordedPreference, recordPreferenceLoss } from "./preference/device.ts";
export { type PreferenceFormOptions, preferenceForm } from "./preference/form.ts";
export { type HostPreference, klBaseline, type PreferenceBatch, preferenceLoss } from "./preference/host.ts";
export { findPreferenceLoss, preferenceLossNames, registerPreferenceLoss } from "./preference/losses.ts";
export type { PairFunction, PairLoss, PairScores, PreferenceSettings } from "./preference/pair.ts";
export { type PreferenceRows, type PreferenceSpec, planPreference } from "./preference/resolve.ts";
export { advantageBatch, lossBatch } from "./rollout_batches.ts";
export { COUNT_EPSILON, countRows, filledRows, type RowCounts, trainedTokens } from "./rows.ts";
export {
  type AdvantageRunOptions,
  computeAdvantages,
  computeKl,
  computePolicyLoss,
  computePreferenceLoss,
  computeRewardModelLoss,
  type RunOptions,
  type ScoreLosses,
  streamAdvantages,
  type TokenAdvantages,
  type TokenLosses,
} from "./run.ts";
export type { SettingsSchema } from "./settings.ts";
