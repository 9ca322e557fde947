/** OpenAI's `/v1/completions`. */
import { jsonResponse } from "../../../leaves/json.ts";
import { SharedAbort } from "../../ending.ts";
import { completeLive } from "../../live/live_reply.ts";
import { INCOMPLETE, TokenText } from "../../live/token_text.ts";
import type { TextRequest } from "../../request.ts";
import { countTokens, type Drawn } from "../../response.ts";
import { errorBody } from "../errors.ts";
import { type ApiCall, eventStream } from "../events.ts";
import { type SampledTokens, type TokenLogprob, tokenLogprobs } from "../logprobs.ts";
import { usageOf } from "../usage.ts";
import { readTextRequests } from "./request.ts";

export async function answerText({ engine, signal }: ApiCall, body: unknown): Promise<Response> {
  const requests = readTextRequests(body).map((request) => forEngine(engine, request)) as TextRequests;
  const answer = new TextAnswer(engine);
  if (!requests[0].stream) return jsonResponse(await answer.whole(requests, signal));
  return eventStream({
    signal,
    run: async (send, inner) => {
      await answer.stream(requests, { signal: inner, send: (data) => send({ data }) });
      send({ data: "[DONE]" });
    },
    failure: (error) => ({ data: errorBody(error, "openai") }),
  });
}

type TextRequests = ReturnType<typeof readTextRequests>;

/**
 * Agents ask for `logprobs: 1` to get the sampled tokens' log-probs. An engine that knows no others answers that with those
 * alone; it refuses a higher number.
 */
function forEngine({ hasAlternatives = true }: ApiCall["engine"], request: TextRequest): TextRequest {
  if (hasAlternatives || request.topLogprobs !== 1) return request;
  const { topLogprobs, ...others } = request;
  return others;
}

/** Choices are numbered over all prompts: those of prompt p start at p * n. */
class TextAnswer {
  private readonly engine: ApiCall["engine"];
  private readonly id = `cmpl-${crypto.randomUUID()}`;
  private readonly created = Math.floor(Date.now() / 1000);
  /** The text of each choice so far, for the offsets of its next tokens. */
  private readonly texts = new Map<number, { readonly decoded: TokenText; length: number }>();

  constructor(engine: ApiCall["engine"]) {
    this.engine = engine;
  }

  async whole(requests: readonly TextRequest[], signal: AbortSignal): Promise<object> {
    const drawn = await together(requests, {
      signal,
      run: (request, inner) => this.engine.complete(request, { signal: inner }),
    });
    const choices = drawn.flatMap((each, p) =>
      each.map((choice, i) => {
        const request = requests[p]!;
        const { model_response: text, prompt_ids, finish_reason } = choice;
        const index = p * request.n + i;
        return {
          ...this.choice(index, { request, text, sampled: sampledOf(choice) }),
          finish_reason,
          ...(request.returnTokenIds && { ...recordFields(choice), prompt_token_ids: prompt_ids }),
        };
      }),
    );
    return this.envelope(choices, { usage: this.usage(drawn) });
  }

  async stream(
    requests: readonly TextRequest[],
    { signal, send }: { signal: AbortSignal; send: (chunk: object) => void },
  ): Promise<void> {
    const { includeUsage } = requests[0]!;
    const more = includeUsage ? { usage: null } : {};
    const streamOne = async (request: TextRequest, inner: AbortSignal, p: number) => {
      const first = p * request.n;
      const drawn = await completeLive(this.engine, request, {
        signal: inner,
        onStart: (i, { prompt_ids }) => {
          if (!request.returnTokenIds) return;
          send(
            this.envelope([{ index: first + i, text: "", finish_reason: null, prompt_token_ids: prompt_ids }], more),
          );
        },
        onUpdate: (i, { parts, ...sampled }) => {
          const text = parts.map((part) => (part.type === "call" ? "" : part.text)).join("");
          const showsTokens = request.logprobs || request.returnTokenIds;
          if (text === "" && !(showsTokens && sampled.tokens.length > 0)) return;
          send(this.envelope([this.choice(first + i, { request, text, sampled })], more));
        },
      });
      for (const [i, each] of drawn.entries()) {
        const version = request.returnTokenIds ? recordFields(each) : {};
        const { finish_reason } = each;
        send(this.envelope([{ index: first + i, text: "", finish_reason, logprobs: null, ...version }], more));
      }
      return drawn;
    };
    const drawn = await together(requests, { signal, run: streamOne });
    if (includeUsage) send(this.envelope([], { usage: this.usage(drawn) }));
  }

