/**
 * The backend contract: sampling from a policy and training it, in tokens only. The local backend runs on this
 * machine's GPU; others call a service. Text stays outside: a backend only offers the tokenizer of its model.
 */
import type { Tokenizer } from "./text.ts";

/** How to sample tokens. Names and meanings as in vLLM and rLLM. */
export interface SamplingParams {
  readonly max_tokens: number;
  /** 0 is greedy. */
  readonly temperature: number;
  /** Probability mass of the nucleus, in (0, 1]. 1 keeps all tokens. */
  readonly top_p: number;
  /** Number of candidates kept; 0 or -1 keeps all. */
  readonly top_k: number;
  /** Sampling ends after one of these, which is the last token returned. */
  readonly stop_token_ids: readonly number[];
}

/** One sequence to draw: prompt, parameters, seed. */
export interface SampleRequest {
  readonly prompt_ids: readonly number[];
  readonly params: SamplingParams;
  /** Seed of this sequence: the same seed, prompt, parameters and weights give the same tokens. */
  readonly seed: number;
  /** Whether the sequence may be trained on; what a loss needs of the sampler is kept for such ones alone. Default true. */
  readonly mayTrain?: boolean | undefined;
  /** Ends the sequence when true for the tokens sampled so far; the last one is kept. Local models only. */
  readonly ends?: ((tokens: readonly number[]) => boolean) | undefined;
  /** Ends the sequence with what is drawn, also before its first token. Local models only. */
  readonly signal?: AbortSignal | undefined;
  /** Called with new tokens while the sequence is drawn. A backend that returns whole sequences may never call it. */
  readonly onTokens?: TokenListener | undefined;
  /** Whether `onTokens` is to be called often, for readers of a stream. Default true. */
  readonly isLive?: boolean | undefined;
  /** Limits each draw. Only for a backend with {@link Backend.isConstrainable}. */
  readonly allowed?: TokenConstraint | undefined;
  /** Number of most likely tokens reported for each draw. Only for a backend with {@link Backend.isConstrainable}. */
  readonly top_logprobs?: number | undefined;
}

/** Takes newly sampled tokens, one log-prob each, and with `top_logprobs` the alternatives of each. */
export type TokenListener = (
  tokens: readonly number[],
  logprobs: readonly number[],
  top?: readonly (readonly TopLogprob[])[],
) => void;

/** A likely token and its log-prob. */
export interface TopLogprob {
  readonly token: number;
  readonly logprob: number;
}

/** A grammar's choice of the tokens that may come next. It does not change: each sequence starts a state of its own. */
export interface TokenConstraint {
  start(): ConstraintState;
}

/** The state of a constraint in one sequence. */
export interface ConstraintState {
  /** Sets bit i % 32 of word floor(i / 32) for each token i that may come next and clears all others; [ceil(V / 32)]. */
  fill(mask: Uint32Array): void;
  /** Takes the token that was drawn. */
  advance(token: number): void;
  /**
   * Whether any token may come next. Such a row needs no mask, and is drawn several tokens at a time: those behind the one that
   * ends this are dropped and drawn again. Default false.
   */
  readonly isFree?: boolean;
  /** Whether the constraint was given up, in whole or in part, because its grammar failed in this sequence. Default false. */
  readonly isRelaxed?: boolean;
}

/** Effects of a constraint on a sequence. */
export interface Constrained {
  /** Tokens that were drawn under a mask. Their log-probs are the model's own, without the mask: they are off-policy. */
  readonly masked_tokens: number;
  /** See {@link ConstraintState.isRelaxed}. */
  readonly is_relaxed?: true;
}

