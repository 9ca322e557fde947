/** Token counts in OpenAI's form. */
import type { TokenCounts } from "../response.ts";

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  /** Details of replies with reasoning. */
  readonly completion_tokens_details?: { readonly reasoning_tokens: number };
}

export function usageOf({ prompt, completion, reasoning }: TokenCounts): Usage {
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    ...(reasoning > 0 && { completion_tokens_details: { reasoning_tokens: reasoning } }),
  };
}
