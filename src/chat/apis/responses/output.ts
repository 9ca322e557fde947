/** A response, and the events that tell of it while it is sampled. */
import type { Tokenizer } from "../../../engine/contract/text.ts";
import type { LivePart, LiveUpdate } from "../../engine.ts";
import { countTokens, type DrawnChat } from "../../response.ts";
import type { ServerEvent } from "../events.ts";
import { type TokenLogprob, tokenLogprobs } from "../logprobs.ts";
import type { ResponseRequest } from "./request.ts";

type Item = Record<string, unknown> & { readonly id: string; readonly type: "reasoning" | "message" | "function_call" };

interface PendingToken {
  readonly id: number;
  readonly logprob: TokenLogprob;
}

export interface OutputOptions extends ResponseRequest {
  /** Id without a prefix. */
  readonly id: string;
  readonly model: string;
  readonly tokenizer: Tokenizer;
}

/** Collects a reply into a response's items. */
export class ResponseOutput {
  readonly id: string;
  private readonly options: OutputOptions;
  private readonly created = Math.floor(Date.now() / 1000);
  private readonly send: (event: ServerEvent) => void;
  private readonly items: Item[] = [];
  private open: { readonly item: Item; text: string; logprobs: TokenLogprob[] } | undefined;
  private events = 0;
  /** Tokens whose text is in no part yet. */
  private pending: PendingToken[] = [];

  /** @param send takes the events; absent: only the response is wanted */
  constructor(options: OutputOptions, send: (event: ServerEvent) => void = () => {}) {
    this.options = options;
    this.id = `resp_${options.id}`;
    this.send = send;
  }

  start(): void {
    const response = this.response("in_progress");
    this.emit("response.created", { response });
    this.emit("response.in_progress", { response });
  }

  update({ parts, ...sampled }: LiveUpdate): void {
    const { request, tokenizer } = this.options;
    const logprobs = request.logprobs ? tokenLogprobs(sampled, tokenizer) : [];
    this.pending.push(...logprobs.map((logprob, i) => ({ id: sampled.tokens[i]!, logprob })));
    for (const [i, part] of parts.entries()) {
      const taken = part.type === "content" ? this.takeFor(part.text, { isLast: i === parts.length - 1 }) : [];
      this.add(part, taken);
    }
    // Reasoning and calls have no log-probs in this API.
    if (parts.length > 0) this.pending = [];
  }

  /** The pending tokens that a text came from; what is not its own ends with it or starts with it. */
  private takeFor(text: string, { isLast }: { isLast: boolean }): TokenLogprob[] {
    const { pending, open } = this;
    const holds = (from: number, to: number) =>
      this.options.tokenizer.decode(pending.slice(from, to).map(({ id }) => id)).includes(text);
    // After reasoning or a call the pending tokens may begin with theirs.
    const isFirst = open ? open.item.type === "message" : this.items.length === 0;
    const { length } = pending;
    const from = isFirst ? 0 : Math.max(0, firstFor(length, (at) => !holds(at, length)) - 1);
    const to = isLast ? length : from + firstFor(length - from, (count) => holds(from, from + count));
    this.pending = pending.slice(to);
    return pending.slice(from, to).map(({ logprob }) => logprob);
  }

  /** Ends the reply. @returns the whole response */
  finish(drawn: DrawnChat): object {
    const isCut = drawn.finish_reason === "length";
    // Such as the token that ends the reply.
    if (this.open?.item.type === "message") this.open.logprobs.push(...this.pending.map(({ logprob }) => logprob));
    this.close(isCut ? "incomplete" : "completed");
    const response = this.response(isCut ? "incomplete" : "completed", drawn);
    this.emit(isCut ? "response.incomplete" : "response.completed", { response });
    return response;
  }

  fail(error: { readonly code: string | null; readonly message: string }): ServerEvent {
    const response = {
      ...this.response("failed"),
      error: { code: error.code ?? "server_error", message: error.message },
    };
    return this.event("response.failed", { response });
  }

  private add(part: LivePart, logprobs: TokenLogprob[]): void {
    if (part.type === "call") {
      this.addCall(part.call);
      return;
    }
    const type = part.type === "reasoning" ? "reasoning" : "message";
    if (this.open?.item.type !== type) {
      this.close("completed");
      this.openItem(type);
    }
    const { open } = this;
    open!.text += part.text;
    open!.logprobs.push(...logprobs);
    const [name, more] = type === "message" ? ["output_text", { logprobs }] : ["reasoning_text", {}];
    if (part.text !== "") this.emit(`response.${name}.delta`, { ...this.place(), delta: part.text, ...more });
  }

