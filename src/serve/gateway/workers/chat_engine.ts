/**
 * A worker's chat completions as an engine: the other chat APIs of a session are answered from it, because only chat
 * completions report the tokens that make a trace.
 */
import type { ChatEngine, LiveListener, LivePart } from "../../../chat/engine.ts";
import type { AssistantMessage } from "../../../chat/reply.ts";
import { ApiError, type ChatRequest } from "../../../chat/request.ts";
import type { DrawnChat } from "../../../chat/response.ts";
import type { ToolCall } from "../../../engine/contract/text.ts";
import type { JsonBody } from "../../../leaves/http/json_body.ts";
import { readReplyJson } from "../../../leaves/read_reply.ts";
import { chatBodyOf } from "./chat_body.ts";
import { eventsIn } from "./event_lines.ts";
import type { HowItEnded } from "./forward.ts";
import { Gathered } from "./gathered.ts";
import { NamedTokens } from "./named_tokens.ts";
import { brokenOff, type WorkerAnswer } from "./send.ts";
import { errorIn, workerError } from "./worker_error.ts";

export interface WorkerEngineOptions {
  /** Model as the client named it. */
  readonly model: string | undefined;
  /** Sends a body to `/v1/chat/completions`. */
  readonly ask: (body: JsonBody, signal: AbortSignal | undefined) => Promise<WorkerAnswer>;
  /** Takes what was sampled for a body, also by a call that broke off. */
  readonly record: (body: JsonBody, sampled: Gathered, how: HowItEnded) => Promise<void>;
}

export function workerChatEngine(options: WorkerEngineOptions): ChatEngine {
  const tokenizer = new NamedTokens();
  const chatLive = (request: ChatRequest, listener: LiveListener) =>
    replied(request, { ...options, tokenizer, listener });
  return {
    model: options.model ?? "",
    tokenizer,
    chatLive,
    chat: (request, call) => chatLive(request, { signal: call?.signal, onUpdate: () => {} }),
    complete: () => {
      throw new Error("Cannot complete a text: workers do that themselves.");
    },
  };
}

interface Replying extends WorkerEngineOptions {
  readonly tokenizer: NamedTokens;
  readonly listener: LiveListener;
}

async function replied(request: ChatRequest, context: Replying): Promise<readonly DrawnChat[]> {
  const { signal } = context.listener;
  const body = chatBodyOf(request, context.model);
  const { worker, response } = await context.ask(body, signal);
  const sampled = new Gathered();
  let brokeOff: HowItEnded["brokeOff"] = "error";
  try {
    if (!response.ok) throw await workerError(response);
    await follow(response, { sampled, ...context });
    if (!sampled.isWhole) throw brokenOff(worker);
    brokeOff = undefined;
    return [drawnOf(sampled)];
  } catch (error) {
    if (signal?.aborted) brokeOff = "abort";
    signal?.throwIfAborted();
    throw error instanceof ApiError ? error : brokenOff(worker, error);
  } finally {
    worker.release();
    if (!sampled.isEmpty) await context.record(body, sampled, brokeOff === undefined ? {} : { brokeOff });
  }
}

/** Passes on what arrives. A worker that does not stream answers with one object. */
async function follow(response: Response, context: Replying & { readonly sampled: Gathered }): Promise<void> {
  const { sampled, listener, tokenizer } = context;
  const live = new LiveParts();
  const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
  const events = isStream && response.body ? eventsIn(response.body) : [(await readReplyJson(response)) as JsonBody];
  let isStarted = false;
  for await (const event of events) {
    if (event.error) throw errorIn(event);
    sampled.add(event);
    tokenizer.learn(event);
    if (!isStarted) listener.onStart?.(0, { prompt_ids: sampled.promptIds });
    isStarted = true;
    const parts = live.push(event);
    const newTokens = sampled.takeNew(0);
    if (parts.length > 0 || newTokens.tokens.length > 0) listener.onUpdate(0, { parts, ...newTokens });
  }
  const parts = live.end();
  if (parts.length > 0) listener.onUpdate(0, { parts, tokens: [], logprobs: [] });
}

function drawnOf(sampled: Gathered): DrawnChat {
  const [{ message, tokens, logprobs, finish_reason, stop }] = sampled.choices() as [
    ReturnType<Gathered["choices"]>[0],
  ];
  return {
    prompt_ids: sampled.promptIds,
    response_ids: tokens,
    logprobs,
    finish_reason: finish_reason === "length" ? "length" : "stop",
    model_response: String(message.content),
    message: message as AssistantMessage,
    counts: sampled.counts(0),
    ...(stop !== undefined && { stop }),
    ...(sampled.weightVersion !== undefined && { weight_version: sampled.weightVersion }),
  };
}

/** The parts of the first choice: text as it arrives, a call of a tool when it is whole. */
class LiveParts {
  private readonly gathered = new Gathered();
  /** Calls that were passed on. */
  private sent = 0;

  push(event: JsonBody): LivePart[] {
    const [choice] = ((event.choices ?? []) as JsonBody[]).filter(({ index = 0 }) => index === 0);
    if (!choice) return [];
    this.gathered.add({ choices: [choice] });
    const { content, reasoning_content, reasoning } = (choice.message ?? choice.delta ?? {}) as JsonBody;
    const thought = reasoning_content ?? reasoning;
    return [
      ...(typeof thought === "string" && thought !== "" ? [{ type: "reasoning" as const, text: thought }] : []),
      ...(typeof content === "string" && content !== "" ? [{ type: "content" as const, text: content }] : []),
      // The last one may still grow.
      ...this.calls(this.known().length - 1),
    ];
  }

  end(): LivePart[] {
    return this.calls(this.known().length);
  }

  private known(): readonly ToolCall[] {
    return (this.gathered.choices()[0]?.message.tool_calls ?? []) as readonly ToolCall[];
  }

  private calls(until: number): LivePart[] {
    const whole = this.known().slice(this.sent, Math.max(until, this.sent));
    this.sent += whole.length;
    return whole.map((call) => ({ type: "call", call }));
  }
}
