/**
 * Published launch scripts against bash: each is read as bash runs it, or refused. They are not part of this repository:
 * LAUNCH_SCRIPTS names a folder with `run_*.sh` in it, at any depth.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { convert } from "../../../src/cluster/convert/convert.ts";
import { readSource } from "../../../src/cluster/convert/source/read.ts";
import { hasBash } from "../../fixtures/bash.ts";
import { compareWithBash } from "../../fixtures/same_as_bash.ts";
import { readConfig } from "../../train/config/disk.ts";

const folder = process.env.LAUNCH_SCRIPTS;
const found = folder === undefined ? [] : (readdirSync(folder, { recursive: true }) as string[]);
const scripts = found.filter((name) => /(^|\/)run_[^/]*\.sh$/.test(name)).sort();
const textOf = (name: string) => readFileSync(join(folder ?? "", name), "utf8");

describe.skipIf(scripts.length === 0 || !hasBash)("published launch scripts", () => {
  test("are read as bash runs them, or refused", () => {
    const outcomes = scripts.map((name) => ({ name, ...compareWithBash(textOf(name)) }));
    console.info("against bash:", tally(outcomes.map(({ outcome }) => outcome)));
    expect(outcomes.filter(({ outcome }) => outcome === "wrong")).toEqual([]);
  }, 600_000);

  for (const to of ["rllm", "trinity"] as const) {
    test(`convert to ${to} with every setting accounted for, or are refused with a reason`, () => {
      const lost: string[] = [];
      const outcomes = scripts.map((name) => {
        const source = readSource([{ name, text: textOf(name) }], "verl");
        const { problems, notes, values } = convert(source, { to, readConfig });
        if (problems.some(({ severity }) => severity === "error")) return "refused";
        const told = new Set([
          ...notes.flatMap(({ from }) => from?.split(" + ") ?? []),
          ...[...values.values()].flatMap(({ from }) => from),
        ]);
        lost.push(...[...source.values.keys()].filter((path) => !told.has(path)).map((path) => `${name}: ${path}`));
        return "converts";
      });
      console.info(`to ${to}:`, tally(outcomes));
      expect(lost).toEqual([]);
    }, 600_000);
  }
});

function tally(outcomes: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const outcome of outcomes) counts[outcome] = (counts[outcome] ?? 0) + 1;
  return counts;
}