  private openItem(type: "reasoning" | "message"): void {
    const id = `${type === "message" ? "msg" : "rs"}_${this.options.id}_${this.items.length}`;
    const about = type === "message" ? { role: "assistant", content: [] } : { summary: [], content: [] };
    const item: Item = { id, type, status: "in_progress", ...about };
    this.open = { item, text: "", logprobs: [] };
    this.emit("response.output_item.added", { output_index: this.items.length, item });
    this.emit("response.content_part.added", { ...this.place(), part: contentPart(type, { text: "", logprobs: [] }) });
  }

  private close(status: "completed" | "incomplete"): void {
    const { open } = this;
    if (!open) return;
    const { item, text, logprobs } = open;
    const type = item.type as "reasoning" | "message";
    const part = contentPart(type, { text, logprobs });
    const [name, more] = type === "message" ? ["output_text", { logprobs }] : ["reasoning_text", {}];
    this.emit(`response.${name}.done`, { ...this.place(), text, ...more });
    this.emit("response.content_part.done", { ...this.place(), part });
    this.done({ ...item, status, content: [part] });
    this.open = undefined;
  }

  private addCall({ id, function: { name, arguments: args } }: Extract<LivePart, { type: "call" }>["call"]): void {
    this.close("completed");
    const output_index = this.items.length;
    const item_id = `fc_${this.options.id}_${output_index}`;
    const item: Item = { id: item_id, type: "function_call", call_id: id, name, arguments: "", status: "in_progress" };
    this.emit("response.output_item.added", { output_index, item });
    this.emit("response.function_call_arguments.delta", { output_index, item_id, delta: args });
    this.emit("response.function_call_arguments.done", { output_index, item_id, name, arguments: args });
    this.done({ ...item, arguments: args, status: "completed" });
  }

  private done(item: Item): void {
    this.emit("response.output_item.done", { output_index: this.items.length, item });
    this.items.push(item);
  }

  private place() {
    return { item_id: this.open!.item.id, output_index: this.items.length, content_index: 0 };
  }

  private emit(type: string, about: object): void {
    this.send(this.event(type, about));
  }

  private event(type: string, about: object): ServerEvent {
    return { event: type, data: { type, sequence_number: this.events++, ...about } };
  }

  private response(status: string, drawn?: DrawnChat): object {
    const { body, model, request, tokenizer } = this.options;
    return {
      id: this.id,
      object: "response",
      created_at: this.created,
      status,
      error: null,
      incomplete_details: status === "incomplete" ? { reason: "max_output_tokens" } : null,
      instructions: body.instructions ?? null,
      max_output_tokens: body.max_output_tokens ?? null,
      metadata: body.metadata ?? {},
      model,
      output: [...this.items],
      parallel_tool_calls: body.parallel_tool_calls ?? true,
      previous_response_id: body.previous_response_id ?? null,
      reasoning: { effort: body.reasoning?.effort ?? null, summary: null },
      store: body.store ?? true,
      temperature: body.temperature ?? null,
      text: { format: body.text?.format ?? { type: "text" } },
      tool_choice: body.tool_choice ?? "auto",
      tools: body.tools ?? [],
      top_p: body.top_p ?? null,
      truncation: "disabled",
      usage: drawn ? usageOf(drawn, tokenizer) : null,
      ...(drawn && request.returnTokenIds && tokenFields(drawn)),
    };
  }
}

/** The first number in [0, most] for which `is` holds, where it holds for all after it; `most` where it holds for none. */
function firstFor(most: number, is: (at: number) => boolean): number {
  let [low, high] = [0, most];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (is(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function contentPart(type: "reasoning" | "message", { text, logprobs }: { text: string; logprobs: TokenLogprob[] }) {
  return type === "message"
    ? { type: "output_text", text, annotations: [], logprobs }
    : { type: "reasoning_text", text };
}

function usageOf(drawn: DrawnChat, tokenizer: Tokenizer) {
  const { prompt, completion, reasoning } = countTokens([drawn], tokenizer);
  return {
    input_tokens: prompt,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens: completion,
    output_tokens_details: { reasoning_tokens: reasoning },
    total_tokens: prompt + completion,
  };
}

function tokenFields({ prompt_ids, response_ids, weight_version }: DrawnChat) {
  const version = weight_version === undefined ? {} : { weight_version };
  return { prompt_token_ids: prompt_ids, token_ids: response_ids, ...version };
}
