/** OpenAI's API of an agent in a rollout: a request is a call of the agent, with the run's sampling parameters. */
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

/** Sampling options of one call. */
export interface CallOptions {
  readonly params?: Partial<SamplingParams> | undefined;
  /** The reply ends before the first of these. */
  readonly stop?: readonly string[];
}

/** The part of an agent that the API uses. */
export interface Callable {
  chat(messages: readonly ChatMessage[], options: ChatCallOptions): Promise<ChatReply>;
  completeText(prompt: string | readonly number[], options: CallOptions): Promise<Completion>;
}

/** The part of the attempt that the API uses. */
export interface ApiContext {
  readonly backend: Pick<Backend, "model">;
  readonly tokenizer: Tokenizer;
  /** The run's sampling parameters. */
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
  const times = <T>({ n }: SamplingRequest, call: () => Promise<T>) => Promise.all(Array.from({ length: n }, call));
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
    "Cannot use tools: the model's chat template has none, or writes tool calls in a format that grpu cannot read. Use a template with Hermes or Llama 3 tool calls.",
    { param: "tools", code: "unsupported_parameter" },
  );
}

/** An agent behind HTTP sees a prompt that is too long as a 400; the attempt records the reason as well. */
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

/** The run's sampling parameters win: those in an agent's code were chosen for another model. */
function boundParams({ params }: SamplingRequest, { params: own, warn }: ApiContext): Partial<SamplingParams> {
  for (const name of ["temperature", "top_p", "top_k"] as const) {
    const asked = params[name];
    if (asked === undefined || asked === own[name]) continue;
    warn?.(`An agent requests ${name}=${asked}; the run samples with ${name}=${own[name]} (rllm.rollout).`);
  }
  return params.max_tokens === undefined ? {} : { max_tokens: Math.min(params.max_tokens, own.max_tokens) };
}
