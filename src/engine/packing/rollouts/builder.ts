/** Packs rollouts row by row. */
import { ConfigError, type Source } from "../../../leaves/errors.ts";
import { sum } from "../../../leaves/statistics.ts";
import { mapRows } from "../offsets.ts";
import {
  type Floats,
  type Precision,
  type RolloutRow,
  type Rollouts,
  TOKEN_FIELDS,
  type TokenField,
} from "./rollouts.ts";

/** A typed array that doubles when it is full. */
class Growing {
  private data: Floats;
  length = 0;

  constructor(precision: Precision) {
    this.data = precision === "f32" ? new Float32Array(1024) : new Float64Array(1024);
  }

  append(values: ArrayLike<number>): void {
    const length = this.length + values.length;
    if (length > this.data.length) this.grow(Math.max(length, 2 * this.data.length));
    this.data.set(values, this.length);
    this.length = length;
  }

  private grow(size: number): void {
    const larger = this.data instanceof Float32Array ? new Float32Array(size) : new Float64Array(size);
    larger.set(this.data.subarray(0, this.length));
    this.data = larger;
  }

  finish(): Floats {
    return this.data.slice(0, this.length);
  }
}

/**
 * Packs rows one by one, and checks each: lengths agree, numbers are finite, all rows have the same fields.
 */
export class RolloutsBuilder {
  private readonly precision: Precision;
  private readonly offsets = [0];
  private readonly mask: number[][] = [];
  private readonly groups: number[] = [];
  private readonly groupNumbers = new Map<string, number>();
  private readonly columns = new Map<string, Growing>();
  private hasGroups = false;

  constructor(options: { readonly precision?: Precision | undefined } = {}) {
    this.precision = options.precision ?? "f32";
  }

  get rows(): number {
    return this.offsets.length - 1;
  }

  get tokenCount(): number {
    return this.offsets.at(-1) ?? 0;
  }

  /**
   * @param source where the row came from, for messages
   * @throws {ConfigError} for a field of the wrong kind or length, a number that is not finite, or fields that differ from the rows before
   */
  add(row: RolloutRow, source: Source = {}): void {
    const at = { row: this.rows, source };
    const length = lengthOf(row, at);
    this.mask.push(maskOf(row, length, at));
    this.addGroup(row.group, at);
    for (const [name, values] of numbersOf(row)) this.column(name, at).append(finite(values, name, at));
    this.offsets.push(this.tokenCount + length);
    for (const [name, column] of this.columns) {
      const expected = isTokenField(name) ? this.tokenCount : this.rows;
      if (column.length !== expected) throw refusal(at, `it has no ${name}, which other rows have`, name);
    }
  }

  build(): Rollouts {
    const take = (name: string) => this.columns.get(name)?.finish();
    const tokens: Partial<Record<TokenField, Floats | undefined>> = {};
    for (const name of TOKEN_FIELDS) if (this.columns.has(name)) tokens[name] = take(name);
    const components = [...this.columns.keys()].filter((name) => name.startsWith(COMPONENT));
    const offsets = Uint32Array.from(this.offsets);
    return {
      offsets,
      mask: Uint32Array.from(this.mask.flat()),
      rewards: take("reward") ?? (tokens.token_rewards && rowSums(tokens.token_rewards, offsets)),
      rewardComponents: Object.fromEntries(components.map((name) => [name.slice(COMPONENT.length), take(name)!])),
      rewardBaselines: take("reward_baseline"),
      groupOfRow: this.hasGroups ? Uint32Array.from(this.groups) : undefined,
      groupNames: [...this.groupNumbers.keys()],
      tokens,
    };
  }

  private column(name: string, at: Place): Growing {
    const existing = this.columns.get(name);
    if (existing) return existing;
    if (at.row > 0) throw refusal(at, `it has ${name}, which the rows before it lack`, name);
    const column = new Growing(this.precision);
    this.columns.set(name, column);
    return column;
  }

  private addGroup(group: string | number | undefined, at: Place): void {
    if (at.row === 0) this.hasGroups = group !== undefined;
    if (this.hasGroups !== (group !== undefined))
      throw refusal(
        at,
        this.hasGroups
          ? "it names no group, and the rows before it do"
          : "it names a group, and the rows before it do not",
        "group",
      );
    if (group === undefined) return;
    const name = String(group);
    const number = this.groupNumbers.get(name) ?? this.groupNumbers.size;
    this.groupNumbers.set(name, number);
    this.groups.push(number);
  }
}

const COMPONENT = "rewards.";

interface Place {
  readonly row: number;
  readonly source: Source;
}

function refusal({ row, source }: Place, why: string, field: string): ConfigError {
  return new ConfigError(`Cannot pack row ${row}: ${why}.`, { ...source, path: field });
}

function isTokenField(name: string): name is TokenField {
  return (TOKEN_FIELDS as readonly string[]).includes(name);
}

function isArray(value: unknown): value is ArrayLike<number> {
  return Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
}

/** The row's numbers by column; a reward is a column of one number per row. */
function numbersOf(row: RolloutRow): [string, ArrayLike<number>][] {
  const found: [string, ArrayLike<number>][] = [];
  for (const name of TOKEN_FIELDS) if (row[name] !== undefined) found.push([name, row[name]]);
  if (row.reward !== undefined) found.push(["reward", [row.reward]]);
  if (row.reward_baseline !== undefined) found.push(["reward_baseline", [row.reward_baseline]]);
  for (const [name, value] of Object.entries(row.rewards ?? {})) found.push([COMPONENT + name, [value]]);
  return found;
}

function lengthOf(row: RolloutRow, at: Place): number {
  let length: number | undefined;
  let first = "";
  for (const name of ["mask", ...TOKEN_FIELDS] as const) {
    const values: unknown = row[name];
    if (values === undefined) continue;
    if (!isArray(values)) throw refusal(at, `${name} must be a list of numbers, one per token`, name);
    if (length !== undefined && values.length !== length)
      throw refusal(at, `${name} has ${values.length} tokens where ${first} has ${length}`, name);
    length ??= values.length;
    first ||= name;
  }
  return length ?? 0;
}

function maskOf(row: RolloutRow, length: number, at: Place): number[] {
  const mask = row.mask ? Array.from(row.mask, Number) : new Array<number>(length).fill(1);
  const wrong = mask.findIndex((m) => m !== 0 && m !== 1);
  if (wrong >= 0) throw refusal(at, `mask must be 0 or 1 at every token (${mask[wrong]} at token ${wrong})`, "mask");
  return mask;
}

function finite(values: ArrayLike<unknown>, name: string, at: Place): Float64Array {
  return Float64Array.from(values, (value, t) => {
    const number = typeof value === "bigint" ? Number(value) : value;
    if (typeof number === "number" && Number.isFinite(number)) return number;
    const where = isTokenField(name) ? ` at token ${t}` : "";
    throw refusal(at, `${name} must be a finite number (${value}${where})`, name);
  });
}

function rowSums(values: Floats, offsets: Uint32Array): Float64Array {
  return Float64Array.from(mapRows(offsets, (_, first, end) => sum(values.subarray(first, end))));
}

/** Packs rows that are already in memory. */
export function packRollouts(
  rows: Iterable<RolloutRow>,
  options: { readonly precision?: Precision | undefined } = {},
): Rollouts {
  const builder = new RolloutsBuilder(options);
  for (const row of rows) builder.add(row);
  return builder.build();
}
