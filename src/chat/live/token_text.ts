/** The text of tokens that arrive one by one. */
import type { Tokenizer } from "../../engine/contract/text.ts";
import { heldBack } from "../reply_reader.ts";
import { firstStop } from "../stop.ts";

/** Character that a decoder shows for bytes that are not a whole character. */
export const INCOMPLETE = "\uFFFD";

/**
 * Decodes tokens as they arrive. A character whose bytes lie in several tokens waits for its last one. Joined, the pieces are
 * a start of the text of all tokens.
 */
export class TokenText {
  private readonly tokenizer: Pick<Tokenizer, "decode">;
  /** The last tokens: some decoders write a token differently at the start of a text. */
  private window: number[] = [];
  /** How many of them are shown. */
  private shown = 0;

  constructor(tokenizer: Pick<Tokenizer, "decode">) {
    this.tokenizer = tokenizer;
  }

  push(token: number): string {
    this.window.push(token);
    const before = this.tokenizer.decode(this.window.slice(0, this.shown));
    const text = this.tokenizer.decode(this.window);
    if (text.length <= before.length || text.endsWith(INCOMPLETE)) return "";
    this.window = this.window.slice(this.shown);
    this.shown = this.window.length;
    return text.slice(before.length);
  }
}

/** Text before the first stop string. What may be the start of one waits. */
export class TextBeforeStop {
  private readonly stop: readonly string[];
  private held = "";
  private isOver = false;

  constructor(stop: readonly string[]) {
    this.stop = stop;
  }

  push(text: string): string {
    if (this.isOver) return "";
    this.held += text;
    const at = firstStop(this.held, this.stop);
    this.isOver = at >= 0;
    const count = this.isOver ? at : this.held.length - heldBack(this.held, this.stop);
    const shown = this.held.slice(0, count);
    this.held = this.held.slice(count);
    return shown;
  }
}
