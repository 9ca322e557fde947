/** Mutants that no test can notice, listed in equivalent.json with the reason. */
import { readFileSync } from "node:fs";
import type { Mutant } from "./mutant.ts";

/** `[{ file, from, to, reason }]`: the text that is changed and what it becomes, white space folded. */
const listed: readonly {
  readonly file: string;
  readonly from: string;
  readonly to: string;
  readonly reason: string;
}[] = JSON.parse(readFileSync(new URL("./equivalent.json", import.meta.url), "utf8"));

/** True when the change is listed for this file. */
export function isEquivalent({ file, from, to }: Mutant): boolean {
  return listed.some((it) => it.file === file && fold(it.from) === fold(from) && fold(it.to) === fold(to));
}

function fold(text: string): string {
  return text.replace(/\s+/g, " ").trim();
}
