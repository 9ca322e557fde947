/** Seeded damage. Every case has a seed of its own, so that one can be repeated alone. */
import { uniform } from "../fixtures/numbers.ts";

export class Chance {
  private readonly next: () => number;

  constructor(seed: number, index: number) {
    this.next = uniform(Math.imul(seed, 0x9e3779b1) ^ Math.imul(index + 1, 0x85ebca6b));
    this.next();
  }

  /** In [0, below). */
  int(below: number): number {
    return Math.floor(this.next() * below);
  }

  is(probability: number): boolean {
    return this.next() < probability;
  }

  pick<T>(of: readonly T[]): T {
    return of[this.int(of.length)]!;
  }
}

const TOKENS = [
  ...["null", "true", "-1", "0", "1e308", "1e999", "9007199254740993", "NaN", '""', "{}", "[]", "[[[[]]]]"],
  ...['"__proto__"', '"constructor"', "../../..", "\\u0000", "\u0000", "\u001b[2J", "\ud800", "%00", "{{", "&a *a"],
  ...["[".repeat(200), '{"a":'.repeat(200), "9".repeat(400), "x".repeat(5000), "é".repeat(300), "- ".repeat(200)],
];

/** Text with one to four places changed: characters, pieces moved, values that code trips over. */
export function mutateText(text: string, chance: Chance): string {
  let changed = text;
  for (let changes = 1 + chance.int(4); changes > 0; changes--) {
    const at = chance.int(changed.length + 1);
    const end = chance.is(0.5) ? at : at + chance.int(20);
    const by = chance.is(0.7) ? chance.pick(TOKENS) : changed.substr(chance.int(changed.length + 1), chance.int(60));
    changed = changed.slice(0, at) + by + changed.slice(end);
    if (chance.is(0.05)) changed = changed.slice(0, chance.int(changed.length + 1));
  }
  return changed;
}

/** Bytes with one to four places changed, cut off, doubled or moved. */
export function mutateBytes(bytes: Uint8Array, chance: Chance): Uint8Array {
  let changed = Buffer.from(bytes);
  for (let changes = 1 + chance.int(4); changes > 0 && changed.length > 0; changes--) {
    const at = chance.int(changed.length);
    const kind = chance.int(10);
    if (kind < 6) changed[at] = chance.pick([0, 1, 0x7f, 0x80, 0xff, chance.int(256)]);
    else if (kind < 7) changed = changed.subarray(0, at);
    else {
      const piece = changed.subarray(at, at + chance.int(64));
      changed = Buffer.concat([changed.subarray(0, at), piece, piece, changed.subarray(at)]);
    }
  }
  return changed;
}

/** A value of JSON with members changed, dropped and added, at any depth. */
export function mutateJson(value: unknown, chance: Chance): unknown {
  if (chance.is(0.08)) return chance.pick(VALUES);
  if (Array.isArray(value)) {
    const items = value.map((item) => (chance.is(0.3) ? mutateJson(item, chance) : item));
    return chance.is(0.1) ? [...items, ...items, chance.pick(VALUES)] : items;
  }
  if (typeof value !== "object" || value === null) return chance.is(0.3) ? chance.pick(VALUES) : value;
  const entries = Object.entries(value)
    .filter(() => !chance.is(0.08))
    .map(([key, it]) => [key, chance.is(0.3) ? mutateJson(it, chance) : it]);
  return Object.fromEntries(chance.is(0.1) ? [...entries, [chance.pick(KEYS), chance.pick(VALUES)]] : entries);
}

const KEYS = ["__proto__", "constructor", "toString", "", "model_id", "seq_id", "path", "user_metadata", "\u001b[2J"];
const VALUES: readonly unknown[] = [
  ...[null, true, -1, 0, 0.5, 1e308, -1e308, 1e-45, 2 ** 53, 2 ** 31, 4e9, 1e15, "", "x", "\u0000", "\u001b[2J"],
  ...["../../x", "tinker://a/b/c", "x".repeat(3000), [], {}, [[[[[]]]]], [null], { a: { a: { a: {} } } }],
  Array.from({ length: 600 }, (_, i) => i),
];
