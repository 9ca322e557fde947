/** A served model behind the chat APIs: requests become conversations on its tokens. */
import { checkTools, constraintOf } from "../../chat/constraint.ts";
import { type CallSettings, Conversation, choiceCall, type PlannedDraw } from "../../chat/conversation.ts";
import type { ChatCall, ChatEngine } from "../../chat/endpoint.ts";
import { ApiError, type SamplingRequest } from "../../chat/request.ts";
import type { TokenConstraint } from "../../contract/backend.ts";
import type { TraceRecord } from "../../contract/trace.ts";
import { STREAM_SEEDS } from "../../random.ts";
import type { ServedModel } from "./served_model.ts";
import type { Serving } from "./serving.ts";

export interface ServedEngineOptions {
  readonly model: ServedModel;
  /** Whose requests these are, for fair turns: a session or a key. */
  readonly owner: string;
  /**
   * Whether requests are turns of one session, so that later ones continue on the exact tokens of earlier replies. Default
   * true; false where callers that know nothing of each other share the engine.
   */
  readonly isSession?: boolean;
  /** Earlier calls of the session, oldest first. */
  readonly history?: readonly TraceRecord[];
}

interface Settings extends CallSettings {
  readonly params: SamplingRequest["params"];
  readonly draw: Omit<PlannedDraw, "params">;
}

/** An engine for one session, or for single requests. Each reply is sampled with the model's newest weights. */
export function servedEngine(
  serving: Serving,
  { model, owner, isSession = true, history = [] }: ServedEngineOptions,
): ChatEngine {
  const { tokenizer } = serving;
  const open = () =>
    new Conversation<Settings>({
      tokenizer,
      plan: ({ prompt_ids, settings: { params, draw } }) => ({
        ...draw,
        params: serving.paramsFor(prompt_ids, params),
      }),
      draw: (request, { sampling }) => serving.draw(model, { request, call: { owner, signal: sampling?.signal } }),
    });
  const session = isSession ? open() : undefined;
  for (const trace of history) session?.restore(trace);
  const each = <T>(
    request: SamplingRequest & { readonly allowed?: TokenConstraint | undefined },
    call: ChatCall | undefined,
    run: (conversation: Conversation<Settings>, settings: Settings) => Promise<T>,
  ): Promise<T[]> => {
    const conversation = session ?? open();
    const seed = request.seed ?? randomSeed();
    const choices = Array.from({ length: request.n }, (_, i) => ({
      params: request.params,
      stop: request.stop,
      draw: {
        seed: STREAM_SEEDS.servedSample(seed, i),
        allowed: request.allowed,
        top_logprobs: request.topLogprobs,
      },
      sampling: choiceCall(call, i),
    }));
    return Promise.all(choices.map((settings) => run(conversation, settings)));
  };
  return {
    model: model.name,
    tokenizer,
    chat: (request, call) => {
      const { messages, tools, variables } = request;
      checkTools(request, tokenizer);
      const allowed = constraintOf(request);
      return each({ ...request, allowed }, call, (it, settings) => it.chat(messages, { tools, variables, settings }));
    },
    complete: (request, call) => each(request, call, (it, settings) => it.complete(request.prompt, settings)),
  };
}

/** All models of a serving, for a gateway: each session has an engine of its own. */
export function servedHost(serving: Serving) {
  return {
    get models(): readonly string[] {
      return serving.models.map(({ name }) => name);
    },
    open(of: {
      readonly model: string;
      readonly session_id?: string;
      readonly history: readonly TraceRecord[];
    }): ChatEngine {
      const { session_id, history } = of;
      const model = serving.model(of.model);
      if (!model)
        throw new ApiError(`Cannot answer for the model ${of.model}: it is not served.`, {
          status: 404,
          code: "model_not_found",
          param: "model",
        });
      const isSession = session_id !== undefined;
      return servedEngine(serving, { model, owner: session_id ?? "single requests", isSession, history });
    },
  };
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}
