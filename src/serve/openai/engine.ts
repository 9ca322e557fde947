/** A served model behind the chat APIs: requests become conversations on its tokens. */
import { demandsOf } from "../../chat/constraint.ts";
import { type CallSettings, Conversation, choiceCall } from "../../chat/conversation.ts";
import { SharedAbort } from "../../chat/ending.ts";
import type { ChatCall, ChatEngine } from "../../chat/endpoint.ts";
import { ApiError, type ChatRequest, type SamplingRequest, type TextRequest } from "../../chat/request.ts";
import { Transcript } from "../../chat/transcript.ts";
import type { TraceRecord } from "../../engine/contract/trace.ts";
import { STREAM_SEEDS } from "../../leaves/random.ts";
import type { ServedModel } from "./served_model.ts";
import type { Serving } from "./serving.ts";

export interface ServedEngineOptions {
  readonly model: ServedModel;
  /** The model's name in answers. Default: its own; an alias has another. */
  readonly name?: string;
  /** Owner of the requests, for fair turns: a session or a key. */
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
  readonly seed: number;
}

/** An engine for one session, or for single requests. Each reply is sampled with the model's newest weights. */
export function servedEngine(
  serving: Serving,
  { model, name = model.name, owner, isSession = true, history = [] }: ServedEngineOptions,
): ChatEngine {
  const { tokenizer, texts } = serving;
  const open = () =>
    new Conversation<Settings>({
      tokenizer,
      texts,
      // Clients put calls of several conversations into one, so their ids must differ.
      toolCallPrefix: `call_${crypto.randomUUID().slice(0, 8)}`,
      plan: ({ prompt_ids, settings: { params, seed } }) => ({ params: serving.paramsFor(prompt_ids, params), seed }),
      draw: (request, { sampling }) => serving.draw(model, { request, call: { owner, signal: sampling?.signal } }),
    });
  const session = isSession ? open() : undefined;
  session?.restore(history);
  const each = async <T>(
    request: ChatRequest | TextRequest,
    call: ChatCall | undefined,
    run: (conversation: Conversation<Settings>, settings: Settings) => Promise<T>,
  ): Promise<T[]> => {
    const conversation = session ?? open();
    const seed = request.seed ?? randomSeed();
    const demands = demandsOf(request, { tokenizer, isConstrainable: true, constrainsFreeCalls: true });
    const ending = new SharedAbort(call?.signal);
    const choices = Array.from({ length: request.n }, (_, i) => ({
      params: request.params,
      stop: request.stop,
      seed: STREAM_SEEDS.servedSample(seed, i),
      demands,
      sampling: choiceCall({ ...call, signal: ending.signal() }, i),
    }));
    try {
      return await Promise.all(choices.map((settings) => run(conversation, settings)));
    } catch (error) {
      // The other choices end with their next token, because nobody gets them.
      ending.abort(error);
      throw error;
    } finally {
      ending.leave();
    }
  };
  return {
    model: name,
    tokenizer,
    chat: async (request, call) => {
      const { messages, tools, variables } = request;
      return each(request, call, (engine, settings) => engine.chat(messages, { tools, variables, settings }));
    },
    complete: async (request, call) =>
      each(request, call, (engine, settings) => engine.complete(request.prompt, settings)),
    promptIds: async ({ messages, tools, variables }) => {
      texts.check(messages);
      const transcript = new Transcript({ tokenizer: texts.tokenizer });
      return texts.run(() => transcript.prompt(messages, { tools, variables }).ids);
    },
  };
}

/** All models of a serving, for a gateway: each session has an engine of its own. */
export function servedHost(serving: Serving) {
  return {
    get models(): readonly string[] {
      return serving.names;
    },
    open(of: {
      readonly model: string;
      readonly session_id?: string;
      /** Sender of the requests. Absent: the session. */
      readonly owner?: string | undefined;
      readonly history: readonly TraceRecord[];
    }): ChatEngine {
      const { model: name, session_id, owner = session_id ?? "single requests", history } = of;
      const model = serving.model(name);
      if (!model)
        throw new ApiError(`Cannot answer for the model ${name}: it is not served.`, {
          status: 404,
          code: "model_not_found",
          param: "model",
        });
      const isSession = session_id !== undefined;
      return servedEngine(serving, { model, name, owner, isSession, history });
    },
  };
}

function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}
