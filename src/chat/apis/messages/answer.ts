/** Anthropic's `/v1/messages` and `/v1/messages/count_tokens`. */

import { UnsupportedError } from "../../../leaves/errors.ts";
import { jsonResponse } from "../../../leaves/json.ts";
import { chatLive } from "../../live/live_reply.ts";
import type { ChatRequest } from "../../request.ts";
import type { DrawnChat } from "../../response.ts";
import { errorBody } from "../errors.ts";
import { type ApiCall, eventStream, type ServerEvent } from "../events.ts";
import { MessageOutput } from "./output.ts";
import { readCountRequest, readMessagesRequest } from "./request.ts";

export async function answerMessages(call: ApiCall, body: unknown): Promise<Response> {
  const request = readMessagesRequest(body);
  const { signal } = call;
  if (!request.stream) return jsonResponse(await respond(call, request, { signal }));
  return eventStream({
    signal,
    run: async (send, inner) => {
      await respond(call, request, { signal: inner, send });
    },
    failure: (error) => ({ event: "error", data: errorBody(error, "anthropic") }),
  });
}

async function respond(
  { engine }: ApiCall,
  request: ChatRequest,
  at: { readonly signal: AbortSignal; readonly send?: (event: ServerEvent) => void },
): Promise<object> {
  const { model, tokenizer } = engine;
  const output = new MessageOutput({ request, id: crypto.randomUUID(), model, tokenizer }, at.send);
  const [drawn] = await chatLive(engine, request, {
    signal: at.signal,
    onStart: (_, { prompt_ids }) => output.start(prompt_ids.length),
    onUpdate: (_, update) => output.update(update),
  });
  return output.finish(drawn as DrawnChat);
}

export async function answerCount({ engine }: ApiCall, body: unknown): Promise<Response> {
  const request = readCountRequest(body);
  const ids = engine.promptIds ? await engine.promptIds(request) : renderedIds(engine, request);
  return jsonResponse({ input_tokens: ids.length });
}

function renderedIds({ tokenizer }: ApiCall["engine"], { messages, tools, variables }: ChatRequest): readonly number[] {
  if (!tokenizer.formatChat)
    throw new UnsupportedError("Cannot count the tokens of a conversation: the tokenizer has no chat template.", {
      part: "tokenizer",
      capability: "chat",
    });
  const text = tokenizer.formatChat(messages, { tools, variables });
  return tokenizer.encode(text, { addSpecialTokens: false });
}
