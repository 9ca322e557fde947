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
 * `spec` is a `LossSpec` of backend.ts (plus `loss_scale_factor`, `dp_size`, `compat`). `advantages` is f32 with its
 * level, { level: "row", values: [N] } or { level: "token", values: [T] }; for `cross_entropy` it holds the weights. Rows are whole sequences with the prompt masked out, or responses alone.
 * Tinker's losses are `ppo`, `importance_sampling`, `cross_entropy`, `tinker.cispo`, `tinker.dro` (bare `cispo` and
 * `dro` are verl's); TRL's are `trl.NAME`.
 */

export * from "../data/rollouts/builder.ts";
export * from "../data/rollouts/read.ts";
export { type CustomEstimator, defineEstimator, type Group } from "./advantage/custom.ts";
export type { SettingsSchema } from "./advantage/definition.ts";
export {
  type AdvantageBuffers,
  type AdvantageInput,
  type RecordedAdvantages,
  recordAdvantages,
} from "./advantage/device.ts";
export { type Groups, numberGroups, packGroups } from "./advantage/groups.ts";
export { advantages, groupAdvantages, perToken } from "./advantage/host.ts";
export { type AdvantageCheck, advantageReader, checkAdvantages, factorsOf } from "./advantage/level.ts";
export { advantageMetrics, type GroupSummary, summarizeGroups } from "./advantage/metrics.ts";
export {
  type AdvantageBatch,
  type Estimate,
  type Estimator,
  type EstimatorSettings,
  estimatorNames,
  findEstimator,
  registerEstimator,
} from "./advantage/registry.ts";
export { CORRECTION_PRESETS, type CorrectionConfig, correctionPreset } from "./correction/config.ts";
export { type RecordedCorrection, recordCorrection } from "./correction/device.ts";
export {
  type Correction,
  type CorrectionBatch,
  rolloutCorrection,
} from "./correction/host.ts";
export { offPolicyMetrics, probabilityMetrics } from "./correction/metrics.ts";
export * from "./kl/estimate.ts";
export { type KlBatch, type KlSpec, klInReward, klLoss, type RecordedKl, recordKl } from "./kl/loss.ts";
export {
  type HeadInput,
  type RecordedHeadLogprobs,
  type RecordedLogprobs,
  recordHeadLogprobs,
  recordLogprobs,
  type StatisticsGradient,
  type TokenStatistics,
} from "./logprobs/logits.ts";
export * from "./loss/aggregation.ts";
export { type CustomLoss, defineLoss } from "./loss/custom.ts";
export type {
  LossDefinition,
  LossPlan,
  LossSettings,
  ShaderSettings,
  Token,
  TokenLoss,
} from "./loss/definition.ts";
export {
  type LossBuffers,
  type RecordedLoss,
  type RecordOptions,
  recordPolicyLoss,
} from "./loss/device.ts";
export { type HostLoss, type LossBatch, policyLoss, rowsOfTokens } from "./loss/host.ts";
export {
  findLoss,
  isHostOnly,
  type LossResult,
  lossNames,
  type PolicyLossSpec,
  registerLoss,
} from "./loss/resolve.ts";
export { type TrlWeightBatch, type TrlWeightOptions, trlWeights } from "./loss/trl_weights.ts";
export {
  type RecordedValueLoss,
  recordValueLoss,
  type ValueBatch,
  type ValueLossSpec,
  valueLoss,
} from "./loss/value_loss.ts";
export {
  advantageBatch,
  computeAdvantages,
  computeKl,
  computePolicyLoss,
  lossBatch,
  type RunOptions,
  streamAdvantages,
  type TokenAdvantages,
  type TokenLosses,
} from "./run.ts";
