/** Log-probabilities in OpenAI's form. */
import type { TopLogprob } from "../../engine/contract/backend.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";

export interface TokenLogprob {
  readonly token: string;
  readonly logprob: number;
  /**
   * The token's own bytes, UTF-8: a character's may lie in several tokens, whose `token` is then U+FFFD. Those of `token` for
   * special tokens, and where the tokenizer knows no bytes of single tokens.
   */
  readonly bytes: readonly number[];
  readonly top_logprobs: readonly Omit<TokenLogprob, "top_logprobs">[];
}

export interface SampledTokens {
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  readonly top_logprobs?: readonly (readonly TopLogprob[])[] | undefined;
}

/** One entry a token, in order. */
export function tokenLogprobs(
  { tokens, logprobs, top_logprobs }: SampledTokens,
  tokenizer: Pick<Tokenizer, "decode" | "tokenBytes">,
): TokenLogprob[] {
  const encoder = new TextEncoder();
  const entry = (id: number, logprob: number) => {
    const token = tokenizer.decode([id], { skipSpecialTokens: false });
    return { token, logprob, bytes: [...(tokenizer.tokenBytes?.(id) ?? encoder.encode(token))] };
  };
  return tokens.map((id, i) => ({
    ...entry(id, logprobs[i]!),
    top_logprobs: (top_logprobs?.[i] ?? []).map((top) => entry(top.token, top.logprob)),
  }));
}
