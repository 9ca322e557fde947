/** The lines that a change adds, as what to mutate. */
import { execFileSync } from "node:child_process";
import { ROOT, ROOT_FILES, topOf } from "./folders.ts";
import type { Plan } from "./mutant.ts";

/** Plans for the lines of src/ and shaders/ added or changed since `ref`, one per folder. */
export function changedLines(ref: string): Plan[] {
  const diff = execFileSync("git", ["diff", "-U0", "--no-color", "--diff-filter=AMR", ref, "--", "src", "shaders"], {
    cwd: ROOT,
    encoding: "utf8",
    maxBuffer: 1 << 28,
  });
  return parseDiff(diff);
}

/** The same, of the output of `git diff -U0`. */
export function parseDiff(diff: string): Plan[] {
  const byFolder = new Map<string, string[]>();
  let file = "";
  for (const line of diff.split("\n")) {
    if (line.startsWith("+++ ")) file = line.startsWith("+++ b/") ? line.slice(6) : "";
    const hunk = /^@@ -\S+ \+(\d+)(?:,(\d+))? @@/.exec(line);
    const folder = folderOf(file);
    if (!hunk || !folder) continue;
    const [start, count] = [Number(hunk[1]), Number(hunk[2] ?? 1)];
    if (count === 0) continue;
    const lines = byFolder.get(folder) ?? [];
    byFolder.set(folder, [...lines, `${file}:${start}-${start + count - 1}`]);
  }
  return [...byFolder].map(([folder, lines]) => ({ folder, lines }));
}

/** The part of the plans' lines that is about `most` lines; 1 when there are no more. */
export function partOfAbout(most: number, plans: readonly Plan[]): number {
  const lengths = plans.flatMap(({ lines = [] }) => lines).map(lengthOf);
  const total = lengths.reduce((sum, length) => sum + length, 0);
  return total <= most ? 1 : most / total;
}

function lengthOf(range: string): number {
  const [, from, to] = /:(\d+)-(\d+)$/.exec(range) ?? [];
  return Number(to) - Number(from) + 1;
}

function folderOf(file: string): string | undefined {
  if (/^shaders\/.*\.wgsl$/.test(file)) return "shaders";
  const [, path] = /^src\/(.*\.ts)$/.exec(file) ?? [];
  if (path === undefined) return undefined;
  return path.includes("/") ? topOf(path) : ROOT_FILES;
}
