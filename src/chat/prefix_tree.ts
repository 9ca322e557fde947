/** Sequences that share their beginnings, such as the prompts of a conversation's turns: each element is held once. */

/** Token ids, or the code units of a text. */
export type Symbols = readonly number[] | Uint16Array;

/** The place of one sequence in the tree. It stays when others are added. */
export class PrefixNode<T> {
  /** Elements of the whole sequence. */
  readonly length: number;
  parent: PrefixNode<T> | undefined;
  /** Symbols that follow the parent's sequence: a copy, so that nothing else is kept. */
  edge: Symbols;
  value: T | undefined;
  /** Children by the first element of their edge. */
  readonly children = new Map<number, PrefixNode<T>>();

  constructor(parent: PrefixNode<T> | undefined, edge: Symbols) {
    this.parent = parent;
    this.edge = edge;
    this.length = (parent?.length ?? 0) + edge.length;
  }

  /** The whole sequence, in a new array. */
  sequence(): number[] {
    const symbols = new Array<number>(this.length);
    for (let node: PrefixNode<T> | undefined = this; node; node = node.parent) {
      const from = node.length - node.edge.length;
      for (let i = 0; i < node.edge.length; i++) symbols[from + i] = node.edge[i]!;
    }
    return symbols;
  }
}

/** A radix tree. Its memory grows with what each sequence adds to those before it; a look-up is one pass over the sequence. */
export class PrefixTree<T = undefined> {
  private readonly root = new PrefixNode<T>(undefined, []);
  private held = 0;

  /** Elements that the tree holds. */
  get size(): number {
    return this.held;
  }

  /** The place of a sequence. Of two equal sequences the later value is found; without one, the earlier stays. */
  add(sequence: Symbols, value?: T): PrefixNode<T> {
    const { node, rest } = this.descend(sequence);
    const at = node.length;
    const place = rest === 0 ? this.extended(node, sequence.slice(at)) : this.split(node, { rest, sequence });
    if (value !== undefined) place.value = value;
    return place;
  }

  /** The value of the longest sequence that `sequence` starts with. The empty one has none. */
  longestOf(sequence: Symbols): T | undefined {
    let found: T | undefined;
    this.descend(sequence, (node) => {
      found = node.value ?? found;
    });
    return found;
  }

  /** The places of all sequences that `sequence` starts with, the empty one included. */
  pathOf(sequence: Symbols): ReadonlySet<PrefixNode<T>> {
    const path = new Set([this.root]);
    this.descend(sequence, (node) => path.add(node));
    return path;
  }

  /**
   * Walks down as far as the sequence goes. `rest` elements of the edge above `node` are not in the sequence, or come after
   * its end; 0 where it leaves the tree at `node` itself.
   */
  private descend(sequence: Symbols, visit: (node: PrefixNode<T>) => void = () => {}) {
    let node = this.root;
    while (node.length < sequence.length) {
      const child = node.children.get(sequence[node.length]!);
      if (!child) break;
      const shared = sharedLength(child.edge, sequence, node.length);
      if (shared < child.edge.length) return { node: child, rest: child.edge.length - shared };
      visit(child);
      node = child;
    }
    return { node, rest: 0 };
  }

  private extended(node: PrefixNode<T>, edge: Symbols): PrefixNode<T> {
    if (edge.length === 0) return node;
    const child = new PrefixNode(node, edge);
    node.children.set(edge[0]!, child);
    this.held += edge.length;
    return child;
  }

  /** Puts a node above `node`, before the last `rest` elements of its edge, and what is left of the sequence below it. */
  private split(node: PrefixNode<T>, { rest, sequence }: { rest: number; sequence: Symbols }): PrefixNode<T> {
    const parent = node.parent!;
    const middle = new PrefixNode(parent, node.edge.slice(0, -rest));
    parent.children.set(middle.edge[0]!, middle);
    node.parent = middle;
    node.edge = node.edge.slice(-rest);
    middle.children.set(node.edge[0]!, node);
    return this.extended(middle, sequence.slice(middle.length));
  }
}

/** How many elements of an edge stand in the sequence from `at` on. */
function sharedLength(edge: Symbols, sequence: Symbols, at: number): number {
  const most = Math.min(edge.length, sequence.length - at);
  for (let i = 0; i < most; i++) if (edge[i] !== sequence[at + i]) return i;
  return most;
}

/** The code units of a text. */
export function unitsOf(text: string): Uint16Array {
  const units = new Uint16Array(text.length);
  for (let i = 0; i < text.length; i++) units[i] = text.charCodeAt(i);
  return units;
}
