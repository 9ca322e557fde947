/** Weights of the local engine to sample and score with, whatever is trained later. */
import type { SampledSequence, SampleRequest } from "../../contract/backend.ts";
import type { BatchOptions, EnginePolicy, PromptScores } from "../../contract/engine.ts";
import type { FrozenPolicy, LanguageModel } from "../../model/language_model.ts";
import type { TopLogprobs } from "../../model/train/top_logprobs.ts";

export class LocalPolicy implements EnginePolicy {
  readonly bytes: number;
  private readonly model: LanguageModel;
  private readonly frozen: FrozenPolicy;

  constructor(model: LanguageModel, frozen: FrozenPolicy) {
    this.model = model;
    this.frozen = frozen;
    this.bytes = frozen.bytes;
  }

  sample(requests: readonly SampleRequest[], options: BatchOptions = {}): Promise<SampledSequence[]> {
    return this.model.sample(requests, { ...options, weightVersion: 0, policy: this.frozen });
  }

  async scorePrompts(
    prompts: readonly (readonly number[])[],
    { topk }: { readonly topk: number },
  ): Promise<PromptScores[]> {
    const offsets = new Uint32Array(prompts.length + 1);
    for (const [i, { length }] of prompts.entries()) offsets[i + 1] = offsets[i]! + length;
    const rows = { tokens: Uint32Array.from(prompts.flat()), offsets };
    const { logprobs } = await this.model.logprobs(rows, { policy: this.frozen, temperature: 1 });
    const top = topk > 0 ? await this.model.top(rows, { k: topk, policy: this.frozen }) : undefined;
    return prompts.map((_, i) => {
      const range = { from: offsets[i]!, to: offsets[i + 1]! };
      const own = logprobs.slice(range.from, range.to);
      own[0] = Number.NaN;
      return { logprobs: own, ...(top && { top: promptTop(top, { ...range, topk }) }) };
    });
  }

  release(): void {
    this.frozen.release();
  }
}

/** Rows of a prompt's tokens, shifted by one: the prediction after a position concerns the next token. */
function promptTop({ tokens, logprobs }: TopLogprobs, at: { from: number; to: number; topk: number }): TopLogprobs {
  const { from, to, topk } = at;
  const rows = [from * topk, (to - 1) * topk] as const;
  return {
    tokens: Uint32Array.of(...new Uint32Array(topk), ...tokens.slice(...rows)),
    logprobs: Float32Array.of(...new Float32Array(topk).fill(Number.NaN), ...logprobs.slice(...rows)),
  };
}
