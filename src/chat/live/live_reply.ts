/** Runs a request of an engine, and tells of its replies while they are sampled. */
import type { ChatEngine, ChoiceStart, LiveListener, LiveUpdate } from "../engine.ts";
import type { ChatRequest, SamplingRequest, TextRequest } from "../request.ts";
import type { Drawn, DrawnChat } from "../response.ts";
import { LiveChoice } from "./live_choice.ts";

/** Samples the replies of a conversation. The updates of a choice, joined, are its reply. */
export function chatLive(
  engine: ChatEngine,
  request: ChatRequest,
  listener: LiveListener,
): Promise<readonly DrawnChat[]> {
  if (engine.chatLive) return engine.chatLive(request, listener);
  return drawLive(engine, request, { listener, draw: (call) => engine.chat(request, call) });
}

/** Samples the continuations of a text. */
export function completeLive(
  engine: ChatEngine,
  request: TextRequest,
  listener: LiveListener,
): Promise<readonly Drawn[]> {
  return drawLive(engine, request, { listener, draw: (call) => engine.complete(request, call) });
}

async function drawLive<D extends Drawn & Partial<Pick<DrawnChat, "message">>>(
  { tokenizer }: Pick<ChatEngine, "tokenizer">,
  { stop }: SamplingRequest,
  options: { listener: LiveListener; draw: (call: Parameters<ChatEngine["chat"]>[1]) => Promise<readonly D[]> },
): Promise<readonly D[]> {
  const { listener } = options;
  const choices = new Map<number, LiveChoice>();
  const start = (index: number, started: ChoiceStart) => {
    choices.set(index, new LiveChoice(started.parse, { stop, tokenizer }));
    listener.onStart?.(index, started);
  };
  const drawn = await options.draw({
    signal: listener.signal,
    onStart: start,
    onTokens: (index, ...sampled) => {
      const choice = choices.get(index);
      if (choice) listener.onUpdate(index, choice.push(...sampled));
    },
  });
  for (const [index, each] of drawn.entries()) {
    const { prompt_ids, message } = each;
    const choice = choices.get(index);
    if (choice) listener.onUpdate(index, choice.finish(each));
    else {
      // Known as a whole only.
      listener.onStart?.(index, { prompt_ids });
      listener.onUpdate(index, wholeUpdate(each, message));
    }
  }
  return drawn;
}

function wholeUpdate(drawn: Drawn, message: DrawnChat["message"] | undefined): LiveUpdate {
  const { response_ids: tokens, logprobs, top_logprobs, model_response } = drawn;
  const { content, reasoning_content, tool_calls = [] } = message ?? { content: model_response };
  const parts = [
    ...(reasoning_content === undefined ? [] : [{ type: "reasoning" as const, text: reasoning_content }]),
    ...(content === "" ? [] : [{ type: "content" as const, text: content }]),
    ...tool_calls.map((call) => ({ type: "call" as const, call })),
  ];
  return { parts, tokens, logprobs, ...(top_logprobs && { top_logprobs }) };
}
