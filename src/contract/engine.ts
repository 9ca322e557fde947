/**
 * What the server needs of whatever trains and samples: adapters on one base model, losses as sums, policies held
 * still. The server calls one thing at a time and awaits it; an engine need not guard against itself.
 */
import type { Metrics, OptimParams, PackedTokens, SampledSequence, SampleRequest } from "./backend.ts";

/** What a training client asks for. Rank 0 trains all weights, in a copy of their own. */
export interface TrainerConfig {
  readonly rank: number;
  readonly trainUnembed: boolean;
  readonly trainMlp: boolean;
  readonly trainAttn: boolean;
  /** Of the first values. */
  readonly seed: number;
}

/** Rows of one forward_backward: inputs end to end, and at every position the token whose log-prob counts. */
export interface LossRows extends PackedTokens {
  /** [T]. */
  readonly targets: Uint32Array;
  /** `weights`, `advantages`, `logprobs`, `clip_low_threshold`, ...: [T] each. */
  readonly inputs: Readonly<Record<string, Float32Array>>;
}

export interface LossRequest {
  /** `cross_entropy`, `importance_sampling`, `ppo`, `cispo`, `dro`. */
  readonly name: string;
  /** Its settings under their published names. */
  readonly config: Readonly<Record<string, number>>;
}

/** Errors of type ConfigError and UnsupportedError, here and below, are the client's fault; all others the server's. */
export interface Trainer {
  readonly config: TrainerConfig;
  /** Device memory of its own, bytes. */
  readonly bytes: number;
  /** Optimiser steps taken. */
  readonly step: number;
  /**
   * Sums the loss over all rows. Unless `forwardOnly`, its gradient joins what has gathered.
   * @returns log-probs at every position, [T], and `loss:sum`.
   */
  forwardBackward(
    rows: LossRows,
    options: { loss: LossRequest; forwardOnly: boolean },
  ): Promise<{ logprobs: Float32Array; metrics: Metrics }>;
  /** Drops what has gathered. */
  clearGradients(): void;
  optimStep(params: OptimParams): Promise<Metrics>;
  /** The policy as it is now. */
  freeze(): Policy;
  /** Writes a checkpoint into `dir` (made by the caller): the weights as others read them, and with `optimizer` its state. */
  save(dir: string, options: { optimizer: boolean }): Promise<void>;
  /** Takes over a checkpoint of a trainer of the same shape. Without `optimizer` training starts afresh from it. */
  load(dir: string, options: { optimizer: boolean }): Promise<void>;
  release(): void;
}

/** Log-probs of a prompt's tokens: entry 0 is NaN, nothing comes before it. */
export interface PromptScores {
  readonly logprobs: Float32Array;
  /** With a `topk` above 0: [length, topk] row-major, best first; row 0 is of nothing. */
  readonly top?: { readonly tokens: Uint32Array; readonly logprobs: Float32Array };
}

/** Weights to sample from, whatever is trained later. */
export interface Policy {
  readonly bytes: number;
  /** Results in the order of the requests. */
  sample(
    requests: readonly SampleRequest[],
    options?: { readonly signal?: AbortSignal },
  ): Promise<SampledSequence[]>;
  scorePrompts(
    prompts: readonly (readonly number[])[],
    options: { readonly topk: number },
  ): Promise<PromptScores[]>;
  release(): void;
}

export interface Engine {
  /** Folder of the base model: what `AutoTokenizer.from_pretrained` is given. */
  readonly folder: string;
  readonly architecture: string;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly parameters: number;
  readonly eosTokenIds: readonly number[];
  /** One line for people. */
  readonly device: string;
  readonly losses: readonly string[];
  /** Bytes on the device. */
  readonly memory: { readonly live: number; readonly peak: number; readonly budget: number };
  /** Absent where the model has no tokenizer: then stop texts are refused. */
  decode?(ids: readonly number[]): string;
  createTrainer(config: TrainerConfig): Promise<Trainer>;
  /** The base model's own policy, or that of a checkpoint in a folder. */
  openPolicy(dir?: string): Promise<Policy>;
  close(): void;
}
