/** Names for folders that make way. */
import { readdir } from "node:fs/promises";
import { basename, dirname } from "node:path";

/** Moves an earlier run away for a fresh one: to `NAME.1`, or the number after the highest there is. */
export async function placeAside(dir: string): Promise<string> {
  const siblings = await readdir(dirname(dir));
  const numbers = siblings
    .filter((name) => name.startsWith(`${basename(dir)}.`))
    .map((name) => Number(name.slice(basename(dir).length + 1)))
    .filter(Number.isInteger);
  return `${dir}.${Math.max(0, ...numbers) + 1}`;
}
