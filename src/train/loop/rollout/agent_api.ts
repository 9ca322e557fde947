/** OpenAI's API of an agent in a rollout: a request is a call of the agent, with the run's sampling parameters. */

import { demandsOf } from "../../../chat/constraint.ts";
import { type CallSettings, choiceCall } from "../../../chat/conversation.ts";
import { type ChatClient, createClient, createFetch, type FetchFunction } from "../../../chat/endpoint.ts";
import type { ChatCall, ChatEngine } from "../../../chat/engine.ts";
import { ApiError, type ChatRequest, type SamplingRequest, type TextRequest } from "../../../chat/request.ts";
import type { Backend, SamplingParams } from "../../../engine/contract/backend.ts";
import type { ChatMessage, Tokenizer } from "../../../engine/contract/text.ts";
import type { TerminationReason } from "../../data/types.ts";
import {
  type AttemptPlace,
  type ChatCallOptions,
  type ChatReply,
  type Completion,
  Termination,
} from "../../task/rollout.ts";

/** Sampling options of one call. */
export interface CallOptions extends CallSettings {
  readonly params?: Partial<SamplingParams> | undefined;
}

/** The part of an agent that the API uses. */
export interface CallableAgent {
  chatOnce(messages: readonly ChatMessage[], options: ChatCallOptions & CallOptions): Promise<ChatReply>;
  completeText(prompt: string | readonly number[], options: CallOptions): Promise<Completion>;
}

/** The part of the attempt that the API uses. */
export interface ApiContext {
  readonly backend: Pick<Backend, "model" | "isConstrainable">;
  readonly tokenizer: Tokenizer;
  /** The run's sampling parameters; of a greedy attempt those that override them. */
  readonly params: SamplingParams;
  readonly place?: Pick<AttemptPlace, "is_greedy">;
  readonly warn?: ((message: string) => void) | undefined;
  /** Set when a request is refused for a reason that ends the episode. */
  refused: TerminationReason | undefined;
}

/** An agent's API in three forms: a client object, a `fetch`, and the engine behind it. */
export interface AgentApi {
  readonly client: ChatClient;
  readonly fetch: FetchFunction;
  readonly engine: ChatEngine;
}

export function apiOf(agent: CallableAgent, attempt: ApiContext): AgentApi {
  const agentEngine = engineOf(agent, attempt);
  const engine = noting(agentEngine, attempt);
  return { client: createClient(agentEngine), fetch: createFetch(engine), engine };
}

function engineOf(agent: CallableAgent, attempt: ApiContext): ChatEngine {
  const { tokenizer } = attempt;
  const each = <T>(
    request: ChatRequest | TextRequest,
    call: ChatCall | undefined,
    run: (options: { params: Partial<SamplingParams> } & CallOptions) => Promise<T>,
  ): Promise<T[]> => {
    const params = boundParams(request, attempt);
    const isConstrainable = attempt.backend.isConstrainable ?? false;
    const demands = demandsOf(request, { tokenizer, isConstrainable });
    const { stop } = request;
    const choice = (_: unknown, i: number) => run({ params, stop, demands, sampling: choiceCall(call, i) });
    return Promise.all(Array.from({ length: request.n }, choice));
  };
  return {
    model: attempt.backend.model.name,
    tokenizer,
    hasAlternatives: attempt.backend.isConstrainable ?? false,
    chat: async (request, call) => {
      const { messages, tools, variables } = request;
      return each(request, call, (options) => agent.chatOnce(messages, { tools, variables, ...options }));
    },
    complete: async (request, call) => each(request, call, (options) => agent.completeText(request.prompt, options)),
  };
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
    chat: (request, call) => note(async () => engine.chat(request, call)),
    complete: (request, call) => note(async () => engine.complete(request, call)),
  };
}

/** The run's sampling parameters win: those in an agent's code were chosen for another model. */
function boundParams(
  { params }: SamplingRequest,
  { params: agentParams, place, warn }: ApiContext,
): Partial<SamplingParams> {
  for (const name of ["temperature", "top_p", "top_k"] as const) {
    const asked = params[name];
    if (asked === undefined || asked === agentParams[name] || place?.is_greedy) continue;
    warn?.(`An agent requests ${name}=${asked}; the run samples with ${name}=${agentParams[name]} (rllm.rollout).`);
  }
  const { max_tokens, stop_token_ids } = params;
  return {
    ...(max_tokens !== undefined && { max_tokens: Math.min(max_tokens, agentParams.max_tokens) }),
    ...(stop_token_ids && { stop_token_ids: [...new Set([...agentParams.stop_token_ids, ...stop_token_ids])] }),
  };
}