  private envelope(choices: readonly object[], more: object): object {
    const { id, created, engine } = this;
    return { id, object: "text_completion", created, model: engine.model, choices, ...more };
  }

  private choice(index: number, parts: { request: TextRequest; text: string; sampled: SampledTokens }): object {
    const { request, text, sampled } = parts;
    return {
      index,
      text,
      finish_reason: null,
      logprobs: request.logprobs ? this.logprobs(index, sampled) : null,
      ...(request.returnTokenIds && { token_ids: sampled.tokens }),
    };
  }

  private logprobs(index: number, sampled: SampledTokens): object {
    const { tokenizer } = this.engine;
    const tokens = tokenLogprobs(sampled, tokenizer);
    const text = this.texts.get(index) ?? { decoded: new TokenText(tokenizer), length: 0 };
    this.texts.set(index, text);
    // Tokens alone do not decode to what they add: a character may lie in several, and special ones are no text.
    const text_offset = sampled.tokens.map((token) => {
      const at = text.length;
      text.length += text.decoded.push(token).length;
      return at;
    });
    return {
      tokens: tokens.map(({ token }) => token),
      token_logprobs: tokens.map(({ logprob }) => logprob),
      // The sampled token is always one of them, as in the published API.
      top_logprobs: sampled.top_logprobs ? tokens.map((token) => byText([...token.top_logprobs, token])) : null,
      text_offset,
    };
  }

  private usage(drawn: readonly (readonly Drawn[])[]) {
    const counts = drawn.map((each) => countTokens(each, this.engine.tokenizer));
    const sum = (key: "prompt" | "completion") => counts.reduce((total, each) => total + each[key], 0);
    return usageOf({ prompt: sum("prompt"), completion: sum("completion"), reasoning: 0 });
  }
}

/** Prompts that begin together. */
const AT_ONCE = 32;

/** Answers all prompts of a request. One that fails aborts the others, because the request has no answer without it. */
async function together<T>(
  requests: readonly TextRequest[],
  options: { signal: AbortSignal; run: (request: TextRequest, signal: AbortSignal, prompt: number) => Promise<T> },
): Promise<T[]> {
  const ending = new SharedAbort(options.signal);
  const running: Promise<T>[] = [];
  try {
    for (const [p, request] of requests.entries()) {
      // A request may have thousands: others have their turn while they begin.
      if (p % AT_ONCE === AT_ONCE - 1) await new Promise((resolve) => setTimeout(resolve, 0));
      if (ending.isEnded) break;
      const answered = options.run(request, ending.signal(), p);
      answered.catch(() => ending.abort(new DOMException("Another prompt of the request failed.", "AbortError")));
      running.push(answered);
    }
    const replies = await Promise.all(running);
    options.signal.throwIfAborted();
    return replies;
  } finally {
    ending.leave();
  }
}

/**
 * Alternatives by their text, best first; by their bytes, as OpenAI writes them, where that is no whole character. The
 * likeliest of those that share a name counts.
 */
function byText(top: readonly Pick<TokenLogprob, "token" | "bytes" | "logprob">[]): Record<string, number> {
  const nameOf = ({ token, bytes }: Pick<TokenLogprob, "token" | "bytes">) =>
    token.includes(INCOMPLETE)
      ? `bytes:${bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("")}`
      : token;
  const named = new Map<string, number>();
  for (const each of top) {
    const name = nameOf(each);
    if (!named.has(name)) named.set(name, each.logprob);
  }
  return Object.fromEntries(named);
}

function sampledOf({ response_ids: tokens, logprobs, top_logprobs }: Drawn): SampledTokens {
  return { tokens, logprobs, top_logprobs };
}

function recordFields({ weight_version, id }: Drawn): object {
  return { ...(weight_version !== undefined && { weight_version }), ...(id !== undefined && { trace_id: id }) };
}
