/** How a text is cut before its pieces become tokens: the pre-tokenizers of tokenizer.json. */

import { choiceOf, flag, flattenSteps, type TokenizerStep, text } from "./json.ts";
import { byteCharacters } from "./normalizer.ts";
import { nativePattern, type Pattern, stepPattern } from "./pattern.ts";

/** A part of a text. */
export interface TextPiece {
  readonly text: string;
  /** Whether it starts where the whole text does. */
  readonly isFirst: boolean;
}

export type PreTokenizer = (pieces: readonly TextPiece[]) => TextPiece[];

const BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"] as const;
type Behavior = (typeof BEHAVIORS)[number];

const native = (source: string) => nativePattern(new RegExp(source, "uy"));

/** GPT-2's. */
const WORDS = native(
  String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+`,
);
const SPACE = native(String.raw`\p{White_Space}`);
const WORD = String.raw`\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}`;
const WORD_OR_SIGNS = native(String.raw`[${WORD}]+|[^${WORD}\p{White_Space}]+`);
const PUNCTUATION = native(String.raw`[\p{P}!-/:-@\[-\x60\{-~]`);
const DIGIT = native(String.raw`\p{N}`);

const PRE_TOKENIZERS: Readonly<Record<string, (step: TokenizerStep) => PreTokenizer>> = {
  ByteLevel(step) {
    const hasPrefix = flag(step, "add_prefix_space", true);
    const cut = flag(step, "use_regex", true) ? splitter(WORDS, "Isolated") : (pieces: readonly TextPiece[]) => pieces;
    const prefixed = (piece: TextPiece) =>
      hasPrefix && !piece.text.startsWith(" ") ? { ...piece, text: ` ${piece.text}` } : piece;
    return (pieces) => cut(pieces.map(prefixed)).map((piece) => ({ ...piece, text: byteCharacters(piece.text) }));
  },
  Whitespace: () => splitter(WORD_OR_SIGNS, "Removed", true),
  WhitespaceSplit: () => splitter(SPACE, "Removed"),
  BertPreTokenizer() {
    const [words, signs] = [splitter(SPACE, "Removed"), splitter(PUNCTUATION, "Isolated")];
    return (pieces) => signs(words(pieces));
  },
  Punctuation: (step) => splitter(PUNCTUATION, choiceOf(step, "behavior", BEHAVIORS, "Isolated")),
  Digits: (step) => splitter(DIGIT, flag(step, "individual_digits", false) ? "Isolated" : "Contiguous"),
  Split: (step) => splitter(stepPattern(step), choiceOf(step, "behavior", BEHAVIORS), flag(step, "invert", false)),
  CharDelimiterSplit: (step) => splitter(stepPattern({ ...step, pattern: text(step, "delimiter") }), "Removed"),
  Metaspace(step) {
    const sign = text(step, "replacement", "\u2581");
    const old = flag(step, "add_prefix_space", true) ? "always" : "never";
    const scheme = choiceOf(step, "prepend_scheme", ["always", "never", "first"], old);
    const cut = flag(step, "split", true)
      ? splitter(stepPattern({ type: step.type, pattern: sign }), "MergedWithNext")
      : (pieces: readonly TextPiece[]) => [...pieces];
    const marked = (piece: TextPiece): TextPiece => {
      const value = piece.text.replaceAll(" ", sign);
      const isMarked = value.startsWith(sign) || scheme === "never" || (scheme === "first" && !piece.isFirst);
      return { ...piece, text: isMarked ? value : sign + value };
    };
    return (pieces) => cut(pieces.map(marked));
  },
  FixedLength(step) {
    const length = Number(step.length ?? 5);
    if (!Number.isSafeInteger(length) || length < 1) throw new Error(`FixedLength: length must be above 0 (${length})`);
    return splitter(native(`[\\s\\S]{${length}}`), "Isolated");
  },
};

/** Settings of ByteLevel and Metaspace by which nothing is put before a text. */
const UNMARKED = { add_prefix_space: false, prepend_scheme: "never" };

/**
 * @param options.isMarked false leaves out the mark of a first word.
 * @throws for an unknown type or setting.
 */
export function createPreTokenizer(
  json: TokenizerStep | null | undefined,
  { isMarked = true }: { isMarked?: boolean } = {},
): PreTokenizer | undefined {
  const steps = flattenSteps(json, "pretokenizers").map((step) => {
    const create = Object.hasOwn(PRE_TOKENIZERS, step.type) ? PRE_TOKENIZERS[step.type] : undefined;
    if (!create) throw new Error(`pre-tokenizer ${JSON.stringify(step.type)} is not known`);
    return create(isMarked ? step : { ...step, ...UNMARKED });
  });
  if (steps.length === 0) return undefined;
  return (pieces) => steps.reduce<TextPiece[]>((at, step) => step(at), [...pieces]);
}

/** @param isInverted takes what the pattern does not match for its matches. */
function splitter(pattern: Pattern, behavior: Behavior, isInverted = false): PreTokenizer {
  return (pieces) => pieces.flatMap((piece) => split(piece, { pattern, behavior, isInverted }));
}

interface Span {
  readonly start: number;
  readonly end: number;
  readonly isMatch: boolean;
}

function split(
  piece: TextPiece,
  { pattern, behavior, isInverted }: { pattern: Pattern; behavior: Behavior; isInverted: boolean },
): TextPiece[] {
  const spans: Span[] = [];
  let from = 0;
  for (const [start, end] of pattern(piece.text)) {
    if (start > from) spans.push({ start: from, end: start, isMatch: isInverted });
    spans.push({ start, end, isMatch: !isInverted });
    from = end;
  }
  if (from < piece.text.length) spans.push({ start: from, end: piece.text.length, isMatch: isInverted });
  return MERGED[behavior](spans)
    .filter(({ start, end }) => end > start)
    .map(({ start, end }) => ({ text: piece.text.slice(start, end), isFirst: piece.isFirst && start === 0 }));
}

const MERGED: Readonly<Record<Behavior, (spans: Span[]) => Span[]>> = {
  Isolated: (spans) => spans,
  Removed: (spans) => spans.filter(({ isMatch }) => !isMatch),
  Contiguous: (spans) => joined(spans, (last, next) => last.isMatch === next.isMatch),
  MergedWithPrevious: (spans) => joined(spans, (last, next) => next.isMatch && !last.isMatch),
  MergedWithNext: (spans) => joined(spans, (last, next) => last.isMatch && !next.isMatch),
};

/** Neighbours that belong together become one, whose kind is that of its last part. */
function joined(spans: readonly Span[], belong: (last: Span, next: Span) => boolean): Span[] {
  const out: Span[] = [];
  for (const span of spans) {
    const last = out.at(-1);
    if (last && belong(last, span)) out[out.length - 1] = { ...span, start: last.start };
    else out.push(span);
  }
  return out;
}
