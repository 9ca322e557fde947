/**
 * Runs a grammar over bytes. A state is the set of stacks that the text so far may have led to; states and their transitions
 * are made when a text first leads there, and kept within a budget. A rule at the end of its sequence leaves no frame, so that
 * repetitions do not grow the stack.
 */
import { ConfigError } from "../../leaves/errors.ts";
import type { ByteSet, GrammarRule, PlacedSequence, SymbolSequence } from "./rules.ts";

/** A place in a sequence, and where the text goes on after it. Equal ones are one object until the automaton forgets them. */
interface Frame {
  readonly id: number;
  readonly sequence: PlacedSequence;
  readonly at: number;
  readonly parent: Frame | undefined;
  /** Frames above by the place that stands on this one. */
  above: Map<number, Frame> | undefined;
}

/** See the head of this file. */
export interface ParseState {
  readonly id: number;
  /** Whether the text may end here. */
  readonly isComplete: boolean;
  /** Each ends at a set of bytes. */
  readonly frames: readonly Frame[];
  /** The class of each byte: bytes of one class are in the same sets of the frames. */
  readonly classes: Uint8Array;
  /** Next states by class; `null` where no text goes on, `undefined` where that is not known yet. */
  readonly next: (ParseState | null | undefined)[];
}

/** Frames, and the frames of all states, that are kept: about 20 MB. */
const MOST_KEPT = 200_000;

/** Places that one byte may lead to, so that a step takes milliseconds. */
const MOST_PLACES = 20_000;

export class Automaton {
  readonly start: ParseState;
  private readonly states = new Map<string, ParseState>();
  /** Equal tables of classes are one, by the numbers of the sets that they tell apart. */
  private readonly tables = new Map<string, Uint8Array>();
  private readonly sets = new Map<ByteSet, number>();
  private roots = new Map<number, Frame>();
  private parents: Frame[] = [];
  private frames = 0;
  private made = 0;
  private kept = 0;
  private worked = 0;

  constructor(rule: GrammarRule) {
    const closure = new Closure((...place) => this.frame(...place));
    for (const sequence of rule.alternatives()) closure.enter(sequence, 0, undefined);
    this.start = this.state(closure);
  }

  /** Places that were entered, for states that were not known. */
  get work(): number {
    return this.worked;
  }

  /** States that are kept now. */
  get size(): number {
    return this.states.size;
  }

  /**
   * The state after a byte. `null` where the text cannot go on with it.
   * @throws {ConfigError} where the text so far can be read in too many ways
   */
  step(state: ParseState, byte: number): ParseState | null {
    const cached = state.next[state.classes[byte]!];
    if (cached !== undefined) return cached;
    if (this.kept > MOST_KEPT) this.forget();
    const closure = new Closure((...place) => this.frame(...place));
    for (const { sequence, at, parent } of state.frames)
      if ((sequence.symbols[at] as ByteSet)[byte] === 1) closure.enter(sequence, at + 1, parent);
    this.worked += closure.size + state.frames.length;
    const next = closure.isEmpty ? null : this.state(closure);
    state.next[state.classes[byte]!] = next;
    return next;
  }

  /** Sequences that are under way hold their state, and go on from it. */
  private forget(): void {
    for (const state of this.states.values()) state.next.length = 0;
    this.states.clear();
    for (const parent of this.parents) parent.above = undefined;
    this.parents = [];
    this.roots = new Map();
    this.kept = 0;
  }

  private state({ frames, isComplete }: Closure): ParseState {
    const ordered = [...frames].sort((a, b) => a.id - b.id);
    const key = `${isComplete} ${ordered.map(({ id }) => id).join()}`;
    let state = this.states.get(key);
    if (!state) {
      state = { id: this.made++, isComplete, frames: ordered, classes: this.classesOf(ordered), next: [] };
      this.states.set(key, state);
      this.kept += 2 + ordered.length;
    }
    return state;
  }

