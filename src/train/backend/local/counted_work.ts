/** How many operations the calls of a backend need: the tokens that each computes, and the model's shape. */
import type { PackedTokens, SampledSequence, SampleRequest } from "../../../engine/contract/backend.ts";
import { type ComputedTokens, forwardFlop, trainingFlop } from "../../../engine/model/flop.ts";
import type { LanguageModel } from "../../../engine/model/language_model.ts";

interface Counted {
  readonly flop: number;
  readonly tokens: number;
}

type CountedModel = Pick<LanguageModel, "config" | "adapter" | "trainableParameters">;

/** Prompts are computed once, however many requests share them; of a sequence all tokens but the last are. Counts sampled tokens. */
export function countSampling(
  model: CountedModel,
  requests: readonly SampleRequest[],
  sampled: readonly SampledSequence[],
): Counted {
  const prompts = [...new Map(requests.map(({ prompt_ids }) => [prompt_ids.join(), prompt_ids.length])).values()];
  const promptLengths = requests.map(({ prompt_ids }) => prompt_ids.length);
  const lengths = sampled.map(({ tokens }, i) => promptLengths[i]! + Math.max(tokens.length - 1, 0));
  const drawn = sampled.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const decoded = { tokens: sumOf(lengths) - sumOf(promptLengths), targets: drawn, lengths, known: promptLengths };
  const prefilled = { tokens: sumOf(prompts), targets: 0, lengths: prompts };
  return { flop: forward(model, decoded) + forward(model, prefilled), tokens: drawn };
}

/** @param mask tokens whose log-probs are wanted; all without it */
export function countScoring(model: CountedModel, rows: PackedTokens, mask?: Uint32Array): Counted {
  const work = packed(rows, mask);
  return { flop: forward(model, work), tokens: work.tokens };
}

export function countTraining(model: CountedModel, rows: PackedTokens, mask: Uint32Array): Counted {
  const work = packed(rows, mask);
  const adapter = model.adapter ? model.trainableParameters : undefined;
  return { flop: trainingFlop(model.config, work, adapter), tokens: work.tokens };
}

function forward(model: CountedModel, work: ComputedTokens): number {
  return forwardFlop(model.config, work, model.adapter ? model.trainableParameters : 0);
}

function packed({ tokens, offsets }: PackedTokens, mask?: Uint32Array): ComputedTokens {
  const lengths = Array.from({ length: offsets.length - 1 }, (_, i) => offsets[i + 1]! - offsets[i]!);
  const targets = mask ? mask.reduce((sum, bit) => sum + bit, 0) : tokens.length - lengths.length;
  return { tokens: tokens.length, targets, lengths };
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
