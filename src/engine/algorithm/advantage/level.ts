/** Advantages with their level: the checks at the boundary, and the one way to read them. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { Advantages } from "../../contract/backend.ts";

/** The batch that advantages must fit. */
export interface AdvantageCheck<V> {
  /** N. */
  readonly rows: number;
  /** T. */
  readonly tokens: number;
  /** Number of values, where they are not an array (but a buffer). */
  readonly length?: ((values: V) => number) | undefined;
  /** Source of the advantages, for messages. */
  readonly from?: string | undefined;
}

const FORM = 'Give { level: "row" | "token", values }.';

/**
 * Returns advantages whose level and length fit the batch; checks what untyped callers give, too.
 * @throws {ConfigError} for a bare array, an unknown level, or a length that the level does not have
 */
export function checkAdvantages<V>(advantages: Advantages<V>, check: AdvantageCheck<V>): Advantages<V> {
  const { rows, tokens, length = lengthOf, from } = check;
  const what = from === undefined ? "advantages" : `advantages from ${from}`;
  const refuse = (why: string) => new ConfigError(`Cannot take ${what}: ${why}`, { path: "advantages", kind: "code" });
  if (isBare(advantages))
    throw refuse(
      `an array of ${advantages.length} numbers does not say whether they are per row or per token. ${FORM}`,
    );
  const { level, values } = advantages ?? {};
  if (level !== "row" && level !== "token")
    throw refuse(`there is no level ${JSON.stringify(level) ?? "undefined"}. ${FORM}`);
  const wanted = level === "row" ? rows : tokens;
  const found = values === undefined || values === null ? "none" : length(values);
  if (found !== wanted)
    throw refuse(
      `level "${level}" needs one value per ${level} (${wanted}), and there are ${found}. The batch has ${rows} rows and ${tokens} tokens.`,
    );
  return advantages;
}

function isBare(advantages: unknown): advantages is ArrayLike<number> {
  return Array.isArray(advantages) || ArrayBuffer.isView(advantages);
}

function lengthOf(values: unknown): number {
  return (values as ArrayLike<number>).length;
}

/** Reads the advantage of a token and its row. */
export function advantageReader({ level, values }: Advantages<ArrayLike<number>>): (t: number, row: number) => number {
  return level === "token" ? (t) => values[t]! : (_, row) => values[row]!;
}

/** Returns the factors of the loss: the advantages, or in their place the weights of a supervised batch, [T]. */
export function factorsOf<V>({
  advantages,
  weights,
}: {
  readonly advantages: Advantages<V>;
  readonly weights?: V;
}): Advantages<V> {
  return weights ? { level: "token", values: weights } : advantages;
}
