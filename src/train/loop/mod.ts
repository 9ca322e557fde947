/**
 * The training loop in parts: the eight stages, one step over them, hooks, and stages of your own.
 *
 * Stable in 0.x: `train`, `trainStep`, the names of the stages and settings. A minor version may add to `Run` and to
 * what stages receive.
 * @module
 */

export type { TrainOnWhat } from "../../chat/train_on_what.ts";
export { mergeSteps, type PackedRows, packTrajectories } from "../data/pack.ts";
export {
  type PlacedPreference,
  type PreferenceForm,
  type PreferenceKeys,
  preferenceExamples,
} from "../data/preference.ts";
export {
  type ChatExample,
  type PlacedExample,
  type ResponseExample,
  type SupervisedExample,
  type SupervisedKeys,
  supervisedExamples,
  type TextExample,
  type Truncation,
} from "../data/supervised.ts";
export type {
  Accepted,
  AdvantageOptions,
  Candidates,
  EstimateAdvantages,
  Grouping,
  GroupingHook,
  LoopState,
  RejectionFunction,
  RejectionInput,
  Run,
  StageContext,
  Staged,
  Stages,
  TrainOptions,
  TrainOutcome,
} from "./contract.ts";
export { checkTeacher, selfTeacher } from "./distill/teacher.ts";
export { type DpoOptions, dpo } from "./dpo/dpo.ts";
export { type EncodedPreference, type EncodedPreferences, encodePreferences } from "./dpo/encode.ts";
export { registerStage, registerWrapper } from "./pipeline/registered.ts";
export type { PipelineStage, StageDefinition, StageWrapper, StepValues } from "./pipeline/stage.ts";
export {
  type RewardModelRunOptions,
  trainRewardModel,
} from "./reward_model/reward_model.ts";
export { type LoopSettings, loopSettings } from "./settings.ts";
export { type EncodedRow, type EncodedRows, type EncodeOptions, encodeRows, type FitOptions } from "./sft/encode.ts";
export { type SftOptions, sft } from "./sft/sft.ts";
export { estimateAdvantages, estimateAdvantagesOn } from "./stages/estimate.ts";
export { registerGrouping, registerRejection } from "./stages/hooks.ts";
export { groupByTaskAndName } from "./stages/transform.ts";
export { STAGES } from "./stages.ts";
export { trainStep } from "./step.ts";
export { train } from "./train.ts";
