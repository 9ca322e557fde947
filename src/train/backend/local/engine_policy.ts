/** Weights of the local engine to sample and score with, whatever is trained later. */
import type { SampledSequence } from "../../../engine/contract/backend.ts";
import type {
  BatchOptions,
  EnginePolicy,
  PolicyRequest,
  PromptDraws,
  PromptScores,
  PromptTargets,
  ScoreOptions,
} from "../../../engine/contract/engine.ts";
import type { DrawRequest } from "../../../engine/model/generate/sequence.ts";
import type { FrozenPolicy, LanguageModel } from "../../../engine/model/language_model.ts";
import type { TopLogprobs } from "../../../engine/model/train/top_logprobs.ts";

export class LocalPolicy implements EnginePolicy {
  readonly bytes: number;
  readonly mostMixed: number | undefined;
  private readonly model: LanguageModel;
  private readonly frozen: FrozenPolicy;

  constructor(model: LanguageModel, frozen: FrozenPolicy) {
    this.model = model;
    this.frozen = frozen;
    this.bytes = frozen.bytes;
    this.mostMixed = frozen.mostMixed;
  }

  mixes(other: EnginePolicy): boolean {
    const canMix = this.frozen.mostMixed !== undefined && other.mostMixed !== undefined;
    return canMix && other instanceof LocalPolicy && this.model.mixes(other.model);
  }

  sample(requests: readonly PolicyRequest[], { more, ...options }: BatchOptions = {}): Promise<SampledSequence[]> {
    return this.model.sample(requests.map(LocalPolicy.drawOf), {
      ...options,
      more: more && ((start) => more((some) => start(some.map(LocalPolicy.drawOf)))),
      weightVersion: 0,
      policy: this.frozen,
    });
  }

  private static drawOf({ policy, ...request }: PolicyRequest): DrawRequest {
    return policy instanceof LocalPolicy ? { ...request, policy: policy.frozen } : request;
  }

  async scorePrompts(
    prompts: readonly (readonly number[])[],
    { topk, own: scoresPrompt = true, targets = [], draws = [] }: ScoreOptions,
  ): Promise<PromptScores[]> {
    const offsets = new Uint32Array(prompts.length + 1);
    for (const [i, { length }] of prompts.entries()) offsets[i + 1] = offsets[i]! + length;
    const rows = { tokens: Uint32Array.from(prompts.flat()), offsets };
    const cells = prompts.map((prompt, i) => cellsOf(prompt, { scoresPrompt, targets: targets[i] }));
    // A token is scored after the one before it.
    const positions = cells.flatMap((some, i) => some.map(({ at }) => offsets[i]! + at - 1));
    const wanted = {
      targets: Uint32Array.from(cells.flat(), ({ token }) => token),
      positions: Uint32Array.from(positions),
    };
    const { logprobs } = await this.model.score({ ...rows, ...wanted }, { policy: this.frozen, temperature: 1 });
    const top = topk > 0 ? await this.model.top(rows, { k: topk, policy: this.frozen }) : undefined;
    const drawn: (PromptScores["draws"] | undefined)[] = [];
    for (const [i, prompt] of prompts.entries()) drawn.push(await this.draw(prompt, draws[i]));
    let first = 0;
    return prompts.map((_, i) => {
      const range = { from: offsets[i]!, to: offsets[i + 1]! };
      const values = logprobs.subarray(first, first + cells[i]!.length);
      first += values.length;
      const scores = scoresOf(cells[i]!, { values, length: range.to - range.from, targets: targets[i] });
      const more = drawn[i];
      return { ...scores, ...(top && { top: promptTop(top, { ...range, topk }) }), ...(more && { draws: more }) };
    });
  }

  /** Draws the tokens after the last one, which stand at no place of the prompt. */
  private async draw(prompt: readonly number[], draws: PromptDraws | undefined): Promise<PromptScores["draws"]> {
    if (!draws) return undefined;
    const end = (prompt.length - 1) * draws.k;
    const drawn = await this.model.draws({ ...draws, tokens: Uint32Array.from(prompt), policy: this.frozen });
    return { tokens: drawn.tokens.subarray(0, end), logprobs: drawn.logprobs.subarray(0, end) };
  }

  release(): void {
    this.frozen.release();
  }
}

/** A token to score at a place of a prompt: the prompt's own, or one of its targets. */
interface Cell {
  readonly at: number;
  readonly token: number;
  /** Absent for the prompt's own token. */
  readonly target?: number;
}

/** Returns the cells in the order of their places. */
function cellsOf(
  prompt: readonly number[],
  { scoresPrompt, targets }: { scoresPrompt: boolean; targets: PromptTargets | undefined },
): Cell[] {
  const cells: Cell[] = [];
  let target = 0;
  for (let at = 1; at < prompt.length; at++) {
    if (scoresPrompt) cells.push({ at, token: prompt[at]! });
    for (; targets?.positions[target] === at; target++) cells.push({ at, token: targets.tokens[target]!, target });
  }
  return cells;
}

function scoresOf(
  cells: readonly Cell[],
  of: { values: Float32Array; length: number; targets: PromptTargets | undefined },
): PromptScores {
  const logprobs = new Float32Array(of.length).fill(Number.NaN);
  const targets = new Float32Array(of.targets?.tokens.length ?? 0);
  for (const [i, { at, target }] of cells.entries())
    if (target === undefined) logprobs[at] = of.values[i]!;
    else targets[target] = of.values[i]!;
  return { logprobs, ...(of.targets && { targets }) };
}

/** Rows of a prompt's tokens, shifted by one: the prediction after a position concerns the next token. */
function promptTop({ tokens, logprobs }: TopLogprobs, at: { from: number; to: number; topk: number }): TopLogprobs {
  const { from, to, topk } = at;
  const rows = [from * topk, (to - 1) * topk] as const;
  const top = { tokens: new Uint32Array((to - from) * topk), logprobs: new Float32Array((to - from) * topk) };
  top.logprobs.fill(Number.NaN, 0, topk);
  top.tokens.set(tokens.subarray(...rows), topk);
  top.logprobs.set(logprobs.subarray(...rows), topk);
  return top;
}
