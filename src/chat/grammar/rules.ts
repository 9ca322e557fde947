/** Grammars over bytes. A rule's alternatives are made when they are first needed, so that rules may be recursive and many. */

/** 256 flags: the bytes of a place in a text. */
export type ByteSet = Uint8Array;

export type GrammarSymbol = ByteSet | GrammarRule;

/** Symbols one after the other. */
export type SymbolSequence = readonly GrammarSymbol[];

/** Places over all sequences, so that each has a number of its own. */
let places = 0;

/** A sequence and the number of its first place. */
export interface PlacedSequence {
  readonly symbols: SymbolSequence;
  readonly first: number;
}

export class GrammarRule {
  private make: (() => readonly SymbolSequence[]) | undefined;
  private made: readonly PlacedSequence[] = [];

  constructor(make: () => readonly SymbolSequence[]) {
    this.make = make;
  }

  alternatives(): readonly PlacedSequence[] {
    if (this.make) {
      const { make } = this;
      this.make = undefined;
      this.made = make().map((symbols) => {
        const first = places;
        places += symbols.length + 1;
        return { symbols, first };
      });
    }
    return this.made;
  }
}

/** @param ranges first and last byte of each run, both included */
export function byteRanges(...ranges: readonly (readonly [first: number, last: number])[]): ByteSet {
  const set = new Uint8Array(256);
  for (const [first, last] of ranges) set.fill(1, first, last + 1);
  return set;
}

/** The bytes of these ASCII characters. */
export function anyOf(characters: string): ByteSet {
  return byteRanges(
    ...Array.from(characters, (character) => [character.charCodeAt(0), character.charCodeAt(0)] as const),
  );
}

const encoder = new TextEncoder();

const SINGLE = Array.from({ length: 256 }, (_, byte) => byteRanges([byte, byte]));

/** Exactly this text. Equal bytes share one set. */
export function literal(text: string): SymbolSequence {
  return Array.from(encoder.encode(text), (byte) => SINGLE[byte]!);
}

export function choiceRule(...alternatives: readonly SymbolSequence[]): GrammarRule {
  return new GrammarRule(() => alternatives);
}

export function optional(...symbols: SymbolSequence): GrammarRule {
  return choiceRule([], symbols);
}

/** Returns the rule of an item at least `least` times, and at most `most`. The item must not match the empty text. */
export function repeat(item: GrammarSymbol, { least = 0, most = Number.POSITIVE_INFINITY } = {}): GrammarRule {
  return new GrammarRule(() => {
    if (most <= 0) return [[]];
    const rest = least <= 1 && most === Number.POSITIVE_INFINITY ? repeatAny(item) : undefined;
    const again = [item, rest ?? repeat(item, { least: Math.max(0, least - 1), most: most - 1 })];
    return least > 0 ? [again] : [[], again];
  });
}

/** Any number of times: one rule that contains itself. */
function repeatAny(item: GrammarSymbol): GrammarRule {
  const rule: GrammarRule = new GrammarRule(() => [[], [item, rule]]);
  return rule;
}

/** Any text up to and including the first occurrence of `end`, which is ASCII. */
export function textUntil(end: string): GrammarRule {
  return textWith(end, { after: [], mayEnd: false });
}

/** Any text; where `mark`, which is ASCII, stands in it, what follows `mark` is one of `after`. */
export function textAround(mark: string, after: GrammarRule): GrammarRule {
  return textWith(mark, { after: [after], mayEnd: true });
}

interface AfterMark {
  readonly after: SymbolSequence;
  /** Whether the text may end before the mark. */
  readonly mayEnd: boolean;
}

function textWith(mark: string, options: AfterMark): GrammarRule {
  const marks = Array.from(mark, (character) => character.charCodeAt(0));
  const rules: GrammarRule[] = marks.map(
    (_, matched) => new GrammarRule(() => afterMatch(marks, { matched, rules, ...options })),
  );
  return rules[0]!;
}

/** One alternative for each byte that extends a match of the mark, and one for all others. */
function afterMatch(
  marks: readonly number[],
  { matched, rules, after, mayEnd }: { matched: number; rules: readonly GrammarRule[] } & AfterMark,
): SymbolSequence[] {
  const others = byteRanges([0, 255]);
  const alternatives: SymbolSequence[] = mayEnd ? [[]] : [];
  for (const byte of new Set(marks)) {
    const length = longestMatch([...marks.slice(0, matched), byte], marks);
    if (length === 0) continue;
    others[byte] = 0;
    const single = byteRanges([byte, byte]);
    alternatives.push(length === marks.length ? [single, ...after] : [single, rules[length]!]);
  }
  return [...alternatives, [others, rules[0]!]];
}

/** The longest start of `marks` that `seen` ends with. */
function longestMatch(seen: readonly number[], marks: readonly number[]): number {
  for (let length = Math.min(seen.length, marks.length); length > 0; length--)
    if (marks.slice(0, length).every((mark, i) => mark === seen[seen.length - length + i])) return length;
  return 0;
}

const ANY_TEXT = repeat(byteRanges([0, 255]));
const SPACES = [0x20, 0x09, 0x0a, 0x0d];

/** Any text; one that begins with a mark, behind white space, goes on with what stands beside the mark. */
export function textAfter(marks: ReadonlyMap<string, GrammarRule>): GrammarRule {
  const start: GrammarRule = new GrammarRule(() =>
    alternatives([...marks].map(([mark, after]) => ({ left: encoder.encode(mark), after }))),
  );
  function alternatives(open: readonly { left: Uint8Array; after: GrammarRule }[], isStart = true): SymbolSequence[] {
    const others = byteRanges([0, 255]);
    const further: SymbolSequence[] = [];
    for (const byte of new Set(open.map(({ left }) => left[0]!))) {
      others[byte] = 0;
      const next = open
        .filter(({ left }) => left[0] === byte)
        .map(({ left, after }) => ({ left: left.subarray(1), after }));
      const ended = next.filter(({ left }) => left.length === 0);
      const rest = next.filter(({ left }) => left.length > 0);
      for (const { after } of ended) further.push([SINGLE[byte]!, after]);
      if (ended.length === 0) further.push([SINGLE[byte]!, new GrammarRule(() => alternatives(rest, false))]);
    }
    if (isStart) {
      for (const byte of SPACES) others[byte] = 0;
      further.push([byteRanges(...SPACES.map((byte) => [byte, byte] as const)), start]);
    }
    return [[], ...further, [others, ANY_TEXT]];
  }
  return start;
}
