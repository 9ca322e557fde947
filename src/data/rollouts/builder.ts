/** Packed rollouts: the tokens of all trajectories end to end, in typed arrays. */
import { ConfigError, type Source } from "../../errors.ts";

/** Numbers of each token, under the names of the rollout files. */
export const TOKEN_FIELDS = [
  "token_rewards",
  "logprobs",
  "old_logprobs",
  "rollout_logprobs",
  "ref_logprobs",
  "values",
  "returns",
  "entropy",
  "sum_pi_squared",
  "advantages",
  "rollout_is_weights",
] as const;

export type TokenField = (typeof TOKEN_FIELDS)[number];

/** f32 is what the device takes; f64 is for float64 references. */
export type Precision = "f32" | "f64";
export type Floats = Float32Array | Float64Array;

export interface Rollouts {
  /** Tokens of row i are offsets[i] .. offsets[i+1]; [N+1]. */
  readonly offsets: Uint32Array;
  /** 1 = trained on, [T]. */
  readonly mask: Uint32Array;
  /** Outcome reward of each row, [N]; the sum of its token rewards where none is given. Absent: neither is given. */
  readonly rewards?: Floats | undefined;
  /** Rewards by name, [N] each. */
  readonly rewardComponents: Readonly<Record<string, Floats>>;
  /** Reward of the greedy rollout of each row's prompt, [N]. */
  readonly rewardBaselines?: Floats | undefined;
  /** Group of each row as an index of `groupNames`, [N]. Groups need not lie together. Absent: no row names one. */
  readonly groupOfRow?: Uint32Array | undefined;
  readonly groupNames: readonly string[];
  /** [T] each. */
  readonly tokens: Readonly<Partial<Record<TokenField, Floats>>>;
}

/** One trajectory, as a line of a rollouts file. Arrays are per token and equally long. */
export type RolloutRow = {
  readonly group?: string | number;
  readonly reward?: number;
  readonly rewards?: Readonly<Record<string, number>>;
  readonly reward_baseline?: number;
  /** Absent: all tokens are trained on. */
  readonly mask?: ArrayLike<number>;
} & { readonly [K in TokenField]?: ArrayLike<number> };

/** Typed array that doubles as it fills. */
class Growing {
  private data: Floats;
  length = 0;

  constructor(precision: Precision) {
    this.data = precision === "f32" ? new Float32Array(1024) : new Float64Array(1024);
  }

  append(values: ArrayLike<number>): void {
    const length = this.length + values.length;
    if (length > this.data.length) {
      const larger = new (this.data.constructor as Float64ArrayConstructor)(
        Math.max(length, 2 * this.data.length),
      );
      larger.set(this.data.subarray(0, this.length));
      this.data = larger;
    }
    this.data.set(values, this.length);
    this.length = length;
  }

  finish(): Floats {
    return this.data.slice(0, this.length);
  }
}

/**
 * Packs rows one by one.
 * Every row is checked as it comes: lengths agree, numbers are finite, all rows have the same fields.
 */
export class RolloutsBuilder {
  private readonly precision: Precision;
  private readonly offsets = [0];
  private readonly mask: number[][] = [];
  private readonly groups: number[] = [];
  private readonly groupNumbers = new Map<string, number>();
  private readonly columns = new Map<string, Growing>();
  private hasGroups = false;

  constructor(options: { readonly precision?: Precision } = {}) {
    this.precision = options.precision ?? "f32";
  }

  get rows(): number {
    return this.offsets.length - 1;
  }

  get tokenCount(): number {
    return this.offsets[this.offsets.length - 1]!;
  }

