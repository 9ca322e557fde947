/** Tokens that may come next, for a grammar over bytes. */
import type { ConstraintState, TokenConstraint } from "../../engine/contract/backend.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";
import { ConfigError, UnsupportedError } from "../../leaves/errors.ts";
import { RecentCache } from "../../leaves/recent_cache.ts";
import { Automaton, type ParseState } from "./automaton.ts";
import type { GrammarRule } from "./rules.ts";

/** The tokens of a tokenizer in the order of their bytes. */
interface Vocabulary {
  readonly ids: Uint32Array;
  readonly bytes: readonly Uint8Array[];
  /** The first byte of each. */
  readonly first: Uint8Array;
  /** Bytes that each token shares with the one before it. */
  readonly shared: Uint32Array;
  /** Bytes by id; undefined for tokens that are no text. */
  readonly byId: readonly (Uint8Array | undefined)[];
  /** Tokens that are no text, the ends of a reply included. */
  readonly silent: readonly number[];
}

const vocabularies = new WeakMap<Tokenizer, Vocabulary>();

/** @throws {UnsupportedError} for a tokenizer whose tokens have no bytes; {ConfigError} for one that cannot write every text */
function vocabularyOf(tokenizer: Tokenizer): Vocabulary {
  const cached = vocabularies.get(tokenizer);
  if (cached) return cached;
  const { tokenBytes } = tokenizer;
  if (!tokenBytes)
    throw new UnsupportedError("Cannot constrain the reply: the tokenizer's tokens have no bytes of their own.", {
      part: "tokenizer",
      capability: "constraints",
    });
  const byId = Array.from({ length: tokenizer.vocabSize }, (_, id) => {
    const bytes = tokenizer.eosTokenIds.includes(id) ? undefined : tokenBytes(id);
    return bytes && bytes.length > 0 ? bytes : undefined;
  });
  checkCharacters(byId);
  const vocabulary = inByteOrder(byId);
  vocabularies.set(tokenizer, vocabulary);
  return vocabulary;
}

/** Plain loops: there are 100,000 tokens and more, and the first constrained request waits for them. */
function inByteOrder(byId: Vocabulary["byId"]): Vocabulary {
  const silent: number[] = [];
  for (let id = 0; id < byId.length; id++) if (!byId[id]) silent.push(id);
  const ids = idsInOrder(byId, byId.length - silent.length);
  const bytes: Uint8Array[] = [];
  const first = new Uint8Array(ids.length);
  const shared = new Uint32Array(ids.length);
  for (let i = 0; i < ids.length; i++) {
    const tokenBytes = byId[ids[i]!]!;
    bytes.push(tokenBytes);
    first[i] = tokenBytes[0]!;
    if (i > 0) shared[i] = sharedLength(bytes[i - 1]!, tokenBytes);
  }
  return { ids, bytes, first, shared, byId, silent };
}

/** A grammar must not lead to where no token goes on: every printable ASCII character needs a token. */
function checkCharacters(byId: Vocabulary["byId"]): void {
  const single = new Set<number>();
  for (const bytes of byId) if (bytes?.length === 1) single.add(bytes[0]!);
  for (let byte = 0x20; byte < 0x7f; byte++)
    if (!single.has(byte))
      throw new ConfigError(
        `Cannot constrain the reply: the vocabulary has no token for a character (${JSON.stringify(String.fromCharCode(byte))}).`,
      );
}

/**
 * Sorts numbers that hold the first four bytes of a token and its id, which takes a fraction of the time of comparing tokens:
 * those are compared where the first four bytes are equal. Equal tokens keep their order.
 */
function idsInOrder(byId: Vocabulary["byId"], count: number): Uint32Array {
  const keys = new Float64Array(count);
  let filled = 0;
  for (let id = 0; id < byId.length; id++) if (byId[id]) keys[filled++] = firstFour(byId[id]!) * byId.length + id;
  keys.sort();
  const ids = new Uint32Array(count);
  for (let i = 0; i < count; i++) ids[i] = keys[i]! % byId.length;
  const four = (at: number) => Math.floor(keys[at]! / byId.length);
  for (let from = 0, to = 1; from < count; from = to++) {
    while (to < count && four(to) === four(from)) to++;
    if (to - from > 1) ids.subarray(from, to).sort((a, b) => compare(byId[a]!, byId[b]!) || a - b);
  }
  return ids;
}

/**
 * Returns the first four bytes as one number, below 2^32: with an id below 2^21 it is exact in a double. Bytes behind
 * the end are 0.
 */
function firstFour(bytes: Uint8Array): number {
  const { length } = bytes;
  const byte = (at: number) => (at < length ? bytes[at]! : 0);
  return ((byte(0) * 256 + byte(1)) * 256 + byte(2)) * 256 + byte(3);
}

function compare(a: Uint8Array, b: Uint8Array): number {
  const length = sharedLength(a, b);
  return (a[length] ?? -1) - (b[length] ?? -1);
}

function sharedLength(a: Uint8Array, b: Uint8Array): number {
  const most = Math.min(a.length, b.length);
  for (let i = 0; i < most; i++) if (a[i] !== b[i]) return i;
  return most;
}

/**
 * Places in the grammar that one mask may newly lead to, about: others wait meanwhile. Schemas of real tools lead to some
 * hundreds, an `anyOf` of 40 arrays of long strings to 18,000.
 */
const MOST_WORK = 40_000;

/** Masks kept at least for states that come again, such as the inside of a string; see {@link RecentCache}. */
const KEPT_MASKS = 32;

