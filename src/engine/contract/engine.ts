/**
 * The engine contract of the server: LoRA adapters on one base model, losses as sums, frozen policies. The server awaits
 * each call before the next one, so an engine needs no locks.
 */
import type { Metrics, OptimParams, PackedTokens, SampledSequence, SampleRequest } from "./backend.ts";

/** A training client's request for a model. Rank 0 trains a copy of all weights. */
export interface TrainerConfig {
  readonly rank: number;
  readonly trainUnembed: boolean;
  readonly trainMlp: boolean;
  readonly trainAttn: boolean;
  /** Seed of the initial values. */
  readonly seed: number;
}

/** Rows of one forward_backward: concatenated inputs, and for every position the tokens whose log-probs count. */
export interface LossRows extends PackedTokens {
  /** [R]: one after every position (R = T), or as `targetOffsets` says. */
  readonly targets: Uint32Array;
  /** [N+1]: sequence i has the targets [targetOffsets[i], targetOffsets[i+1]), equally many after each of its positions. */
  readonly targetOffsets?: Uint32Array | undefined;
  /** `weights`, `advantages`, `logprobs`, `clip_low_threshold`, ...: [R] each. */
  readonly inputs: Readonly<Record<string, Float32Array>>;
  /** Knowledge of the policy that sampled some of the targets, for `score_centering`. */
  readonly sampled?: SampledTargets | undefined;
}

/** The most likely tokens that are recorded in the place of each sampled one. */
export const RECORDED_TOP = 20;

/** Targets that a policy sampled, and its most likely tokens in the place of each, under the distribution that it drew from. */
export interface SampledTargets {
  /** Indices of the targets, ascending, [S]. */
  readonly at: Uint32Array;
  /** [S+1]: sampled target s has the most likely tokens [offsets[s], offsets[s+1]), each once. */
  readonly offsets: Uint32Array;
  readonly tokens: Uint32Array;
  readonly logprobs: Float32Array;
}

/**
 * How clients of `grpu serve tinker` name {@link LossRequest.temperature} among the settings of a loss: an extension of Tinker's
 * protocol, whose losses have log-probs at temperature 1. The server's capabilities announce it.
 */
export const LOGITS_TEMPERATURE = "logits_temperature";

export interface LossRequest {
  /** `cross_entropy`, `importance_sampling`, `ppo`, `cispo`, `dro`, `gspo`, `score_centering`. */
  readonly name: string;
  /** Settings under their published names. */
  readonly config: Readonly<Record<string, number | string>>;
  /** Divides the logits. Default 1. */
  readonly temperature?: number | undefined;
}

/** Here and below, ConfigError and UnsupportedError are the client's fault; every other error is the server's. */
export interface Trainer {
  readonly config: TrainerConfig;
  /** Device memory of this trainer, bytes. */
  readonly bytes: number;
  /** Optimiser steps taken. */
  readonly step: number;
  /**
   * Sums the loss over all rows. Adds its gradient to the accumulated one, unless `forwardOnly`.
   * @returns the log-prob and the loss of every target, [R], and `loss:sum`.
   */
  forwardBackward(
    rows: LossRows,
    options: { loss: LossRequest; forwardOnly: boolean },
  ): Promise<{ logprobs: Float32Array; losses: Float32Array; metrics: Metrics }>;
  /** Drops the accumulated gradient. */
  clearGradients(): Promise<void>;
  optimStep(params: OptimParams): Promise<Metrics>;
  /** A copy of the current policy. It has its values once this resolves, whatever fails later. */
  freeze(): Promise<EnginePolicy>;
  /** Writes the weights, in the published format, and with `optimizer` its state, into `dir` (made by the caller). */
  save(dir: string, options: { optimizer: boolean }): Promise<void>;
  /** Loads a checkpoint of a trainer of the same shape, and drops the accumulated gradient. Without `optimizer` the optimiser starts from zero. */
  load(dir: string, options: { optimizer: boolean }): Promise<void>;
  release(): void;
}

/** Tokens whose log-probs are wanted in place of a prompt's own. */
export interface PromptTargets {
  /** The places of the prompt's tokens that they stand for, [R], ascending from 1 on. Several may share one. */
  readonly positions: Uint32Array;
  /** [R]. */
  readonly tokens: Uint32Array;
}

/** Tokens to draw from the distribution at each place of a prompt but the first, independently of each other. */
export interface PromptDraws {
  /** Tokens at each place. */
  readonly k: number;
  /** 0 always draws the most likely token. */
  readonly temperature: number;
  readonly seed: number;
}

export interface ScoreOptions {
  /** Most likely tokens at each place. */
  readonly topk: number;
  /** Whether the prompts' own tokens are scored. Default true; otherwise all their log-probs are NaN. */
  readonly own?: boolean | undefined;
  /** Targets of each prompt. */
  readonly targets?: readonly (PromptTargets | undefined)[] | undefined;
  /** Draws of each prompt. */
  readonly draws?: readonly (PromptDraws | undefined)[] | undefined;
}

