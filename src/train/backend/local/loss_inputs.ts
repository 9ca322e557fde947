/** The inputs of a loss by position: their checks, and how a position is named to a client. */
import type { LossRows } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";

/** A target in the client's terms: `position 3 of datum 0`, or `target 1 of position 3 of datum 0`. */
export function targetText({ offsets, targetOffsets }: LossRows, { t, datum }: { t: number; datum: number }): string {
  if (!targetOffsets) return `position ${t - offsets[datum]!} of datum ${datum}`;
  const at = t - targetOffsets[datum]!;
  const width = (targetOffsets[datum + 1]! - targetOffsets[datum]!) / (offsets[datum + 1]! - offsets[datum]!);
  return `target ${at % width} of position ${Math.floor(at / width)} of datum ${datum}`;
}

/** @throws ConfigError for an input that has not one finite element per target */
export function checkInputs(name: string, rows: LossRows): void {
  const { inputs, targets, targetOffsets } = rows;
  for (const [input, values] of Object.entries(inputs)) {
    if (values.length !== targets.length)
      throw new ConfigError(
        `Cannot take the loss ${name}: ${input} must have one element per ${targetOffsets ? "target" : "token"} (${values.length} of ${targets.length}).`,
        { path: input },
      );
    const broken = values.findIndex((value) => !Number.isFinite(value));
    if (broken < 0) continue;
    const datum = (targetOffsets ?? rows.offsets).findLastIndex((offset) => offset <= broken);
    const place = targetText(rows, { t: broken, datum });
    throw new ConfigError(`Cannot take the loss ${name}: ${input} must be finite (${values[broken]} at ${place}).`, {
      path: input,
    });
  }
}
