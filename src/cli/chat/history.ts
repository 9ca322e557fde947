/** Entries of earlier chats: a text file, one entry a line, the latest last. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { fileError } from "../../leaves/errors.ts";

/** The latest first. Nothing where there is no file yet. */
export function readHistory(file: string | undefined): string[] {
  if (file === undefined || !existsSync(file)) return [];
  try {
    return readFileSync(file, "utf8").split("\n").filter(Boolean).reverse();
  } catch (cause) {
    throw fileError(cause, { act: "read the history", file }) ?? cause;
  }
}

/** Writes the history for this user alone, because a chat may hold anything. */
export function writeHistory(file: string | undefined, entries: readonly string[]): void {
  if (file === undefined || entries.length === 0) return;
  try {
    writeFileSync(file, `${[...entries].reverse().join("\n")}\n`, { mode: 0o600 });
  } catch (cause) {
    throw fileError(cause, { act: "write the history", file }) ?? cause;
  }
}