/** One drawn sequence with the log-probs of its tokens. */
export interface SampledSequence {
  readonly tokens: readonly number[];
  /**
   * One per token, under softmax(logits / temperature) before top-k and top-p: what a trainer computes at the same
   * temperature. For greedy sampling, at temperature 1. A constraint (`allowed`) does not change them.
   */
  readonly logprobs: readonly number[];
  /** The most likely tokens of each draw, best first, under the same distribution; with `top_logprobs`. */
  readonly top_logprobs?: readonly (readonly TopLogprob[])[];
  /** `stop`: a stop token was sampled. `length`: max_tokens or the context length was reached. */
  readonly finish_reason: "stop" | "length";
  /** Optimiser steps that the sampling weights include. */
  readonly weight_version: number;
  /** Present where a constraint (`allowed`) limited at least one token, or was given up. */
  readonly constrained?: Constrained;
  /** Present where guesses at its tokens were looked for. */
  readonly speculated?: Speculated;
}

/** Guesses at tokens of a sequence, under vLLM's names. */
export interface Speculated {
  /** Steps with at least one guess. */
  readonly num_drafts: number;
  readonly num_draft_tokens: number;
  /** Guesses that were drawn. */
  readonly num_accepted_tokens: number;
}

/** Whole sequences (prompt and response), concatenated. */
export interface PackedTokens {
  /** Token ids, [T]. */
  readonly tokens: Uint32Array;
  /** Sequence i is tokens[offsets[i] .. offsets[i+1]), [N+1]. */
  readonly offsets: Uint32Array;
}

/** The most likely tokens at each place, best first: [T, k] row-major, in the place of the token that they compete with. */
export interface TopTokens {
  readonly k: number;
  readonly tokens: Uint32Array;
  /** 0 where the mask is 0. */
  readonly logprobs: Float32Array;
}

/**
 * How much better each row, or each token, is than its group. `level` states the shape of `values`, because a length
 * cannot: a batch can have as many rows as tokens.
 */
export interface Advantages<V = Float32Array> {
  readonly level: "row" | "token";
  /** `row`: [N], one for all trained tokens of the row. `token`: [T]. */
  readonly values: V;
}

/**
 * The rows of one optimiser step. Per-token arrays are [T] and describe the token at their own index (its log-prob
 * given the tokens before it). The first token of a sequence has no context, so its mask is 0.
 */
export interface TrainBatch extends PackedTokens {
  /** 1 = trained on. */
  readonly mask: Uint32Array;
  readonly advantages: Advantages;
  /** Policy at the start of the update, [T]. Absent: the current log-probs, detached (one on-policy step). */
  readonly oldLogprobs?: Float32Array | undefined;
  /** Log-probs reported by the sampler, [T]. */
  readonly rolloutLogprobs?: Float32Array;
  /** Reference policy, [T]; required when the loss has a KL term. */
  readonly refLogprobs?: Float32Array;
  /** Importance weights of the rollout correction, [T], multiplied into the loss. */
  readonly rolloutIsWeights?: Float32Array;
  /** Weight of each token in `cross_entropy`, [T]; the weights replace the advantages. */
  readonly weights?: Float32Array;
  /** The teacher's most likely tokens, for a distillation loss over them, which then is the only loss of the batch. */
  readonly teacherTop?: TopTokens | undefined;
}

/** The loss to take, under its published name and settings (see algorithm/loss/). */
export interface LossSpec {
  readonly name: string;
  /** `token-mean`, `token-sum`, `seq-mean-token-sum`, `seq-mean-token-mean`, `seq-mean-token-sum-norm`. */
  readonly loss_agg_mode: string;
  /** Settings of the loss: `clip_ratio_low`, `clip_ratio_high`, `clip_ratio_c`, ... */
  readonly settings: Readonly<Record<string, number>>;
  /** Weight of the entropy bonus, subtracted from the loss. */
  readonly entropy_coeff: number;
  /** KL to the reference, added to the loss. Absent: none. */
  readonly kl?: { readonly type: string; readonly coef: number } | undefined;
  /** Divides the logits, as it did during sampling. */
  readonly temperature: number;
  /** Denominators of the whole optimiser step when it is split into several calls. Absent: those of this call. */
  readonly batch_num_tokens?: number;
  readonly global_batch_size?: number;
  /** Rows of the whole step, those without a trained token too, by which TRL's losses and `geo_mean` divide. Absent: those of this call. */
  readonly all_rows?: number;
  /** Divisor of `seq-mean-token-sum-norm`: a number of tokens that stays the same over the run. Absent: the longest row of the batch. */
  readonly loss_scale_factor?: number;
}

