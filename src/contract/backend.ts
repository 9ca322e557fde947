/**
 * What the loop and the servers need of anything that samples from a policy and trains it. The local backend runs it
 * on this machine's GPU; others speak to a service. Everything is tokens in, tokens out: text never crosses here.
 */

/** How to draw tokens. Names and meanings as vLLM's and rLLM's. */
export interface SamplingParams {
  readonly max_tokens: number;
  /** 0 is greedy. */
  readonly temperature: number;
  /** Mass of the nucleus kept, in (0, 1]. 1 keeps all. */
  readonly top_p: number;
  /** Number of candidates kept; 0 or -1 keeps all. */
  readonly top_k: number;
  /** Sampling ends after one of these, which is the last token returned. */
  readonly stop_token_ids: readonly number[];
}

export interface SampleRequest {
  readonly prompt_ids: readonly number[];
  readonly params: SamplingParams;
  /** Seed of this one sequence: the same seed, prompt, parameters and weights give the same tokens. */
  readonly seed: number;
  /** A further end of the sequence: true of the tokens drawn so far, the last of which it keeps. Local models only. */
  readonly ends?: (tokens: readonly number[]) => boolean;
}

export interface SampledSequence {
  readonly tokens: readonly number[];
  /**
   * Of each sampled token, under softmax(logits / temperature) before top-k and top-p (what a trainer at the same
   * temperature computes). Greedy sampling reports them at temperature 1.
   */
  readonly logprobs: readonly number[];
  /** `stop`: a stop token was drawn. `length`: max_tokens or the context was reached. */
  readonly finish_reason: "stop" | "length";
  /** Number of optimiser steps the sampling weights had seen. */
  readonly weight_version: number;
}

/** Whole sequences (prompt and response), end to end. */
export interface PackedTokens {
  /** Token ids, [T]. */
  readonly tokens: Uint32Array;
  /** Sequence i is tokens[offsets[i] .. offsets[i+1]), [N+1]. */
  readonly offsets: Uint32Array;
}

/**
 * How much better than its group each row, or each token, was. `level` says what `values` holds, because lengths do not:
 * a batch can have as many rows as tokens.
 */
export interface Advantages<V = Float32Array> {
  readonly level: "row" | "token";
  /** `row`: [N], one for all trained tokens of the row. `token`: [T]. */
  readonly values: V;
}

/**
 * One optimiser step's rows. Per-token arrays are [T] and describe the token at their own index (its log-prob given
 * those before it); the first token of a sequence has nothing before it, so its mask is 0.
 */
export interface TrainBatch extends PackedTokens {
  /** 1 = trained on. */
  readonly mask: Uint32Array;
  readonly advantages: Advantages;
  /** Policy at the start of the update, [T]. Absent: the current log-probs, detached (one on-policy step). */
  readonly oldLogprobs?: Float32Array;
  /** As sampled, [T]. */
  readonly rolloutLogprobs?: Float32Array;
  /** Reference policy, [T]; needed when the loss has a KL term. */
  readonly refLogprobs?: Float32Array;
  /** Importance weights of the rollout correction, [T], multiplied into the loss. */
  readonly rolloutIsWeights?: Float32Array;
  /** Per-token weights of `cross_entropy`, [T]; they replace the advantages. */
  readonly weights?: Float32Array;
}

/** Which loss to take, under its published name and settings (see algorithm/). */
export interface LossSpec {
  readonly name: string;
  /** `token-mean`, `token-sum`, `seq-mean-token-sum`, `seq-mean-token-mean`, `seq-mean-token-sum-norm`. */
  readonly loss_agg_mode: string;
  /** The loss's own settings: `clip_ratio_low`, `clip_ratio_high`, `clip_ratio_c`, ... */
  readonly settings: Readonly<Record<string, number>>;
  /** Weight of the entropy bonus, subtracted from the loss. */
  readonly entropy_coeff: number;
  /** KL to the reference added to the loss. Absent: none. */
  readonly kl?: { readonly type: string; readonly coef: number };
  /** Logits are divided by it, as they were when sampling. */
  readonly temperature: number;
  /** Denominators of the whole optimiser step when it is split into several calls (else this call's own). */
  readonly batch_num_tokens?: number;
  readonly global_batch_size?: number;
}

