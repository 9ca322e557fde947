/** What a target of mutation testing is: its files, the tests that judge its mutants, the score that it must reach. */
import { existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));

/** The target of the files directly in src/, each judged by its own test (`src/cli.ts` by `test/cli_test.ts`). */
export const ROOT_FILES = "root";

/** Rooms whose folders are targets of their own. */
const DIVIDED = /^(cluster|engine|leaves|serve|train)\//;

/** Tests outside a top folder's own that exercise it too. */
const ALSO: Readonly<Record<string, readonly string[]>> = {
  "train/loop": ["test/chat/endpoint_test.ts", "test/train/task/*_test.ts"],
  "engine/model": ["test/train/backend/golden_model_test.ts"],
  "serve/tinker": ["test/train/backend/engine_test.ts"],
  shaders: ["test/engine/algorithm/**/*_test.ts", "test/engine/compute/**/*_test.ts", "test/engine/model/**/*_test.ts"],
};

/** Percent of mutants that the tests must notice, by top folder. */
const REQUIRED: Readonly<Record<string, number>> = {
  "engine/algorithm": 90,
  "engine/model": 90,
  "train/backend": 90,
  "train/loop": 90,
};
const REQUIRED_ELSEWHERE = 85;

/** A folder below another one must reach the score of the top folder. */
export function requiredFor(target: string): number {
  return REQUIRED[topOf(target)] ?? REQUIRED_ELSEWHERE;
}

/**
 * Globs of the tests for mutants of `src/TARGET` or of `shaders`: those of the same folder in test/, or of the nearest
 * folder above it that test/ has, and the further tests of the top folder.
 */
export function testsFor(target: string): string[] {
  if (target === ROOT_FILES) return sourcesOf(target).map(ownTestOf).filter(isInCheckout);
  const parts = target.split("/");
  const folders = parts.map((_, i) => parts.slice(0, parts.length - i).join("/"));
  const own = folders.find((folder) => isInCheckout(`test/${folder}`));
  return [...(own ? [`test/${own}/**/*_test.ts`] : []), ...(ALSO[topOf(target)] ?? [])];
}

/** Files of a target, relative to the checkout; undefined where src/ has no such file or folder. */
export function sourcesIn(target: string): string[] | undefined {
  if (target === ROOT_FILES) return sourcesOf(target);
  const path = `src/${target}`;
  if (!isInCheckout(path)) return undefined;
  return statSync(join(ROOT, path)).isDirectory() ? sourcesOf(target) : [path];
}

function sourcesOf(folder: string): string[] {
  const [path, recursive] = folder === ROOT_FILES ? ["src", false] : [`src/${folder}`, true];
  const names = readdirSync(join(ROOT, path), { recursive, encoding: "utf8" });
  const chosen = names.filter((name) => name.endsWith(".ts"));
  return chosen.sort().map((name) => `${path}/${name}`);
}

/** `train/loop` of `train/loop/stages`, `chat` of `chat/apis`. */
export function topOf(target: string): string {
  const [room, folder] = target.split("/");
  return DIVIDED.test(target) && !folder!.endsWith(".ts") ? `${room}/${folder}` : room!;
}

const ownTestOf = (file: string) => file.replace(/^src\/(.*)\.ts$/, "test/$1_test.ts");
const isInCheckout = (path: string) => existsSync(join(ROOT, path));
