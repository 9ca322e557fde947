/** The largest work of a run, for which its memory is planned. */
import type { LossSpec, SampleRequest, TrainBatch } from "../../../../engine/contract/backend.ts";
import { RECORDED_TOP } from "../../../../engine/contract/engine.ts";
import { isStable } from "../../stable/stable_rows.ts";

/** How much a run samples and trains on at a time, at most. */
export interface RunShape {
  /** Distinct prompts that a batch trains on, and sequences for each. */
  readonly prompts: number;
  readonly groupSize: number;
  /** Sequences that are sampled at a time, where they are more than a batch, as in validation. */
  readonly sampled?: number | undefined;
  /** Longest prompt and longest reply, tokens. */
  readonly promptTokens: number;
  readonly replyTokens: number;
  /** False where a run only samples and scores: no gradients, no moments. */
  readonly isTrained: boolean;
  /** Whether log-probs of a reference policy are computed: a copy of the weights where all of them train. */
  readonly usesReference: boolean;
  /** Whether sampling goes on during training, from a published copy of the policy. */
  readonly overlaps: boolean;
  readonly loss: LossSpec;
  /** A loss over the k likeliest tokens of a teacher, beside `loss` or in its place. */
  readonly topk?: { readonly loss: LossSpec; readonly k: number; readonly isAlone: boolean } | undefined;
}

const PLAIN_LOSS: LossSpec = {
  name: "vanilla",
  loss_agg_mode: "token-mean",
  settings: {},
  entropy_coeff: 0,
  temperature: 1,
};

/** Shape of a run for which a model is opened where nothing says more: eight prompts, eight replies of 512 tokens each. */
export const DEFAULT_SHAPE: RunShape = {
  prompts: 8,
  groupSize: 8,
  promptTokens: 512,
  replyTokens: 512,
  isTrained: true,
  usesReference: false,
  overlaps: false,
  loss: PLAIN_LOSS,
};

/** Longest sequence, tokens, within a model's context. */
export function longestRunSequence({ promptTokens, replyTokens }: RunShape, contextLength: number): number {
  return Math.max(Math.min(promptTokens + replyTokens, contextLength), 2);
}

/** Tokens of a whole batch in which every sequence is the longest. */
export function batchTokens({ prompts, groupSize }: RunShape, longest: number): number {
  return prompts * groupSize * longest;
}

/**
 * `total` tokens in sequences of the longest length, the last one shorter.
 * @param of.context tokens of each sequence that are not trained on, at least its first: the prompt.
 */
export function fullBatch(
  total: number,
  { longest, loss, context = 1 }: { longest: number; loss: LossSpec; context?: number },
): TrainBatch {
  const offsets = [0];
  while (offsets.at(-1)! < total) offsets.push(Math.min(offsets.at(-1)! + longest, total));
  const zeros = () => new Float32Array(total);
  const mask = new Uint32Array(total).fill(1);
  // One target is left, because a batch without any is refused.
  for (const start of offsets.slice(0, -1)) mask.fill(0, start, Math.min(start + context, total - 1));
  return {
    tokens: new Uint32Array(total),
    offsets: Uint32Array.from(offsets),
    mask,
    advantages: { level: "row", values: new Float32Array(offsets.length - 1) },
    oldLogprobs: zeros(),
    rolloutIsWeights: zeros(),
    ...(loss.kl && { refLogprobs: zeros() }),
  };
}

/** The first `count` sequences of the run's groups: prompts and replies of the longest length, cut after two tokens. */
export function fullRequests(
  count: number,
  at: { shape: RunShape; longest: number; vocabSize: number },
): SampleRequest[] {
  const { shape, longest, vocabSize } = at;
  const promptTokens = Math.max(Math.min(shape.promptTokens, longest - 1), 1);
  return Array.from({ length: count }, (_, i) => {
    const group = Math.floor(i / shape.groupSize);
    // Prompts differ by group: those that are equal share their work.
    const prompt_ids = Array.from({ length: promptTokens }, (_, t) => Math.floor(group / vocabSize ** t) % vocabSize);
    return {
      prompt_ids,
      params: { temperature: 1, top_p: 1, top_k: -1, max_tokens: longest - promptTokens, stop_token_ids: [] },
      seed: i,
      // One chunk of steps holds as much as a whole reply: memory is taken for the longest at the start.
      ends: (tokens) => tokens.length > 1,
      ...(isStable(shape.loss) && { top_logprobs: RECORDED_TOP }),
    };
  });
}
