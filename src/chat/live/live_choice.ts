/** One choice while it is sampled: its tokens, and the parts of its reply that are certain. */
import type { TokenListener } from "../../engine/contract/backend.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";
import type { ChoiceStart, LivePart, LiveUpdate } from "../engine.ts";
import { toolCall } from "../reply.ts";
import { type ReplyPart, ReplyReader } from "../reply_reader.ts";
import type { Drawn } from "../response.ts";
import { TextBeforeStop, TokenText } from "./token_text.ts";

export interface LiveOptions {
  readonly stop: readonly string[];
  readonly tokenizer: Tokenizer;
}

export class LiveChoice {
  private readonly decoded: TokenText;
  private readonly beforeStop: TextBeforeStop;
  private readonly reader: Pick<ReplyReader, "push" | "end">;
  private readonly id: string;
  private text = "";
  private count = 0;
  private calls = 0;

  /** @param parse absent: the whole text is content */
  constructor(parse: ChoiceStart["parse"], { stop, tokenizer }: LiveOptions) {
    this.decoded = new TokenText(tokenizer);
    this.beforeStop = new TextBeforeStop(stop);
    this.reader = parse ? new ReplyReader(parse) : PLAIN;
    this.id = parse?.id ?? "";
  }

  push(...[tokens, logprobs, top_logprobs]: Parameters<TokenListener>): LiveUpdate {
    const text = tokens.map((token) => this.beforeStop.push(this.decoded.push(token))).join("");
    this.count += tokens.length;
    return { parts: this.read(text), tokens, logprobs, ...(top_logprobs && { top_logprobs }) };
  }

  /**
   * Returns the part of the whole reply that was not shown yet.
   * @throws {Error} for a reply whose text does not start with what was shown
   */
  finish({ model_response, response_ids, logprobs, top_logprobs }: Drawn): LiveUpdate {
    if (!model_response.startsWith(this.text))
      throw new Error("Cannot finish the stream: the reply does not start with the text that was streamed.");
    const parts = [...this.read(model_response.slice(this.text.length)), ...this.onWire(this.reader.end())];
    return {
      parts,
      tokens: response_ids.slice(this.count),
      logprobs: logprobs.slice(this.count),
      ...(top_logprobs && { top_logprobs: top_logprobs.slice(this.count) }),
    };
  }

  private read(text: string): LivePart[] {
    this.text += text;
    return text === "" ? [] : this.onWire(this.reader.push(text));
  }

  private onWire(parts: readonly ReplyPart[]): LivePart[] {
    return parts.map((part) =>
      part.type === "call" ? { type: "call", call: toolCall(part, { index: this.calls++, id: this.id }) } : part,
    );
  }
}

const PLAIN: Pick<ReplyReader, "push" | "end"> = {
  push: (text) => [{ type: "content", text }],
  end: () => [],
};
