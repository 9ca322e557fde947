/** A conversion's notes: as lines for people, and as the profile that `--report` writes. */
import { inline } from "../../train/config/fields/render.ts";
import { maskValue } from "../../train/config/secret.ts";
import type { Note, TrainingSystem } from "./contract.ts";

/** One line for people. */
export function formatNote({ kind, from, to, value, message, line }: Note): string {
  const shown = value === undefined ? "" : `=${inline(maskValue(to ?? from ?? "", value))}`;
  const what = [from, to && to !== from ? `-> ${to}` : ""].filter(Boolean).join(" ");
  const place = line === undefined ? "" : ` (line ${line})`;
  return `${kind}: ${what}${what ? shown : ""}${what && message ? ": " : ""}${message ?? ""}${place}`;
}

/** Settings without a counterpart, as a profile: converting back with `--profile` restores them. */
export function writeProfile(
  notes: readonly Note[],
  { from, to }: { from: TrainingSystem; to: TrainingSystem },
): string {
  const lines = [
    `# Settings of ${from} without a counterpart in ${to}.`,
    `# Give this file with --profile to convert back without loss.`,
    `${from}:`,
  ];
  const dropped = notes.filter(
    (note) => note.kind === "dropped" && note.from !== undefined && note.value !== undefined,
  );
  for (const { from: path, value, message } of dropped) {
    lines.push(`  # ${message}`, `  ${path}: ${inline(value ?? null)}`);
  }
  if (dropped.length === 0) lines[2] = `${from}: {}`;
  return `${lines.join("\n")}\n`;
}