/** Tokens that may come next. */
interface Allowed {
  readonly mask: Uint32Array;
  /** All of them. */
  readonly isFree: boolean;
}

/** Replies whose text is in a grammar, and which end where the text may end. */
export class GrammarConstraint implements TokenConstraint {
  private readonly vocabulary: Vocabulary;
  private readonly automaton: Automaton;
  private readonly ends: readonly number[];
  private readonly masks = new RecentCache<number, Allowed>(KEPT_MASKS);
  private readonly allowsSilent: boolean;
  private readonly words: number;
  /** The last state where every token may come, for {@link sameAsFree}. */
  private free: ParseState | undefined;

  /**
   * @param options.allowsSilent tokens that are no text may come wherever the reply may end, as in a reply without a grammar
   * @throws {UnsupportedError} for a tokenizer whose tokens have no bytes; {ConfigError} for a vocabulary that lacks characters or
   *   an end token, and for a grammar without texts
   */
  constructor(rule: GrammarRule, tokenizer: Tokenizer, { allowsSilent = false }: { allowsSilent?: boolean } = {}) {
    this.vocabulary = vocabularyOf(tokenizer);
    this.allowsSilent = allowsSilent;
    this.ends = tokenizer.eosTokenIds;
    this.words = Math.ceil(Math.max(tokenizer.vocabSize, ...this.ends.map((id) => id + 1)) / 32);
    if (this.ends.length === 0)
      throw new ConfigError(
        "Cannot constrain the reply: the tokenizer has no end token (eos_token). Name one in its configuration.",
      );
    this.automaton = new Automaton(rule);
    const { frames, isComplete } = this.automaton.start;
    if (frames.length === 0 && !isComplete)
      throw new ConfigError(
        "Cannot constrain the reply: no text is valid by its schema. Look for a $ref that leads to itself.",
      );
  }

  start(): ConstraintState {
    const allowed = (of: ParseState) => this.allowedAt(of);
    let state = this.automaton.start;
    return {
      fill: (mask) => {
        mask.fill(0);
        mask.set(allowed(state).mask.subarray(0, mask.length));
      },
      advance: (token) => {
        state = this.after(state, token);
      },
      get isFree() {
        // Elsewhere the end is forbidden.
        return state.isComplete && allowed(state).isFree;
      },
    };
  }

  /** @throws {Error} for a token that was not allowed: the sampler did not apply the mask */
  private after(state: ParseState, token: number): ParseState {
    if (this.ends.includes(token)) return state;
    const bytes = this.vocabulary.byId[token];
    if (!bytes && this.allowsSilent && state.isComplete) return state;
    let next: ParseState | null = bytes ? state : null;
    for (const byte of bytes ?? []) next &&= this.automaton.step(next, byte);
    if (next) return next;
    throw new Error(`Cannot continue the reply: the sampler drew a token that its constraint forbids (${token}).`);
  }

  private allowedAt(state: ParseState): Allowed {
    return this.masks.get(state.id, () => {
      const allowed = this.compute(state);
      if (allowed.isFree) this.free = state;
      return allowed;
    });
  }

  /**
   * First bytes after which the text goes on as from a state where every token may come: tokens that begin with one may come
   * here too, so that the states of free text cost little.
   */
  private sameAsFree(state: ParseState): Uint8Array {
    const same = new Uint8Array(256);
    const { free, automaton } = this;
    if (free && free !== state && state.isComplete)
      for (let byte = 0; byte < 256; byte++) {
        const next = automaton.step(state, byte);
        if (next && next === automaton.step(free, byte)) same[byte] = 1;
      }
    return same;
  }

  /** Walks the tokens in order; each goes on from the state that the one before had after their shared bytes. */
  private compute(start: ParseState): Allowed {
    const { ids, bytes, first, shared, silent } = this.vocabulary;
    const isSame = this.sameAsFree(start);
    const mask = new Uint32Array(this.words);
    const path: ParseState[] = [start];
    const most = this.automaton.work + MOST_WORK;
    let [alive, count] = [0, 0];
    for (let i = 0; i < ids.length; i++) {
      if (this.automaton.work > most) throw tooMuchWork();
      if (isSame[first[i]!] === 1) {
        setBit(mask, ids[i]!);
        count++;
        continue;
      }
      const common = shared[i]!;
      // The byte that was refused before is one of this token too.
      if (common > alive) continue;
      const tokenBytes = bytes[i]!;
      alive = common;
      for (let state: ParseState | null = path[common]!; alive < tokenBytes.length; alive++) {
        state = this.automaton.step(state, tokenBytes[alive]!);
        if (!state) break;
        path[alive + 1] = state;
      }
      if (alive < tokenBytes.length) continue;
      setBit(mask, ids[i]!);
      count++;
    }
    if (start.isComplete) for (const id of [...this.ends, ...(this.allowsSilent ? silent : [])]) setBit(mask, id);
    else if (count === 0)
      throw new ConfigError(
        "Cannot continue the reply: no text that is valid by its schema goes on from here. Look for a $ref that leads to itself.",
      );
    return { mask, isFree: this.allowsSilent && start.isComplete && count === ids.length };
  }
}

function tooMuchWork(): ConfigError {
  return new ConfigError(
    `Cannot constrain the reply: the next token can be read in too many ways (more than ${MOST_WORK} in all). Use a schema with fewer alternatives that begin alike.`,
  );
}

function setBit(mask: Uint32Array, id: number): void {
  const word = id >> 5;
  if (word < mask.length) mask[word]! |= 1 << (id & 31);
}
