/**
 * Runs a grammar over bytes. A state is the set of stacks that the text so far may have led to; states and their transitions
 * are made when a text first leads there, and kept. A rule at the end of its sequence leaves no frame, so that repetitions do
 * not grow the stack.
 */
import type { ByteSet, PlacedSequence, Rule, Sequence } from "./rules.ts";

/** A place in a sequence, and where the text goes on after it. Equal ones are one object. */
interface Frame {
  readonly id: number;
  readonly sequence: PlacedSequence;
  readonly at: number;
  readonly parent: Frame | undefined;
  /** By the place that stands on this one. */
  readonly above: Map<number, Frame>;
}

/** See the head of this file. */
export interface State {
  readonly id: number;
  /** Whether the text may end here. */
  readonly isComplete: boolean;
  /** Each ends at a set of bytes. */
  readonly frames: readonly Frame[];
  /** By byte; `null` where no text goes on, `undefined` where that is not known yet. */
  readonly next: (State | null | undefined)[];
}

export class Automaton {
  readonly start: State;
  private readonly states = new Map<string, State>();
  private readonly roots = new Map<number, Frame>();
  private frames = 0;

  constructor(rule: Rule) {
    const closure = new Closure((...place) => this.frame(...place));
    for (const sequence of rule.alternatives()) closure.enter(sequence, 0, undefined);
    this.start = this.state(closure);
  }

  /** States made so far. */
  get size(): number {
    return this.states.size;
  }

  /** The state after a byte. `null` where the text cannot go on with it. */
  step(state: State, byte: number): State | null {
    const known = state.next[byte];
    if (known !== undefined) return known;
    const closure = new Closure((...place) => this.frame(...place));
    for (const { sequence, at, parent } of state.frames)
      if ((sequence.symbols[at] as ByteSet)[byte] === 1) closure.enter(sequence, at + 1, parent);
    const next = closure.isEmpty ? null : this.state(closure);
    state.next[byte] = next;
    return next;
  }

  private state({ frames, isComplete }: Closure): State {
    const ids = [...frames].sort((a, b) => a.id - b.id);
    const key = `${isComplete} ${ids.map(({ id }) => id).join()}`;
    let state = this.states.get(key);
    if (!state) {
      state = { id: this.states.size, isComplete, frames: ids, next: new Array(256) };
      this.states.set(key, state);
    }
    return state;
  }

  private frame(sequence: PlacedSequence, at: number, parent: Frame | undefined): Frame {
    const siblings = parent?.above ?? this.roots;
    const place = sequence.first + at;
    let frame = siblings.get(place);
    if (!frame) {
      frame = { id: this.frames++, sequence, at, parent, above: new Map() };
      siblings.set(place, frame);
    }
    return frame;
  }
}

/** The sets of bytes that a place leads to, through rules that begin or end there. */
class Closure {
  readonly frames = new Set<Frame>();
  isComplete = false;
  private readonly frame: (sequence: PlacedSequence, at: number, parent: Frame | undefined) => Frame;
  /** Places entered, against rules that begin with themselves. */
  private readonly entered = new Set<string>();

  constructor(frame: Closure["frame"]) {
    this.frame = frame;
  }

  get isEmpty(): boolean {
    return !this.isComplete && this.frames.size === 0;
  }

  enter(sequence: PlacedSequence, at: number, parent: Frame | undefined): void {
    const key = `${sequence.first + at} ${parent?.id}`;
    if (this.entered.has(key)) return;
    this.entered.add(key);
    const symbol = (sequence.symbols as Sequence)[at];
    if (symbol === undefined) {
      if (parent) this.enter(parent.sequence, parent.at, parent.parent);
      else this.isComplete = true;
    } else if (symbol instanceof Uint8Array) {
      this.frames.add(this.frame(sequence, at, parent));
    } else {
      const isLast = at + 1 === sequence.symbols.length;
      const back = isLast ? parent : this.frame(sequence, at + 1, parent);
      for (const alternative of symbol.alternatives()) this.enter(alternative, 0, back);
    }
  }
}
