/**
 * Texts that are in several grammars at once, and in none of others. The grammars are regular: they lead to finitely many
 * states. The result keeps only states from which a text ends, so that it has no dead ends.
 */
import { ConfigError } from "../../leaves/errors.ts";
import { Automaton, distinguishingClasses, type ParseState } from "./automaton.ts";
import { type ByteSet, GrammarRule, type SymbolSequence } from "./rules.ts";

/** States of intersections that one schema, or all tools of a request, may have: less than a second of work. */
export const MOST_STATES = 10_000;

/** Rest of {@link MOST_STATES}. */
export interface StateBudget {
  left: number;
}

/** Place in a schema that asks for it, for errors. */
export interface SchemaPlace {
  readonly path: string;
  readonly budget: StateBudget;
}

export interface Overlap {
  /** Each holds the text. */
  readonly all: readonly GrammarRule[];
  /** None holds it. */
  readonly none?: readonly GrammarRule[];
}

/** States of all grammars after the same bytes; null for one of `none` that cannot go on. */
type States = readonly (ParseState | null)[];

interface Node {
  readonly isEnd: boolean;
  /** Bytes by the node that they lead to. */
  readonly next: ReadonlyMap<number, ByteSet>;
}

/**
 * @returns undefined where no text is in all of them
 * @throws {ConfigError} where they lead to more states than the budget holds
 */
export function intersection({ all: required, none = [] }: Overlap, place: SchemaPlace): GrammarRule | undefined {
  const nodes = new Walk([...required, ...none], { required: required.length, place }).nodes;
  const living = livingOf(nodes);
  if (!living.has(0)) return undefined;
  const rules = nodes.map((node): GrammarRule => new GrammarRule(() => alternatives(node, { living, rules })));
  return rules[0];
}

function alternatives(
  { isEnd, next }: Node,
  context: { living: ReadonlySet<number>; rules: readonly GrammarRule[] },
): SymbolSequence[] {
  const further = [...next].filter(([to]) => context.living.has(to));
  return [...(isEnd ? [[]] : []), ...further.map(([to, bytes]): SymbolSequence => [bytes, context.rules[to]!])];
}

/** Visits every place that the grammars reach together. */
class Walk {
  readonly nodes: Node[] = [];
  private readonly automata: readonly Automaton[];
  private readonly required: number;
  private readonly place: SchemaPlace;
  private readonly numbers = new Map<string, number>();
  private readonly places: States[] = [];

  constructor(rules: readonly GrammarRule[], { required, place }: { required: number; place: SchemaPlace }) {
    this.automata = rules.map((rule) => new Automaton(rule));
    this.required = required;
    this.place = place;
    this.number(this.automata.map(({ start }) => start));
    for (let i = 0; i < this.places.length; i++) this.nodes.push(this.visit(this.places[i]!));
  }

  private number(states: States): number {
    const key = states.map((state) => state?.id ?? "-").join();
    const number = this.numbers.get(key);
    if (number !== undefined) return number;
    const { path, budget } = this.place;
    if (--budget.left < 0)
      throw new ConfigError(
        `Cannot constrain the reply by its schema: its patterns, formats, lengths and multiples together lead to more than ${MOST_STATES} states. Use shorter lengths, or fewer of them on one value.`,
        { path },
      );
    this.places.push(states);
    this.numbers.set(key, this.places.length - 1);
    return this.places.length - 1;
  }

  private visit(states: States): Node {
    const next = new Map<number, ByteSet>();
    // Bytes of the same class in each grammar lead to the same place.
    const classes = distinguishingClasses(states.flatMap((state) => (state ? [state.classes] : [])));
    const numbers = new Map<number, number>();
    for (let byte = 0; byte < 256; byte++) {
      const to = numbers.get(classes[byte]!) ?? this.after(states, byte);
      numbers.set(classes[byte]!, to);
      if (to < 0) continue;
      const bytes = next.get(to) ?? new Uint8Array(256);
      bytes[byte] = 1;
      next.set(to, bytes);
    }
    const isEnd = states.every((state, i) => (state?.isComplete ?? false) === i < this.required);
    return { isEnd, next };
  }

  /** -1 where the text cannot go on. */
  private after(states: States, byte: number): number {
    const next: (ParseState | null)[] = [];
    for (const [i, state] of states.entries()) {
      const to = state && this.automata[i]!.step(state, byte);
      if (!to && i < this.required) return -1;
      next.push(to);
    }
    return this.number(next);
  }
}

/** Nodes from which a text ends. */
function livingOf(nodes: readonly Node[]): ReadonlySet<number> {
  const before: number[][] = nodes.map(() => []);
  for (const [from, { next }] of nodes.entries()) for (const to of next.keys()) before[to]!.push(from);
  const pending = nodes.flatMap(({ isEnd }, i) => (isEnd ? [i] : []));
  const living = new Set(pending);
  for (let at = pending.pop(); at !== undefined; at = pending.pop())
    for (const from of before[at]!) {
      if (living.has(from)) continue;
      living.add(from);
      pending.push(from);
    }
  return living;
}
