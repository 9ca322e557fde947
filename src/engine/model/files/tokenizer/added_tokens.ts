/** Tokens that stand in a text as they are: they are found before it is normalized, or after. */
import type { AddedToken, TokenizerJson } from "./json.ts";
import type { Normalizer } from "./normalizer.ts";
import { trimEnd, trimStart } from "./unicode.ts";

/** Section of a text: an added token, or the text between added tokens. */
export type TextSection = { readonly token: AddedToken } | { readonly text: string; readonly start: number };

/** Finds the tokens whose text is `of` each. The longest at the first place wins. */
export function finderOf(
  tokens: readonly AddedToken[],
  of: (token: AddedToken) => string,
): (text: string) => TextSection[] {
  const byText = new Map(tokens.filter((token) => of(token) !== "").map((token) => [of(token), token]));
  if (byText.size === 0) return (text) => (text === "" ? [] : [{ text, start: 0 }]);
  const root = trieOf(byText);
  return (text) => sections(text, root);
}

interface Node {
  readonly next: Map<number, Node>;
  token?: AddedToken;
}

function trieOf(tokens: ReadonlyMap<string, AddedToken>): Node {
  const root: Node = { next: new Map() };
  for (const [text, token] of tokens) {
    let node = root;
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      const next = node.next.get(code) ?? { next: new Map() };
      node.next.set(code, next);
      node = next;
    }
    node.token = token;
  }
  return root;
}

function sections(text: string, root: Node): TextSection[] {
  const out: TextSection[] = [];
  let from = 0;
  for (let at = 0; at < text.length; ) {
    const found = longestAt(text, at, root);
    if (!found) {
      at++;
      continue;
    }
    const { token, end } = found;
    if (token.single_word && touchesWord(text, at, end)) {
      at = end;
      continue;
    }
    const before = text.slice(from, at);
    const kept = token.lstrip ? trimEnd(before) : before;
    if (kept !== "") out.push({ text: kept, start: from });
    out.push({ token });
    from = token.rstrip ? text.length - trimStart(text.slice(end)).length : end;
    at = from;
  }
  if (from < text.length) out.push({ text: text.slice(from), start: from });
  return out;
}

function longestAt(text: string, at: number, root: Node): { token: AddedToken; end: number } | undefined {
  let found: { token: AddedToken; end: number } | undefined;
  let node = root.next.get(text.charCodeAt(at));
  for (let end = at + 1; node; end++) {
    if (node.token) found = { token: node.token, end };
    node = end < text.length ? node.next.get(text.charCodeAt(end)) : undefined;
  }
  return found;
}

const WORD = String.raw`[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]`;
const [ENDS_WITH_WORD, STARTS_WITH_WORD] = [new RegExp(`${WORD}$`, "u"), new RegExp(`^${WORD}`, "u")];

function touchesWord(text: string, start: number, end: number): boolean {
  // A character is one or two units long.
  return (
    ENDS_WITH_WORD.test(text.slice(Math.max(start - 2, 0), start)) || STARTS_WITH_WORD.test(text.slice(end, end + 2))
  );
}

/** Whether a token is sought in the normalized text. */
export const isNormalized = ({ normalized, special }: AddedToken) => normalized ?? !special;

/** The text of a token where it is sought. */
export function soughtText({ content }: AddedToken, normalizer: Normalizer | undefined): string {
  return normalizer ? normalizer(content) : content;
}

/**
 * The added tokens of tokenizer.json, with those that tokenizer_config.json alone has: in `added_tokens_decoder`, by id, or
 * as a special token that is in the vocabulary. Of two with one text that of tokenizer_config.json counts, as in transformers.
 */
export function addedTokens(
  { added_tokens = [] }: TokenizerJson,
  config: Readonly<Record<string, unknown>>,
  idOf: (text: string) => number | undefined,
): AddedToken[] {
  const tokens = new Map(added_tokens.map((token) => [token.content, token]));
  const listed = Object.entries((config.added_tokens_decoder ?? {}) as Record<string, Partial<AddedToken>>);
  for (const [id, token] of listed) {
    const { content } = token;
    if (typeof content !== "string") continue;
    tokens.set(content, { ...token, content, id: tokens.get(content)?.id ?? idOf(content) ?? Number(id) });
  }
  for (const content of namedTokens(config)) {
    const existing = tokens.get(content);
    const id = existing?.id ?? idOf(content);
    // One without an id has no row in the model's embedding table.
    if (id !== undefined) tokens.set(content, { normalized: false, ...existing, content, id, special: true });
  }
  return [...tokens.values()];
}

/** `eos_token` and its like, and the lists of further ones. */
function namedTokens(config: Readonly<Record<string, unknown>>): string[] {
  const named = Object.entries(config).filter(([key]) => /^(?:bos|eos|unk|sep|pad|cls|mask)_token$/.test(key));
  const lists = [config.additional_special_tokens, config.extra_special_tokens].filter(Array.isArray).flat();
  return [...named.map(([, value]) => value), ...lists].flatMap((token) => {
    const content = typeof token === "string" ? token : (token as { content?: unknown } | null)?.content;
    return typeof content === "string" && content !== "" ? [content] : [];
  });
}