/** The rows of one optimiser step of a critic. Per-token arrays are [T]; values belong to tokens as log-probs do. */
export interface CriticBatch extends PackedTokens {
  /** 1 = trained on. */
  readonly mask: Uint32Array;
  /** Values at the start of the update. */
  readonly oldValues: Float32Array;
  /** Targets of the values. */
  readonly returns: Float32Array;
}

/** The value loss to take (see algorithm/loss/value_loss.ts), under its published settings. */
export interface CriticLoss {
  /** Aggregation, as in {@link LossSpec}. */
  readonly loss_agg_mode: string;
  /** How far a value may move from the old one. */
  readonly cliprange_value: number;
  /** Scale factor, as in {@link LossSpec}. */
  readonly loss_scale_factor?: number;
}

/** Estimates what each token's sampled continuation will be rewarded, and learns it: the baseline of `gae`. */
export interface Critic {
  /** Optimiser steps done. */
  readonly version: number;
  /** The value before each token where `mask` is 1: of the state from which it was sampled. [T], 0 elsewhere. */
  values(rows: PackedTokens, options: { readonly mask: Uint32Array }): Promise<Float32Array>;
  /** Adds this batch's gradient to the sum since the last `optimStep`. Returns `critic/vf_loss` and its neighbours. */
  forwardBackward(batch: CriticBatch, loss: CriticLoss): Promise<Metrics>;
  /** Takes one AdamW step on the summed gradient and clears it. Returns `critic/grad_norm` and `critic/lr`. */
  optimStep(params: OptimParams): Promise<Metrics>;
}

/** Settings of one AdamW step. */
export interface OptimParams {
  readonly learning_rate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weight_decay: number;
  /** Upper limit of the gradients' joint L2 norm; larger gradients are scaled down. 0: no limit. */
  readonly grad_clip_norm: number;
}

/** Numbers by their published names. */
export type Metrics = Record<string, number>;

/** A backend's facts about its model. */
export interface ModelDescription {
  readonly name: string;
  readonly vocabSize: number;
  /** Longest sequence, prompt and response together. */
  readonly contextLength: number;
  readonly eosTokenIds: readonly number[];
  /** Trainable parameters now (all weights, or the adapter's). */
  readonly trainableParameters: number;
  readonly parameters: number;
}

/**
 * Kinds of a backend's work with its model: the update, log-probs of given tokens, sampling. The first two are verl's
 * names.
 */
export type WorkPhase = "actor" | "actor_infer" | "rollout";

/** The work of a phase since it was last taken. */
export interface PhaseWork {
  /** Operations that the model needs for it, by its shape. */
  readonly flop: number;
  /** Trained, scored or sampled. */
  readonly tokens: number;
  /** Seconds in which at least one call was under way. */
  readonly seconds: number;
}

/** Work that a backend has computed, and the most that its device could. */
export interface ModelWork {
  readonly phases: Readonly<Partial<Record<WorkPhase, PhaseWork>>>;
  /** Operations per second of large products, measured. Absent: not known. */
  readonly peakFlops?: number | undefined;
  /** Counts of each sequence that was sampled while tokens were guessed. Absent: none. */
  readonly speculated?: readonly Speculated[] | undefined;
}

