/** OpenAI's `/v1/chat/completions`. */
import { jsonResponse } from "../../../leaves/json.ts";
import type { ChatEngine } from "../../engine.ts";
import { chatLive } from "../../live/live_reply.ts";
import type { ChatRequest } from "../../request.ts";
import { errorBody } from "../errors.ts";
import { type ApiCall, eventStream } from "../events.ts";
import { readChatRequest } from "./request.ts";
import { ChatChunks, type ChatCompletionChunk, chatCompletion, type ResponseOptions } from "./response.ts";

export async function answerChat({ engine, signal }: ApiCall, body: unknown): Promise<Response> {
  const request = readChatRequest(body);
  if (!request.stream) {
    const options = answerOptions(engine, request);
    return jsonResponse(chatCompletion(await engine.chat(request, { signal }), options));
  }
  return eventStream({
    signal,
    run: async (send, inner) => {
      await streamChat(engine, request, { signal: inner, send: (data) => send({ data }) });
      send({ data: "[DONE]" });
    },
    failure: (error) => ({ data: errorBody(error, "openai") }),
  });
}

/** Sends the chunks of an answer while it is sampled. */
export async function streamChat(
  engine: ChatEngine,
  request: ChatRequest,
  { signal, send }: { readonly signal?: AbortSignal; readonly send: (chunk: ChatCompletionChunk) => void },
): Promise<void> {
  const chunks = new ChatChunks(answerOptions(engine, request));
  const drawn = await chatLive(engine, request, {
    signal,
    onStart: (index, { prompt_ids }) => send(chunks.start(index, prompt_ids)),
    onUpdate: (index, update) => chunks.update(index, update).forEach(send),
  });
  for (const [index, each] of drawn.entries()) send(chunks.end(index, each));
  if (request.includeUsage) send(chunks.usage(drawn));
}

export function answerOptions({ model, tokenizer }: ChatEngine, request: ChatRequest): ResponseOptions {
  return { id: crypto.randomUUID(), model, created: Math.floor(Date.now() / 1000), request, tokenizer };
}
