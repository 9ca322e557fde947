/**
 * RL post-training for language models in TypeScript, on WebGPU: what a training program needs. The same in Node, Deno
 * and a page. Parts for other programs have doors of their own: `grpu/compute`, `grpu/algorithm`, `grpu/model`,
 * `grpu/train`, `grpu/chat`, and `grpu/node` for what needs a disk or a terminal.
 *
 * Stable in 0.x: every function here that starts with `register` or `define`, `train`, `LocalBackend.open`,
 * `TinkerBackend.open`, and the settings' names. A minor version may add required fields to types that grpu itself
 * makes, and names every break in CHANGELOG.md.
 * @module
 */

export { type CustomEstimator, defineEstimator, type Group } from "./engine/algorithm/advantage/custom.ts";
export { registerEstimator } from "./engine/algorithm/advantage/estimators.ts";
export { type CustomLoss, defineLoss } from "./engine/algorithm/loss/custom.ts";
export { registerLoss } from "./engine/algorithm/loss/losses.ts";
export type { Device } from "./engine/compute/device.ts";
export { type DeviceName, type OpenDeviceOptions, openDevice } from "./engine/compute/open.ts";
export type * from "./engine/contract/backend.ts";
export type * from "./engine/contract/reward_model.ts";
export type * from "./engine/contract/text.ts";
export { type ModelFolder, openModelFolder } from "./engine/model/files/folder.ts";
export { httpFolder } from "./engine/model/files/http_folder.ts";
export { blobFolder, MemoryFolder } from "./engine/model/files/memory_folder.ts";
export {
  byteTokenizer,
  characterTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "./engine/model/files/tokenizer.ts";
export { LanguageModel, type LanguageModelOptions } from "./engine/model/language_model.ts";
export type { LoraOptions } from "./engine/model/lora.ts";
export { saveAdapterFolder, saveModelFolder } from "./engine/model/save_model.ts";
export {
  ConfigError,
  DeviceLostError,
  OutOfMemoryError,
  RemoteError,
  ShaderError,
  UnsupportedError,
} from "./leaves/errors.ts";
export { type OpenBackend, registerBackend } from "./train/backend/backends.ts";
export { type BackendDefinition, defineBackend } from "./train/backend/define.ts";
export { LocalBackend, type LocalBackendOptions, type OpenLocalOptions } from "./train/backend/local/backend.ts";
export { LocalRewardModel, type LocalRewardModelOptions } from "./train/backend/local/reward_model.ts";
export { LocalRewardScorer } from "./train/backend/local/reward_scorer.ts";
export { TinkerBackend, type TinkerOptions } from "./train/backend/tinker/backend.ts";
export type { ModelInfo, WantedModel } from "./train/backend/tinker/create_model.ts";
export { type AnswerOptions, answerOf, type NeedsAnswer } from "./train/data/answer.ts";
export type { Dataset, DatasetRow, DatasetRows, Split } from "./train/data/dataset.ts";
export { tasksFromJsonl, tasksFromParquet } from "./train/data/rows.ts";
export type * from "./train/data/types.ts";
export type { CheckpointStore } from "./train/log/checkpoint/store.ts";
export type { Logger, LogRecord } from "./train/log/logger.ts";
export { type OpenLogger, registerLogger } from "./train/log/loggers/loggers.ts";
export type {
  GroupingHook,
  LoopState,
  RejectionFunction,
  RejectionInput,
  TrainOptions,
  TrainOutcome,
} from "./train/loop/contract.ts";
export { registerStage, registerWrapper } from "./train/loop/pipeline/registered.ts";
export { type LoopSettings, loopSettings } from "./train/loop/settings.ts";
export { registerGrouping, registerRejection } from "./train/loop/stages/hooks.ts";
export { groupByTaskAndName } from "./train/loop/stages/transform.ts";
export { train } from "./train/loop/train.ts";
export {
  registerAgent,
  registerDataset,
  registerEnvironment,
  registerEvaluator,
  registerReward,
  registerWorkflow,
} from "./train/task/registered.ts";
export {
  type Args,
  type ChatCallOptions,
  type ChatReply,
  type Completion,
  type Environment,
  type Evaluate,
  type Evaluation,
  type Evaluator,
  type Example,
  type Game,
  type Judgement,
  type Outcome,
  type Policy,
  type Reward,
  type RewardFunction,
  type Rollout,
  type RolloutResult,
  type RolloutTrajectory,
  singleTurn,
  Termination,
  type Turn,
} from "./train/task/rollout.ts";
export type { AgentFunction, Workflow, WorkflowOptions } from "./train/task/workflow.ts";
export {
  type MultiTurnOptions,
  multiTurn,
  type SolverJudgeOptions,
  solverJudge,
} from "./train/task/workflows.ts";
