/** The loop of `grpu chat`: reads messages and commands, prints replies as they come. */

import type { LivePart } from "../../chat/engine.ts";
import type { Talk, TalkListener, TalkReply } from "../../chat/talk.ts";
import { ConfigError, UnsupportedError } from "../../leaves/errors.ts";
import { stringifyJson } from "../../leaves/json.ts";
import type { Io, Typing } from "../command.ts";
import { runSlash } from "./slash.ts";

const [DIM, GREEN, RESET] = ["\x1b[2m", "\x1b[32m", "\x1b[0m"];
const BLOCK = '"""';

export interface ChatContext {
  readonly talk: Talk;
  readonly typing: Typing;
  readonly io: Io;
}

/** Talks until the input ends. @returns whether a message could not be answered */
export async function chatLoop(context: ChatContext): Promise<boolean> {
  const { talk, typing, io } = context;
  let [interrupts, hasFailed] = [0, false];
  while (!io.signal.aborted) {
    const message = await readMessage(context);
    if (message === undefined) break;
    if (message === "interrupt") {
      if (++interrupts > 1) break;
      note(context, "Ctrl-C again or Ctrl-D leaves");
      continue;
    }
    interrupts = 0;
    if (message.trim() === "") continue;
    try {
      const effect = message.startsWith("/") ? runSlash(message, { talk, say: (text) => note(context, text) }) : "say";
      if (effect === "leave") break;
      if (effect === "say") await answer(context, (listener) => talk.say(message.replace(/^ (?=\/)/, ""), listener));
      if (effect === "retry") await answer(context, (listener) => talk.retry(listener));
    } catch (error) {
      if (!isForPeople(error)) throw error;
      hasFailed = true;
      note(context, error.message);
    }
  }
  if (typing.isTerminal) io.err("\n");
  return hasFailed;
}

/** Errors that leave the conversation usable: a prompt beyond the context, a setting out of range. */
function isForPeople(error: unknown): error is Error {
  return error instanceof ConfigError || error instanceof UnsupportedError || (error as Error).name === "ApiError";
}

function note({ io }: ChatContext, text: string): void {
  io.err(io.color ? `${DIM}${text}${RESET}\n` : `${text}\n`);
}

/** One message, of several lines where it is marked so. */
async function readMessage({ typing, io }: ChatContext): Promise<string | "interrupt" | undefined> {
  const prompt = (mark: string) => (io.color ? `${GREEN}${mark}${RESET} ` : `${mark} `);
  const lines: string[] = [];
  let isBlock = false;
  for (;;) {
    const typed = await typing.next(prompt(lines.length === 0 && !isBlock ? ">" : "…"));
    if (typed.kind === "interrupt") return "interrupt";
    if (typed.kind === "end") return lines.length > 0 ? lines.join("\n") : undefined;
    const { text } = typed;
    if (isBlock) {
      if (text.trimEnd().endsWith(BLOCK))
        return [...lines, text.trimEnd().slice(0, -BLOCK.length)].join("\n").trimEnd();
      lines.push(text);
    } else if (lines.length === 0 && text.startsWith(BLOCK)) {
      const rest = text.slice(BLOCK.length);
      if (rest.trimEnd().endsWith(BLOCK)) return rest.trimEnd().slice(0, -BLOCK.length);
      isBlock = true;
      if (rest !== "") lines.push(rest);
    } else if (text.endsWith("\\")) {
      lines.push(text.slice(0, -1));
    } else {
      return [...lines, text].join("\n");
    }
  }
}

/** Prints a reply while it is sampled: its text on standard output, its reasoning and notes on standard error. */
async function answer(context: ChatContext, draw: (listener: TalkListener) => Promise<TalkReply>): Promise<void> {
  const { io, typing } = context;
  const stop = new AbortController();
  const onAbort = () => stop.abort(new Error("stopped"));
  io.signal.addEventListener("abort", onAbort, { once: true });
  const printer = new Printer(context);
  try {
    const reply = await typing.during(
      () => draw({ signal: stop.signal, onPart: (part) => printer.print(part) }),
      () => stop.abort(new Error("stopped")),
    );
    printer.end();
    if (typing.isTerminal) note(context, summary(reply));
  } catch (error) {
    printer.end();
    throw error;
  } finally {
    io.signal.removeEventListener("abort", onAbort);
  }
}

function summary({ tokens, finish_reason, ms }: TalkReply): string {
  const rate = `${tokens} ${tokens === 1 ? "token" : "tokens"}, ${(tokens / Math.max(ms / 1000, 1e-3)).toFixed(1)} a second`;
  if (finish_reason === "length") return `${rate}; the reply is cut at max_tokens or the context's end`;
  return finish_reason === "stopped" ? `${rate}; stopped` : rate;
}

class Printer {
  private readonly io: Io;
  private readonly isTerminal: boolean;
  private last: LivePart["type"] | undefined;
  private endsLine = true;

  constructor({ io, typing }: ChatContext) {
    this.io = io;
    this.isTerminal = typing.isTerminal;
  }

  print(part: LivePart): void {
    const { io } = this;
    if (part.type === "reasoning") {
      // Programs read the answer alone.
      if (this.isTerminal && part.text !== "") io.err(io.color ? `${DIM}${part.text}${RESET}` : part.text);
    } else {
      if (this.last === "reasoning" && this.isTerminal) io.err("\n");
      const text = part.type === "call" ? `${stringifyJson(part.call.function)}\n` : part.text;
      io.out(text);
      this.endsLine = text.endsWith("\n");
    }
    this.last = part.type;
  }

  end(): void {
    if (this.last === "reasoning" && this.isTerminal) this.io.err("\n");
    if (this.last !== undefined && !this.endsLine) this.io.out("\n");
  }
}
