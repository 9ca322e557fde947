/** A place in the tokens of an answer. */
import { type LatexToken, tokensOf } from "./tokens.ts";

/** Deeper nesting is not read: the grammar recurses. */
const MOST_DEPTH = 50;

/** Thrown for what the grammar has no meaning for; the answer is then compared as text. */
export class Unreadable extends Error {
  override readonly name = "Unreadable";
}

export class TokenCursor {
  private readonly tokens: LatexToken[];
  private at = 0;
  private depth = 0;
  /** Number of open `(`, `[` and `\{`: a comma inside of them separates, it groups no thousands. */
  brackets = 0;
  /** Number of open `|`: the next one closes. */
  bars = 0;

  constructor(tokens: readonly LatexToken[]) {
    this.tokens = [...tokens];
  }

  peek(ahead = 0): LatexToken | undefined {
    return this.tokens[this.at + ahead];
  }

  /** The mark here, or the empty text. */
  mark(ahead = 0): string {
    const token = this.peek(ahead);
    return token?.kind === "mark" ? token.text : "";
  }

  command(ahead = 0): string {
    const token = this.peek(ahead);
    return token?.kind === "command" ? token.text : "";
  }

  next(): LatexToken {
    const token = this.tokens[this.at++];
    if (!token) throw new Unreadable();
    return token;
  }

  take(mark: string): boolean {
    if (this.mark() !== mark) return false;
    this.at++;
    return true;
  }

  expect(mark: string): void {
    if (!this.take(mark)) throw new Unreadable();
  }

  skip(count: number): void {
    this.at += count;
  }

  /** The first `length` characters of the token here, which then begins after them. */
  split(length: number): string {
    const token = this.next();
    const rest = token.text.slice(length);
    if (rest !== "") this.tokens[--this.at] = { ...token, text: rest, isSpaced: false };
    return token.text.slice(0, length);
  }

  /** Puts tokens in the place of the one that was just read. */
  inline(text: string): void {
    this.tokens.splice(--this.at, 1, ...tokensOf(text));
  }

  nested<T>(read: () => T): T {
    if (++this.depth > MOST_DEPTH) throw new Unreadable();
    const result = read();
    this.depth--;
    return result;
  }
}
