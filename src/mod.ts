/**
 * grpu: RL post-training for language models in TypeScript, on WebGPU.
 *
 * The compute engine (`openDevice`, kernels, advantages, policy losses), a small transformer that trains and samples,
 * the eight-stage loop, and the registries that a run's own rewards, environments, estimators and losses go into.
 * The same in Node, Deno and a page.
 * @module
 */

export * from "./algorithm/mod.ts";
export { type OpenBackend, registerBackend } from "./backend/backends.ts";
export { type BackendDefinition, defineBackend } from "./backend/define.ts";
export { LocalBackend, type LocalBackendOptions } from "./backend/local/backend.ts";
export { TinkerBackend, type TinkerOptions } from "./backend/tinker/backend.ts";
export type { ModelInfo, WantedModel } from "./backend/tinker/model.ts";
export {
  type ChatClient,
  type ChatEngine,
  createClient,
  createFetch,
  type FetchFunction,
} from "./chat/endpoint.ts";
export { type AssistantMessage, parseReply, toolFormatOf } from "./chat/reply.ts";
export { ApiError } from "./chat/request.ts";
export type { ChatCompletion, ChatCompletionChunk } from "./chat/response.ts";
export { type RenderedPrompt, Transcript, type TranscriptOptions } from "./chat/transcript.ts";
export { CpuDevice } from "./compute/cpu.ts";
export {
  type Buffer,
  type Data,
  type Device,
  type DeviceInfo,
  type DeviceLimits,
  type DispatchOptions,
  type ReadRequest,
  readFloats,
} from "./compute/device.ts";
export { defineKernel, folded, type Grid, type Kernel } from "./compute/kernel.ts";
export { matmul, matmulFamily } from "./compute/matmul/matmul.ts";
export type { MatmulOptions, Matrix } from "./compute/matmul/product.ts";
export { type DeviceName, type OpenDeviceOptions, openDevice } from "./compute/open.ts";
export { WebGpuDevice, type WebGpuDeviceOptions } from "./compute/webgpu/device.ts";
export type * from "./contract/backend.ts";
export type * from "./contract/text.ts";
export type { Dataset, DatasetRow, DatasetRows, Split } from "./data/dataset.ts";
export { mergeSteps, type PackedRows, packGroups as packTrajectories } from "./data/pack.ts";
export { tasksFromJsonl, tasksFromParquet } from "./data/rows.ts";
export type * from "./data/types.ts";
export { ConfigError, RemoteError, ShaderError, UnsupportedError } from "./errors.ts";
export type { CheckpointStore } from "./log/checkpoint/store.ts";
export type { Logger, LogRecord } from "./log/logger.ts";
export { type OpenLogger, registerLogger } from "./log/loggers/loggers.ts";
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
} from "./loop/contract.ts";
export { registerStage, registerWrapper } from "./loop/pipeline/registered.ts";
export type { PipelineStage, StageDefinition, StageWrapper, StepValues } from "./loop/pipeline/stage.ts";
export { type LoopSettings, loopSettings } from "./loop/settings.ts";
export { estimateAdvantages, estimateAdvantagesOn } from "./loop/stages/estimate.ts";
export { registerGrouping, registerRejection } from "./loop/stages/hooks.ts";
export { groupByTaskAndName } from "./loop/stages/transform.ts";
export { STAGES } from "./loop/stages.ts";
export { trainStep } from "./loop/step.ts";
export { train } from "./loop/train.ts";
export { type ModelConfig, parameterCount, parseModelConfig } from "./model/files/config.ts";
export { type FolderReader, type ModelFolder, openModelFolder } from "./model/files/folder.ts";
export {
  byteTokenizer,
  characterTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "./model/files/tokenizer.ts";
export { LanguageModel, type LanguageModelOptions } from "./model/language_model.ts";
export type { LoraConfig } from "./model/train/lora_adapter.ts";
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