/** Samples from a policy and trains it. Everything is tokens in, tokens out. */
export interface Backend {
  readonly name: string;
  readonly model: ModelDescription;
  /** Absent where the backend has no tokenizer. */
  readonly tokenizer?: Tokenizer | undefined;
  /** Optimiser steps done. */
  readonly weightVersion: number;
  /**
   * Samples every request with the current weights, or with those of the last {@link publishWeights}; results in the
   * order of the requests.
   */
  sample(
    requests: readonly SampleRequest[],
    options?: { readonly signal?: AbortSignal; readonly weights?: "current" | "published" },
  ): Promise<SampledSequence[]>;
  /** Whether `sample` follows `allowed` and `top_logprobs` of its requests. Absent: no. */
  readonly isConstrainable?: boolean;
  /**
   * Publishes the current weights for sampling while training continues. A running call of `sample` continues with the
   * new ones. Absent where sampling always uses the newest weights.
   */
  publishWeights?(): Promise<void>;
  /**
   * log p(tokens[t] | before) and entropy at each token, [T], 0 at first tokens. `reference`: the policy before training.
   * Entropy is absent where a service does not return it. With a `mask`, [T], only tokens where it is 1 are wanted, and the
   * values of the others may be 0: the output matrix is the dearest part of a pass over long prompts. With `greedy`, also 1
   * where a token is the one that greedy decoding would draw, else 0, [T]; absent where a service does not tell.
   */
  logprobs(
    rows: PackedTokens,
    options: {
      readonly policy: "current" | "reference";
      readonly temperature: number;
      readonly mask?: Uint32Array | undefined;
      readonly greedy?: boolean | undefined;
    },
  ): Promise<{ logprobs: Float32Array; entropy?: Float32Array; greedy?: Float32Array }>;
  /**
   * The `k` most likely tokens in the place of each token whose mask is 1, under the same policies. Absent where a backend
   * does not report them.
   */
  topLogprobs?(
    rows: PackedTokens,
    options: {
      readonly policy: "current" | "reference";
      readonly temperature: number;
      readonly mask: Uint32Array;
      readonly k: number;
    },
  ): Promise<TopTokens>;
  /** Adds this batch's gradient to the sum since the last `optimStep`. Returns the loss's published metrics. */
  forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<Metrics>;
  /** Takes one AdamW step on the summed gradient and clears it. Returns `actor/grad_norm` and `actor/lr`. */
  optimStep(params: OptimParams): Promise<Metrics>;
  /**
   * A whole optimiser step: starts all gradients and the step before it awaits any. Returns what the single calls
   * would, in their order. Absent where this saves no time.
   */
  readonly forwardBackwardAndOptimStep?:
    | ((
        calls: readonly { readonly batch: TrainBatch; readonly loss: LossSpec }[],
        params: OptimParams,
      ) => Promise<Metrics[]>)
    | undefined;
  /**
   * Takes the work since the last call. The first call may measure the device, for which nothing else may run. Absent where
   * work is not counted. Needs no `this`.
   */
  readonly takeWork?: (() => Promise<ModelWork>) | undefined;
  /** Absent where none was opened. `save`, `load`, `keep` and `recover` hold its state too. */
  readonly critic?: Critic | undefined;
  /** Calls `listener` with what people should know of: that memory ran out, and passes are smaller from now on. */
  onWarning?(listener: (message: string) => void): void;
  /** Makes the current policy the reference. Absent where the reference is always the base model. */
  freezeReference?(): void;
  /**
   * Keeps the trained state where a lost device does not take it, for {@link recover}: called after each whole step.
   * Absent where no device can get lost.
   */
  keep?(): Promise<void>;
  /**
   * Opens the device again after a DeviceLostError and returns to the state of the last {@link keep}.
   * @returns false when that state was too large to keep: the weights are those from before training, and a checkpoint
   * has to be loaded.
   */
  recover?(): Promise<boolean>;
  /** Writes weights, optimiser and counters into the folder `dir` (made by the caller). */
  save(dir: string): Promise<void>;
  /** The exact inverse of `save`: training continues bit for bit. */
  load(dir: string): Promise<void>;
  close(): void;
}
