/** OpenAI's `/v1/responses`. */
import { jsonResponse } from "../../../leaves/json.ts";
import { chatLive } from "../../live/live_reply.ts";
import type { DrawnChat } from "../../response.ts";
import { toApiError } from "../errors.ts";
import { type ApiCall, eventStream, type ServerEvent } from "../events.ts";
import { ResponseOutput } from "./output.ts";
import { type ResponseRequest, readResponseRequest } from "./request.ts";
import type { ResponseStore } from "./store.ts";

export interface ResponseCall extends ApiCall {
  readonly responses: ResponseStore;
}

export async function answerResponse(call: ResponseCall, body: unknown): Promise<Response> {
  const { responses, signal } = call;
  const read = readResponseRequest(body, (id) => responses.get(id, "previous_response_id").history);
  if (!read.request.stream) return jsonResponse(await respond(call, read, { signal }));
  let output: ResponseOutput | undefined;
  return eventStream({
    signal,
    run: async (send, inner) => {
      await respond(call, read, { signal: inner, send, onOpen: (opened) => (output = opened) });
    },
    failure: (error) => output!.fail(toApiError(error)),
  });
}

async function respond(
  { engine, responses }: ResponseCall,
  read: ResponseRequest,
  at: {
    readonly signal: AbortSignal;
    readonly send?: (event: ServerEvent) => void;
    readonly onOpen?: (output: ResponseOutput) => void;
  },
): Promise<object> {
  const { model, tokenizer } = engine;
  const output = new ResponseOutput({ ...read, id: crypto.randomUUID(), model, tokenizer }, at.send);
  at.onOpen?.(output);
  const [drawn] = await chatLive(engine, read.request, {
    signal: at.signal,
    onStart: () => output.start(),
    onUpdate: (_, update) => output.update(update),
  });
  const response = output.finish(drawn as DrawnChat);
  if (read.body.store !== false) responses.put(output.id, { response, history: [...read.history, drawn!.message] });
  return response;
}
