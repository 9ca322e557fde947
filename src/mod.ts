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

export { type CustomEstimator, defineEstimator, type Group } from "./algorithm/advantage/custom.ts";
export { registerEstimator } from "./algorithm/advantage/estimators.ts";
export { type CustomLoss, defineLoss } from "./algorithm/loss/custom.ts";
export { registerLoss } from "./algorithm/loss/losses.ts";
export { type OpenBackend, registerBackend } from "./backend/backends.ts";
export { type BackendDefinition, defineBackend } from "./backend/define.ts";
export { LocalBackend, type LocalBackendOptions, type OpenLocalOptions } from "./backend/local/backend.ts";
export { LocalRewardModel, type LocalRewardModelOptions } from "./backend/local/reward_model.ts";
export { LocalRewardScorer } from "./backend/local/reward_scorer.ts";
export { TinkerBackend, type TinkerOptions } from "./backend/tinker/backend.ts";
export type { ModelInfo, WantedModel } from "./backend/tinker/create_model.ts";
export type { Device } from "./compute/device.ts";
export { type DeviceName, type OpenDeviceOptions, openDevice } from "./compute/open.ts";
export type * from "./contract/backend.ts";
export type * from "./contract/reward_model.ts";
export type * from "./contract/text.ts";
export { type AnswerOptions, answerOf, type NeedsAnswer } from "./data/answer.ts";
export type { Dataset, DatasetRow, DatasetRows, Split } from "./data/dataset.ts";
export { tasksFromJsonl, tasksFromParquet } from "./data/rows.ts";
export type * from "./data/types.ts";
export {
  ConfigError,
  DeviceLostError,
  OutOfMemoryError,
  RemoteError,
  ShaderError,
  UnsupportedError,
} from "./errors.ts";
export type { CheckpointStore } from "./log/checkpoint/store.ts";
export type { Logger, LogRecord } from "./log/logger.ts";
export { type OpenLogger, registerLogger } from "./log/loggers/loggers.ts";
export type {
  GroupingHook,
  LoopState,
  RejectionFunction,
  RejectionInput,
  TrainOptions,
  TrainOutcome,
} from "./loop/contract.ts";
export { registerStage, registerWrapper } from "./loop/pipeline/registered.ts";
export { type LoopSettings, loopSettings } from "./loop/settings.ts";
export { registerGrouping, registerRejection } from "./loop/stages/hooks.ts";
export { groupByTaskAndName } from "./loop/stages/transform.ts";
export { train } from "./loop/train.ts";
export { type ModelFolder, openModelFolder } from "./model/files/folder.ts";
export { httpFolder } from "./model/files/http_folder.ts";
export { blobFolder, MemoryFolder } from "./model/files/memory_folder.ts";
export {
  byteTokenizer,
  characterTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "./model/files/tokenizer.ts";
export { LanguageModel, type LanguageModelOptions } from "./model/language_model.ts";
export type { LoraOptions } from "./model/lora.ts";
export { saveAdapterFolder, saveModelFolder } from "./model/save_model.ts";
export {
  registerAgent,
  registerDataset,
  registerEnvironment,
  registerEvaluator,
  registerReward,
  registerWorkflow,
} from "./task/registered.ts";
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
} from "./task/rollout.ts";
export type { AgentFunction, Workflow, WorkflowOptions } from "./task/workflow.ts";
export {
  type MultiTurnOptions,
  multiTurn,
  type SolverJudgeOptions,
  solverJudge,
} from "./task/workflows.ts";