/** Log-probs of a prompt's tokens: entry 0 is NaN, because nothing precedes the first token. */
export interface PromptScores {
  readonly logprobs: Float32Array;
  /** Log-probs of the prompt's targets, [R], where it has some. */
  readonly targets?: Float32Array | undefined;
  /** Tokens drawn at each place but the first, [length - 1, k] row-major, with their log-probs at temperature 1. */
  readonly draws?: { readonly tokens: Uint32Array; readonly logprobs: Float32Array } | undefined;
  /** Top tokens with `topk` above 0: [length, topk] row-major, best first; row 0 has no meaning. */
  readonly top?: { readonly tokens: Uint32Array; readonly logprobs: Float32Array } | undefined;
}

/** A request in a batch of several policies. */
export interface PolicyRequest extends SampleRequest {
  /** One that the batch's policy {@link EnginePolicy.mixes}. Default: the batch's. */
  readonly policy?: EnginePolicy | undefined;
}

/** Starts requests in a batch that runs, all of them; false where they have no room now. */
export type StartRequests = (requests: readonly PolicyRequest[]) => boolean;

/** How a batch is sampled. */
export interface BatchOptions {
  readonly signal?: AbortSignal | undefined;
  /**
   * Called while the batch runs: may start further requests in it. Their results follow those of the first requests. An
   * engine that cannot add to a batch never calls it.
   * @throws from `start`: ConfigError for a request that cannot be sampled
   */
  readonly more?: ((start: StartRequests) => void | Promise<void>) | undefined;
  /**
   * Number of sequences with `more` that may run together once others have joined. An engine makes room for as many
   * where memory allows.
   */
  readonly expected?: number | undefined;
  /** Called when a sequence is complete, with its place in the results, before `sample` resolves. */
  readonly onEnd?: ((sequence: SampledSequence, index: number) => void) | undefined;
  /**
   * False where `onEnd` takes every sequence: `sample` may then resolve to no results, so that a batch that others join for long holds
   * only what runs. Default true.
   */
  readonly keepsResults?: boolean | undefined;
  /**
   * Called in place of `onEnd` when a request's own code (`allowed`, `ends`, `onTokens`) throws. Its sequence ends, and its
   * place in the results has what it drew. Absent: `sample` rejects with that error.
   */
  readonly onFail?: ((error: unknown, index: number) => void) | undefined;
}

/** Frozen weights to sample from: later training does not change them. */
export interface EnginePolicy {
  readonly bytes: number;
  /** Policies that one batch may have, this one included. Absent: 1. */
  readonly mostMixed?: number | undefined;
  /** Whether the requests of one batch may be for this policy and for the other. Absent: never. */
  mixes?(other: EnginePolicy): boolean;
  /** Results in the order of the requests: the same bits whatever else is in the batch. */
  sample(requests: readonly PolicyRequest[], options?: BatchOptions): Promise<SampledSequence[]>;
  scorePrompts(prompts: readonly (readonly number[])[], options: ScoreOptions): Promise<PromptScores[]>;
  release(): void;
}

export interface Engine {
  /** Folder of the base model, for `AutoTokenizer.from_pretrained`. */
  readonly folder: string;
  /** Fingerprint of the base model: equal for equal weights, whatever their folder or name. */
  readonly fingerprint: string;
  readonly architecture: string;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly parameters: number;
  readonly eosTokenIds: readonly number[];
  /** One line for display. */
  readonly device: string;
  readonly losses: readonly string[];
  /**
   * Checks a loss and its inputs by name, before their values are packed.
   * @throws ConfigError for an unknown loss or setting, an input that the loss does not have, or one that it lacks.
   */
  checkLoss(loss: LossRequest, inputs: readonly string[]): void;
  /** Bytes on the device. */
  readonly memory: { readonly live: number; readonly peak: number; readonly budget: number };
  /** Absent where the model has no tokenizer; the server then refuses stop texts. */
  readonly decode?: ((ids: readonly number[]) => string) | undefined;
  /** Whether the device is lost, with every trainer and policy. Absent where none gets lost. */
  readonly isLost?: boolean;
  /**
   * Opens a lost device again and loads the base model; trainers and policies from before are only to be released. Rejects
   * with `isLost` set where the device cannot be opened, else with the base model unloaded.
   */
  reopen?(): Promise<void>;
  /** Whether the base model's weights are on the device. Absent where they always are. */
  readonly isLoaded?: boolean;
  /**
   * Puts the base model's weights on the device, where they are not there; needed before a trainer or policy is opened.
   * @throws OutOfMemoryError
   */
  load?(): Promise<void>;
  /** Frees the base model's weights. The engine's trainers and policies must have been released. */
  unload?(): void;
  createTrainer(config: TrainerConfig): Promise<Trainer>;
  /** The base model's policy, or that of the checkpoint in `dir`. */
  openPolicy(dir?: string): Promise<EnginePolicy>;
  close(): void;
}