  /**
   * @param source where the row came from, for messages
   * @throws ConfigError for a field of the wrong kind or length, a number that is not finite, or fields unlike those before
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
    const tokens: Partial<Record<TokenField, Floats>> = {};
    for (const name of TOKEN_FIELDS) if (this.columns.has(name)) tokens[name] = take(name)!;
    const components = [...this.columns.keys()].filter((name) => name.startsWith(COMPONENT));
    const offsets = Uint32Array.from(this.offsets);
    return {
      offsets,
      mask: Uint32Array.from(this.mask.flat()),
      rewards: take("reward") ?? (tokens.token_rewards && rowSums(tokens.token_rewards, offsets)),
      rewardComponents: Object.fromEntries(
        components.map((name) => [name.slice(COMPONENT.length), take(name)!]),
      ),
      rewardBaselines: take("reward_baseline"),
      groupOfRow: this.hasGroups ? Uint32Array.from(this.groups) : undefined,
      groupNames: [...this.groupNumbers.keys()],
      tokens,
    };
  }

  private column(name: string, at: Place): Growing {
    const known = this.columns.get(name);
    if (known) return known;
    if (at.row > 0) throw refusal(at, `it has ${name}, which the rows before it have not`, name);
    const column = new Growing(this.precision);
    this.columns.set(name, column);
    return column;
  }

  private addGroup(group: string | number | undefined, at: Place): void {
    if (at.row === 0) this.hasGroups = group !== undefined;
    if (this.hasGroups !== (group !== undefined))
      throw refusal(
        at,
        this.hasGroups ? "it names no group, as other rows do" : "it names a group, as no row before did",
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
  if (wrong >= 0)
    throw refusal(at, `mask must be 0 or 1 at every token: ${mask[wrong]} at token ${wrong}`, "mask");
  return mask;
}

function finite(values: ArrayLike<number>, name: string, at: Place): Float64Array {
  const numbers = new Float64Array(values.length);
  for (let t = 0; t < values.length; t++) {
    const value: unknown = values[t];
    numbers[t] = typeof value === "bigint" ? Number(value) : typeof value === "number" ? value : Number.NaN;
    if (!Number.isFinite(numbers[t])) {
      const where = isTokenField(name) ? ` at token ${t}` : "";
      throw refusal(at, `${name} must be a finite number: ${value}${where}`, name);
    }
  }
  return numbers;
}

function rowSums(values: Floats, offsets: Uint32Array): Float64Array {
  const sums = new Float64Array(offsets.length - 1);
  for (let row = 0; row < sums.length; row++)
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++) sums[row]! += values[t]!;
  return sums;
}

/** Packs rows that are already in memory. */
export function packRollouts(
  rows: Iterable<RolloutRow>,
  options: { readonly precision?: Precision } = {},
): Rollouts {
  const builder = new RolloutsBuilder(options);
  for (const row of rows) builder.add(row);
  return builder.build();
}

/**
 * Checks typed arrays that are packed already; nothing is copied.
 * @throws ConfigError for offsets that do not rise from 0 to T, lengths that disagree, or the first number that is not
 * finite, with its row and token
 */
export function checkRollouts(rollouts: Rollouts): Rollouts {
  const { offsets, mask, tokens, groupOfRow, rewards, rewardBaselines, rewardComponents } = rollouts;
  const rows = offsets.length - 1;
  for (let row = 0; row < rows; row++)
    if (offsets[row + 1]! < offsets[row]!)
      throw new ConfigError(
        `Cannot use packed rollouts as offsets must not fall: ${offsets[row + 1]} after ${offsets[row]} at row ${row}.`,
      );
  const perRow = { rewards, reward_baseline: rewardBaselines, group: groupOfRow, ...rewardComponents };
  for (const [name, values] of Object.entries(perRow)) checkLength(name, values, rows);
  for (const [name, values] of Object.entries({ mask, ...tokens })) checkLength(name, values, offsets[rows]!);
  for (const [name, values] of Object.entries({
    rewards,
    reward_baseline: rewardBaselines,
    ...rewardComponents,
  }))
    refuseNonFinite(name, values, (i) => `row ${i}`);
  for (const [name, values] of Object.entries(tokens))
    refuseNonFinite(name, values, (t) => {
      const row = rowAt(offsets, t);
      return `row ${row}, token ${t - offsets[row]!}`;
    });
  return rollouts;
}

function checkLength(name: string, values: ArrayLike<number> | undefined, length: number): void {
  if (values && values.length !== length)
    throw new ConfigError(
      `Cannot use packed rollouts as ${name} must have ${length} numbers: ${values.length}.`,
      { path: name },
    );
}

function refuseNonFinite(name: string, values: Floats | undefined, place: (i: number) => string): void {
  const i = values?.findIndex((x) => !Number.isFinite(x)) ?? -1;
  if (i >= 0)
    throw new ConfigError(
      `Cannot use packed rollouts as ${name} must be finite: ${values![i]} at ${place(i)}.`,
      { path: name },
    );
}

/** Row of a token, by bisection. */
export function rowAt(offsets: Uint32Array, token: number): number {
  let low = 0;
  let high = offsets.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle]! <= token) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Numbers of each token as a list per row. */
export function unpack(values: ArrayLike<number>, offsets: Uint32Array): number[][] {
  return Array.from({ length: offsets.length - 1 }, (_, row) =>
    Array.from({ length: offsets[row + 1]! - offsets[row]! }, (_, k) => values[offsets[row]! + k]!),
  );
}
