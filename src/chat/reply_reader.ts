/**
 * Reads a model's reply piece by piece: its reasoning, its answer, its tool calls. What is read once does not change with the
 * text that follows, so that a streamed reply equals a whole one.
 */

import { numberText, parseJson } from "../leaves/json.ts";

/** The syntax of tool calls in a family of models. */
export type ToolFormat = "hermes" | "llama3";

/** Settings that decide how a reply is read. */
export interface ParseOptions {
  /** The model's tool-call format. Absent: the reply has no tool calls. */
  readonly format?: ToolFormat | undefined;
  /** Prefix of the calls' ids; the caller keeps it unique. */
  readonly id: string;
  /** Whether the prompt ends inside the model's reasoning. Absent: unknown, so that a `</think>` anywhere ends one. */
  readonly isReasoning?: boolean | undefined;
}

/** A piece of a reply. The texts of each type, joined, are the reply's reasoning and content. */
export type ReplyPart =
  | { readonly type: "reasoning" | "content"; readonly text: string }
  | { readonly type: "call"; readonly name: string; readonly arguments: unknown };

/** Takes text, and returns what is certain so far. */
interface TextReader {
  push(text: string): ReplyPart[];
  end(): ReplyPart[];
}

const OPEN = "<think>";
const CLOSE = "</think>";

/** Whether a prompt ends inside a block of reasoning that the chat template opened. */
export function endsInReasoning(prompt: string): boolean {
  return prompt.trimEnd().endsWith(OPEN);
}

/** State of the model's reasoning after a prompt: inside it, past it, or before where it may begin. */
export type PromptReasoning = "open" | "none" | "possible";

/** @param chatTemplate a model whose template does not mention reasoning has none */
export function reasoningAt(prompt: string, chatTemplate = ""): PromptReasoning {
  if (endsInReasoning(prompt)) return "open";
  const isPast = prompt.trimEnd().endsWith(CLOSE) || !chatTemplate.includes(OPEN);
  return isPast ? "none" : "possible";
}

/** Reads reasoning first, then content and calls. */
export class ReplyReader implements TextReader {
  private state: "undecided" | "reasoning" | "answer" = "undecided";
  private held = "";
  private isAfterReasoning = false;
  /** Past the opening tag, or where none may come. */
  private isOpened = false;
  private readonly mayOpenUnseen: boolean;
  private readonly trimmed = new TrimmedText("reasoning");
  private readonly answer: TextReader;

  constructor({ format, isReasoning }: Omit<ParseOptions, "id">) {
    this.mayOpenUnseen = isReasoning === undefined;
    if (isReasoning) this.state = "reasoning";
    this.answer = format ? new READERS[format]() : { push: (text) => asText("content", text), end: () => [] };
  }

  push(text: string): ReplyPart[] {
    this.held += text;
    if (this.state === "undecided") this.decide();
    if (this.state === "undecided") return [];
    return this.state === "reasoning" ? this.readReasoning() : this.readAnswer();
  }

  end(): ReplyPart[] {
    if (this.state === "undecided") this.state = "answer";
    if (this.state === "answer") return [...this.readAnswer(), ...this.answer.end()];
    const rest = this.trimmed.push(this.held);
    return [...rest, ...(this.trimmed.isEmpty ? [{ type: "reasoning" as const, text: "" }] : [])];
  }

  private decide(): void {
    const start = this.held.trimStart();
    if (start.startsWith(OPEN)) this.state = "reasoning";
    else if (this.mayOpenUnseen) this.state = this.held.includes(CLOSE) ? "reasoning" : "undecided";
    else if (!OPEN.startsWith(start)) this.state = "answer";
  }

  private readReasoning(): ReplyPart[] {
    if (!this.isOpened) {
      const start = this.held.trimStart();
      if (start !== OPEN && OPEN.startsWith(start)) return [];
      if (start.startsWith(OPEN)) this.held = start.slice(OPEN.length);
      this.isOpened = true;
    }
    const close = this.held.indexOf(CLOSE);
    if (close < 0) {
      const certain = this.held.length - heldBack(this.held, [CLOSE]);
      return this.trimmed.push(this.take(certain));
    }
    const parts = this.trimmed.push(this.take(close));
    this.held = this.held.slice(CLOSE.length);
    this.state = "answer";
    this.isAfterReasoning = true;
    // A reply with an empty block has reasoning, of no text.
    if (this.trimmed.isEmpty) parts.push({ type: "reasoning", text: "" });
    return [...parts, ...this.readAnswer()];
  }

  private readAnswer(): ReplyPart[] {
    if (this.isAfterReasoning) this.held = this.held.trimStart();
    if (this.held === "") return [];
    this.isAfterReasoning = false;
    return this.answer.push(this.take(this.held.length));
  }

  private take(count: number): string {
    const taken = this.held.slice(0, count);
    this.held = this.held.slice(count);
    return taken;
  }
}

