/** Bodies of OpenAI's `/v1/completions`. */
import { z } from "zod";
import { ApiError, type TextRequest } from "../../request.ts";
import { checkBody, optionalCount, SAMPLING, samplingRequest } from "../read.ts";

/** Each sampled token is compared with all of them. */
const MOST_STOP_TOKENS = 64;
const MOST_PROMPTS = 2048;

/** Checked by hand: a prompt may have a million ids. */
const TOKENS = z.custom<number[]>((value) => Array.isArray(value) && value.length > 0 && value.every(isTokenId));

function isTokenId(value: unknown): boolean {
  return Number.isInteger(value) && (value as number) >= 0;
}

export const TEXT = z.strictObject({
  ...SAMPLING,
  prompt: z.union(
    [z.string(), TOKENS, z.array(z.string()).min(1).max(MOST_PROMPTS), z.array(TOKENS).min(1).max(MOST_PROMPTS)],
    "it must be one text, or its token ids, or a list of either",
  ),
  logprobs: z.number().int().min(0).max(20).nullish(),
  echo: z.literal(false, "only false is supported").nullish(),
  best_of: optionalCount,
  // vLLM's extension, which a gateway that renders prompts itself sends with the end tokens of its own tokenizer.
  stop_token_ids: z.array(z.number().int().min(0)).max(MOST_STOP_TOKENS).nullish(),
  suffix: z.literal("", "only an empty one is supported").nullish(),
});

/** One request for each prompt of the body. @throws {ApiError} for a parameter that is wrong, or that has no effect here */
export function readTextRequests(body: unknown): [TextRequest, ...TextRequest[]] {
  const read = checkBody(TEXT, body);
  const { prompt, logprobs, stop_token_ids, best_of, n } = read;
  if (best_of != null && best_of !== (n ?? 1))
    throw new ApiError(`Cannot use best_of: only ${n ?? 1} is supported (${best_of}).`, { param: "best_of" });
  const sampling = samplingRequest(read);
  const common = {
    ...sampling,
    params: { ...sampling.params, ...(stop_token_ids && { stop_token_ids }) },
    logprobs: typeof logprobs === "number",
    ...(logprobs && { topLogprobs: logprobs }),
  };
  const promptList = prompts(prompt);
  if (promptList.length > 1 && promptList.length * common.n > MOST_PROMPTS)
    throw new ApiError(
      `Cannot use n: ${promptList.length} prompts of ${common.n} choices each are more than ${MOST_PROMPTS} in all. Send fewer at once.`,
      { param: "n" },
    );
  return promptList.map((each) => ({ ...common, prompt: each })) as [TextRequest, ...TextRequest[]];
}

/** The request of a body with one prompt. @throws {ApiError} also for several prompts */
export function readTextRequest(body: unknown): TextRequest {
  const [request, ...others] = readTextRequests(body);
  if (others.length === 0) return request;
  throw new ApiError("Cannot use prompt: it must be one text, or its token ids.", { param: "prompt" });
}

function prompts(prompt: z.infer<typeof TEXT>["prompt"]): readonly TextRequest["prompt"][] {
  const isOne = typeof prompt === "string" || typeof prompt[0] === "number";
  return isOne ? [prompt as TextRequest["prompt"]] : (prompt as readonly TextRequest["prompt"][]);
}
