/** OpenAI's API on an agent of a rollout: its requests are the agent's own calls, sampled as the run says. */

import {
  type ChatClient,
  type ChatEngine,
  createClient,
  createFetch,
  type FetchFunction,
} from "../../chat/endpoint.ts";
import { toolFormatOf } from "../../chat/reply.ts";
import { ApiError, type SamplingRequest } from "../../chat/request.ts";
import type { Backend, SamplingParams } from "../../contract/backend.ts";
import type { ChatMessage, Tokenizer } from "../../contract/text.ts";
import type { TerminationReason } from "../../data/types.ts";
import { type ChatCallOptions, type ChatReply, type Completion, Termination } from "../../task/rollout.ts";

/** How one call is sampled. */
export interface CallOptions {
  readonly params?: Partial<SamplingParams> | undefined;
  /** The reply ends where one of these begins. */
  readonly stop?: readonly string[];
}

/** What the API needs of an agent. */
export interface Callable {
  chat(messages: readonly ChatMessage[], options: ChatCallOptions): Promise<ChatReply>;
  completeText(prompt: string | readonly number[], options: CallOptions): Promise<Completion>;
}

/** What it needs of the attempt. */
export interface ApiContext {
  readonly backend: Pick<Backend, "model">;
  readonly tokenizer: Tokenizer;
  /** Of the run. */
  readonly params: SamplingParams;
  readonly warn?: ((message: string) => void) | undefined;
  /** Set when a request is refused for a reason that ends the episode. */
  refused: TerminationReason | undefined;
}

export function apiOf(agent: Callable, attempt: ApiContext): { client: ChatClient; fetch: FetchFunction } {
  const engine = engineOf(agent, attempt);
  return { client: createClient(engine), fetch: createFetch(noting(engine, attempt)) };
}

function engineOf(agent: Callable, attempt: ApiContext): ChatEngine {
  const { tokenizer } = attempt;
  const options = (request: SamplingRequest) => ({
    params: boundParams(request, attempt),
    stop: request.stop,
  });
  const times = <T>({ n }: SamplingRequest, call: () => Promise<T>) =>
    Promise.all(Array.from({ length: n }, call));
  return {
    model: attempt.backend.model.name,
    tokenizer,
    chat: (request) => {
      const { messages, tools, variables } = request;
      if (tools && !toolFormatOf(tokenizer.chatTemplate ?? "")) throw noTools();
      return times(request, () => agent.chat(messages, { tools, variables, ...options(request) }));
    },
    complete: (request) => times(request, () => agent.completeText(request.prompt, options(request))),
  };
}

function noTools(): ApiError {
  return new ApiError(
    "Cannot use tools as the model's chat template has none, or writes their calls in a way that is not read here",
    { param: "tools", code: "unsupported_parameter" },
  );
}

/** A prompt that is too long is a 400 for an agent behind HTTP; the attempt learns of it beside that. */
function noting(engine: ChatEngine, attempt: ApiContext): ChatEngine {
  const note = async <T>(run: () => Promise<T>): Promise<T> => {
    try {
      return await run();
    } catch (error) {
      if (!(error instanceof Termination)) throw error;
      attempt.refused = error.reason;
      throw new ApiError(error.message, { code: "context_length_exceeded", param: "messages" });
    }
  };
  return {
    ...engine,
    chat: (request) => note(async () => engine.chat(request)),
    complete: (request) => note(async () => engine.complete(request)),
  };
}

/** The run decides how its policy is sampled: what an agent's code asks for was meant for another model. */
function boundParams(
  { params }: SamplingRequest,
  { params: own, warn }: ApiContext,
): Partial<SamplingParams> {
  for (const name of ["temperature", "top_p", "top_k"] as const) {
    const asked = params[name];
    if (asked === undefined || asked === own[name]) continue;
    warn?.(`An agent asks for ${name}=${asked}; the run samples with ${name}=${own[name]} (rllm.rollout).`);
  }
  return params.max_tokens === undefined ? {} : { max_tokens: Math.min(params.max_tokens, own.max_tokens) };
}
