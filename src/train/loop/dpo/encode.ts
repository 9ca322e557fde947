/** Preferences as tokens, within a length. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { PlacedPreference } from "../../data/preference.ts";
import { type EncodedRow, type EncodedRows, encodeRows, type FitOptions } from "../sft/encode.ts";

/** A preference as tokens: a chosen and a rejected row, or one row with a label. */
export interface EncodedPreference extends Pick<PlacedPreference, "file" | "line" | "label" | "margin"> {
  readonly rows: readonly EncodedRow[];
}

/** Preferences that train, and how many were changed or left out. */
export interface EncodedPreferences extends Omit<EncodedRows, "rows" | "unanswered"> {
  readonly preferences: readonly EncodedPreference[];
}

/**
 * Encodes every preference. One whose rows are too long is cut or left out as a whole.
 * @throws {ConfigError} naming file and line: for rows that cannot be trained on, for answers that are the same tokens, and with
 * `error` for a row that is too long
 */
export function encodePreferences(examples: readonly PlacedPreference[], options: FitOptions): EncodedPreferences {
  const preferences: EncodedPreference[] = [];
  const counts = { truncated: 0, skipped: 0, emptied: 0 };
  for (const { answers, file, line, label, margin } of examples) {
    const each = answers.map((answer) => encodeRows([answer], options));
    const rows = each.flatMap((encoded) => encoded.rows);
    const isCut = each.some(({ truncated }) => truncated > 0);
    if (each.some(({ skipped }) => skipped > 0)) counts.skipped++;
    else if (rows.length < answers.length || (isCut && areEqual(rows))) counts.emptied++;
    else {
      if (areEqual(rows)) throw sameTokens({ file, line });
      counts.truncated += Number(isCut);
      const more = { ...(label !== undefined && { label }), ...(margin !== undefined && { margin }) };
      preferences.push({ rows, file, line, ...more });
    }
  }
  return { preferences, ...counts };
}

function areEqual([chosen, rejected]: readonly EncodedRow[]): boolean {
  return rejected !== undefined && String(chosen!.ids) === String(rejected.ids);
}

function sameTokens(at: { file: string; line: number }): ConfigError {
  return new ConfigError(
    "Cannot use the pair: both answers are the same tokens, so that nothing is preferred. Remove the row, or correct it.",
    at,
  );
}