export interface OptimParams {
  readonly learning_rate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weight_decay: number;
  /** Gradients are scaled so that their joint L2 norm is at most this; 0 leaves them. */
  readonly grad_clip_norm: number;
}

export type Metrics = Record<string, number>;

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

/** A tool call of an assistant, as OpenAI's chat API writes it; `arguments` as JSON text or parsed. */
export interface ToolCall {
  readonly id?: string;
  readonly type?: string;
  readonly function: { readonly name: string; readonly arguments: unknown };
}

/** One message of a conversation, as OpenAI's chat API writes it. */
export interface ChatMessage {
  readonly role: string;
  readonly content: string;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly ToolCall[];
  readonly tool_call_id?: string;
  readonly [key: string]: unknown;
}

export interface ChatOptions {
  /** Ends the text where the assistant is to go on. Default true. */
  readonly addGenerationPrompt?: boolean;
  /** JSON schemas of functions, as OpenAI's `tools`. */
  readonly tools?: readonly unknown[];
  /** More names for the template: `enable_thinking`, ... */
  readonly variables?: Readonly<Record<string, unknown>>;
}

export interface Tokenizer {
  readonly vocabSize: number;
  readonly eosTokenIds: readonly number[];
  /** Jinja source, where the model has one. */
  readonly chatTemplate?: string;
  /**
   * The conversation as the model was trained to see it, special tokens included: encode it with
   * `addSpecialTokens: false`. Absent where text has no such form.
   * @throws UnsupportedError when the model has no chat template; ConfigError when the template refuses.
   */
  formatChat?(messages: readonly ChatMessage[], options?: ChatOptions): string;
  encode(text: string, options?: { readonly addSpecialTokens?: boolean }): number[];
  decode(ids: readonly number[], options?: { readonly skipSpecialTokens?: boolean }): string;
}

export interface Backend {
  readonly name: string;
  readonly model: ModelDescription;
  /** Absent where the backend has no tokenizer at hand. */
  readonly tokenizer?: Tokenizer;
  /** Optimiser steps done. */
  readonly weightVersion: number;
  /**
   * Draws every request with the current weights, or with those that {@link publishWeights} kept last; results in the
   * order of the requests.
   */
  sample(
    requests: readonly SampleRequest[],
    options?: { readonly signal?: AbortSignal; readonly weights?: "current" | "published" },
  ): Promise<SampledSequence[]>;
  /**
   * Keeps the weights of this moment for sampling while training goes on. A call of `sample` under way goes on with the
   * new ones. Absent where sampling always takes the newest.
   */
  publishWeights?(): Promise<void>;
  /**
   * log p(tokens[t] | before) and entropy at each token, [T], 0 at first tokens. `reference`: the policy before training.
   * Entropy is absent where a service does not tell it.
   */
  logprobs(
    rows: PackedTokens,
    options: { readonly policy: "current" | "reference"; readonly temperature: number },
  ): Promise<{ logprobs: Float32Array; entropy?: Float32Array }>;
  /** Adds this batch's gradient to what has gathered since the last `optimStep`. Returns the loss's published metrics. */
  forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<Metrics>;
  /** One AdamW step on the gathered gradient, which is then cleared. Returns `actor/grad_norm` and `actor/lr`. */
  optimStep(params: OptimParams): Promise<Metrics>;
  /**
   * A whole optimiser step at once: its gradients and the step are under way before either is waited for. Returns what
   * the single calls would, in their order. Absent where nothing is gained by it.
   */
  forwardBackwardAndOptimStep?(
    calls: readonly { readonly batch: TrainBatch; readonly loss: LossSpec }[],
    params: OptimParams,
  ): Promise<Metrics[]>;
  /** Keeps the policy of this moment as the reference. Absent where the reference is the base model in any case. */
  freezeReference?(): void;
  /** Writes weights, optimiser and counters into the folder `dir` (made by the caller). */
  save(dir: string): Promise<void>;
  /** The exact inverse of `save`: training goes on bit for bit. */
  load(dir: string): Promise<void>;
  close(): void;
}
