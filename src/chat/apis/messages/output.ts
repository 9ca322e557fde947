/** A message of Anthropic's API, and the events that tell of it while it is sampled. */

import type { Tokenizer } from "../../../engine/contract/text.ts";
import { parseJson } from "../../../leaves/json.ts";
import type { LivePart, LiveUpdate } from "../../engine.ts";
import type { ChatRequest } from "../../request.ts";
import { countTokens, type DrawnChat, matchedStop } from "../../response.ts";
import type { ServerEvent } from "../events.ts";

type Block =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "thinking"; readonly thinking: string; readonly signature: string }
  | { readonly type: "tool_use"; readonly id: string; readonly name: string; readonly input: unknown };

export interface MessageOptions {
  readonly request: ChatRequest;
  /** Id without a prefix. */
  readonly id: string;
  readonly model: string;
  readonly tokenizer: Tokenizer;
}

/** Collects a reply into a message's blocks. */
export class MessageOutput {
  private readonly options: MessageOptions;
  private readonly send: (event: ServerEvent) => void;
  private readonly blocks: Block[] = [];
  private open: { readonly type: "text" | "thinking"; text: string } | undefined;

  /** @param send takes the events; absent: only the message is wanted */
  constructor(options: MessageOptions, send: (event: ServerEvent) => void = () => {}) {
    this.options = options;
    this.send = send;
  }

  start(input_tokens: number): void {
    const message = { ...this.envelope(), content: [], stop_reason: null, stop_sequence: null };
    this.emit("message_start", { message: { ...message, usage: usageOf({ input_tokens, output_tokens: 0 }) } });
    this.emit("ping", {});
  }

  update({ parts }: LiveUpdate): void {
    for (const part of parts) this.add(part);
  }

  /** Ends the reply. @returns the whole message */
  finish(drawn: DrawnChat): object {
    const { request, tokenizer } = this.options;
    this.close();
    const stop_sequence = matchedStop(drawn, { stop: request.stop, tokenizer }) ?? null;
    const stop_reason = stopReason(drawn, stop_sequence);
    const { prompt: input_tokens, completion: output_tokens } = countTokens([drawn], tokenizer);
    this.emit("message_delta", { delta: { stop_reason, stop_sequence }, usage: { output_tokens } });
    this.emit("message_stop", {});
    return {
      ...this.envelope(),
      content: this.blocks,
      stop_reason,
      stop_sequence,
      usage: usageOf({ input_tokens, output_tokens }),
      ...(request.returnTokenIds && tokenFields(drawn)),
    };
  }

  private add(part: LivePart): void {
    if (part.type === "call") {
      this.close();
      this.addCall(part.call);
      return;
    }
    const type = part.type === "content" ? "text" : "thinking";
    if (this.open?.type !== type) {
      this.close();
      this.open = { type, text: "" };
      this.emit("content_block_start", { index: this.blocks.length, content_block: textBlock(this.open) });
    }
    const { open } = this;
    open!.text += part.text;
    const delta =
      type === "text" ? { type: "text_delta", text: part.text } : { type: "thinking_delta", thinking: part.text };
    if (part.text !== "") this.emit("content_block_delta", { index: this.blocks.length, delta });
  }

  private addCall({ id, function: { name, arguments: args } }: Extract<LivePart, { type: "call" }>["call"]): void {
    const index = this.blocks.length;
    const block = { type: "tool_use" as const, id: String(id), name };
    this.emit("content_block_start", { index, content_block: { ...block, input: {} } });
    this.emit("content_block_delta", { index, delta: { type: "input_json_delta", partial_json: args } });
    this.emit("content_block_stop", { index });
    this.blocks.push({ ...block, input: inputOf(args) });
  }

  private close(): void {
    const { open } = this;
    if (!open) return;
    const index = this.blocks.length;
    if (open.type === "thinking")
      this.emit("content_block_delta", { index, delta: { type: "signature_delta", signature: "" } });
    this.emit("content_block_stop", { index });
    this.blocks.push(textBlock(open));
    this.open = undefined;
  }

  private envelope() {
    const { id, model } = this.options;
    return { id: `msg_${id}`, type: "message", role: "assistant", model, container: null, stop_details: null };
  }

  private emit(type: string, about: object): void {
    this.send({ event: type, data: { type, ...about } });
  }
}

function textBlock({ type, text }: { type: "text" | "thinking"; text: string }): Block {
  return type === "text" ? { type, text } : { type, thinking: text, signature: "" };
}

/** The arguments of a call, which the API wants as an object. */
function inputOf(args: unknown): unknown {
  if (typeof args !== "string") return args;
  try {
    return parseJson(args);
  } catch {
    return { arguments: args };
  }
}

function stopReason({ message, finish_reason }: DrawnChat, stopSequence: string | null): string {
  if (message.tool_calls) return "tool_use";
  if (finish_reason === "length") return "max_tokens";
  return stopSequence === null ? "end_turn" : "stop_sequence";
}

function usageOf(counts: { readonly input_tokens: number; readonly output_tokens: number }) {
  return { ...counts, cache_creation_input_tokens: 0, cache_read_input_tokens: 0 };
}

function tokenFields({ prompt_ids, response_ids, weight_version }: DrawnChat) {
  const version = weight_version === undefined ? {} : { weight_version };
  return { prompt_token_ids: prompt_ids, token_ids: response_ids, ...version };
}