  private classesOf(frames: readonly Frame[]): Uint8Array {
    const sets = [...new Set(frames.map(({ sequence, at }) => sequence.symbols[at] as ByteSet))];
    const numbers = sets.map((set) => {
      const number = this.sets.get(set) ?? this.sets.size;
      this.sets.set(set, number);
      return number;
    });
    const key = numbers.sort((a, b) => a - b).join();
    const table = this.tables.get(key) ?? distinguishingClasses(sets);
    this.tables.set(key, table);
    return table;
  }

  private frame(sequence: PlacedSequence, at: number, parent: Frame | undefined): Frame {
    const siblings = parent ? this.aboveOf(parent) : this.roots;
    const place = sequence.first + at;
    let frame = siblings.get(place);
    if (!frame) {
      frame = { id: this.frames++, sequence, at, parent, above: undefined };
      siblings.set(place, frame);
      this.kept++;
    }
    return frame;
  }

  private aboveOf(parent: Frame): Map<number, Frame> {
    if (!parent.above) {
      parent.above = new Map();
      this.parents.push(parent);
    }
    return parent.above;
  }
}

/**
 * The class of each byte by several tables: bytes of one class have the same number in every table. Refined table by table, so
 * that the number of classes never exceeds 256.
 * @param tables 256 numbers each, below 256: sets of bytes, or classes
 */
export function distinguishingClasses(tables: readonly Uint8Array[]): Uint8Array {
  const classes = new Uint8Array(256);
  for (const table of tables) {
    const numbers = new Map<number, number>();
    for (let byte = 0; byte < 256; byte++) {
      const mark = classes[byte]! * 256 + table[byte]!;
      const number = numbers.get(mark) ?? numbers.size;
      numbers.set(mark, number);
      classes[byte] = number;
    }
  }
  return classes;
}

interface Entry {
  readonly sequence: PlacedSequence;
  readonly at: number;
  readonly parent: Frame | undefined;
}

/** The sets of bytes that a place leads to, through rules that begin or end there. */
class Closure {
  readonly frames = new Set<Frame>();
  isComplete = false;
  private readonly frame: (sequence: PlacedSequence, at: number, parent: Frame | undefined) => Frame;
  /** Places entered, against rules that begin with themselves. */
  private readonly entered = new Set<string>();
  private readonly pending: Entry[] = [];

  constructor(frame: Closure["frame"]) {
    this.frame = frame;
  }

  get isEmpty(): boolean {
    return !this.isComplete && this.frames.size === 0;
  }

  /** Places that were entered. */
  get size(): number {
    return this.entered.size;
  }

  enter(sequence: PlacedSequence, at: number, parent: Frame | undefined): void {
    this.pending.push({ sequence, at, parent });
    for (let entry = this.pending.pop(); entry; entry = this.pending.pop()) this.visit(entry);
  }

  private visit({ sequence, at, parent }: Entry): void {
    const key = `${sequence.first + at} ${parent?.id}`;
    if (this.entered.has(key)) return;
    this.entered.add(key);
    if (this.entered.size > MOST_PLACES) throw tooMany();
    const symbol = (sequence.symbols as SymbolSequence)[at];
    if (symbol === undefined) {
      if (parent) this.pending.push(parent);
      else this.isComplete = true;
    } else if (symbol instanceof Uint8Array) {
      this.frames.add(this.frame(sequence, at, parent));
    } else {
      const isLast = at + 1 === sequence.symbols.length;
      const back = isLast ? parent : this.frame(sequence, at + 1, parent);
      for (const alternative of symbol.alternatives())
        this.pending.push({ sequence: alternative, at: 0, parent: back });
    }
  }
}

function tooMany(): ConfigError {
  return new ConfigError(
    `Cannot constrain the reply: its text so far can be read in too many ways (more than ${MOST_PLACES}). Use a schema with fewer alternatives, optional properties or overlapping counts.`,
  );
}