/** Text without white space at its ends: what may be its end waits. */
class TrimmedText {
  isEmpty = true;
  private spaces = "";
  private readonly type: "reasoning" | "content";

  constructor(type: "reasoning" | "content") {
    this.type = type;
  }

  push(text: string): ReplyPart[] {
    const whole = this.isEmpty ? text.trimStart() : this.spaces + text;
    const shown = whole.trimEnd();
    this.spaces = whole.slice(shown.length);
    if (shown === "") return [];
    this.isEmpty = false;
    return asText(this.type, shown);
  }
}

function asText(type: "reasoning" | "content", text: string): ReplyPart[] {
  return text === "" ? [] : [{ type, text }];
}

/** The length of the longest end of `text` that one of these may start with. */
export function heldBack(text: string, marks: readonly string[]): number {
  const longest = Math.min(text.length, Math.max(0, ...marks.map(({ length }) => length - 1)));
  for (let length = longest; length > 0; length--) {
    const end = text.slice(text.length - length);
    if (marks.some((mark) => mark.length > length && mark.startsWith(end))) return length;
  }
  return 0;
}

export const CALL_OPEN = "<tool_call>";
export const CALL_CLOSE = "</tool_call>";

/**
 * Calls as JSON between tags. Text between tags that is not a call stays text. White space before a call and after the last
 * one is not content.
 */
class HermesReader implements TextReader {
  private held = "";
  /** White space at the end of the content so far. */
  private spaces = "";
  private hasContent = false;
  private hasCalls = false;

  push(text: string): ReplyPart[] {
    this.held += text;
    const parts: ReplyPart[] = [];
    for (;;) {
      const open = this.held.indexOf(CALL_OPEN);
      if (open < 0) return [...parts, ...this.content(this.held.length - heldBack(this.held, [CALL_OPEN]))];
      parts.push(...this.content(open));
      const close = this.held.indexOf(CALL_CLOSE);
      if (close < 0) return parts;
      const call = asCall(valueIn(this.held.slice(CALL_OPEN.length, close)));
      if (call) {
        this.held = this.held.slice(close + CALL_CLOSE.length);
        this.hasCalls = true;
        parts.push({ type: "call", ...call });
      } else {
        parts.push(...this.content(close + CALL_CLOSE.length));
      }
    }
  }

  end(): ReplyPart[] {
    const rest = this.content(this.held.length);
    return this.hasCalls ? rest : [...rest, ...asText("content", this.spaces)];
  }

  /** Shows this much of the text, except for white space at its end. */
  private content(count: number): ReplyPart[] {
    const withSpaces = this.spaces + this.held.slice(0, count);
    this.held = this.held.slice(count);
    const shown = withSpaces.trimEnd();
    this.spaces = withSpaces.slice(shown.length);
    if (shown === "") return [];
    const isFirstAfterCall = this.hasCalls && !this.hasContent;
    this.hasContent = true;
    return asText("content", isFirstAfterCall ? shown.trimStart() : shown);
  }
}

const PYTHON_TAG = "<|python_tag|>";

/** The whole reply is one JSON object, or several separated by `;`. Other text is content. */
class LlamaReader implements TextReader {
  private held = "";
  private isText = false;

  push(text: string): ReplyPart[] {
    if (this.isText) return asText("content", text);
    this.held += text;
    const start = this.held.trimStart();
    this.isText = !start.startsWith("{") && !PYTHON_TAG.startsWith(start.slice(0, PYTHON_TAG.length));
    return this.isText ? asText("content", this.held) : [];
  }

  end(): ReplyPart[] {
    return this.isText ? [] : (readLlamaCalls(this.held) ?? asText("content", this.held));
  }
}

/** Whether a reply so far is a whole call in Llama's form, or one with the `;` that stands before a further call. */
export function isLlamaCall(text: string): boolean {
  return asCall(valueIn(llamaBody(text))) !== undefined;
}

function llamaBody(text: string): string {
  return text.trim().replace(PYTHON_TAG, "").replace(/;$/, "");
}

function readLlamaCalls(text: string): ReplyPart[] | undefined {
  const body = llamaBody(text);
  const whole = asCall(valueIn(body));
  const calls = whole ? [whole] : body.split(/;\s*(?=\{)/).map((part) => asCall(valueIn(part)));
  const readable = calls.filter((call) => call !== undefined);
  return readable.length < calls.length ? undefined : readable.map((call) => ({ type: "call", ...call }));
}

const READERS: Readonly<Record<ToolFormat, new () => TextReader>> = { hermes: HermesReader, llama3: LlamaReader };

interface Call {
  readonly name: string;
  readonly arguments: unknown;
}

function asCall(value: unknown): Call | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  const { name, arguments: args, parameters } = value as Record<string, unknown>;
  if (typeof name !== "string") return undefined;
  const text = numberText(value, args == null ? "parameters" : "arguments");
  return { name, arguments: text ?? args ?? parameters ?? {} };
}

function valueIn(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}
