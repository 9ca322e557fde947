/** Mutants of TypeScript, by StrykerJS with its vitest runner. */
import { existsSync, mkdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import type { Location, PartialStrykerOptions } from "@stryker-mutator/api/core";
import { Stryker } from "@stryker-mutator/core";
import { ROOT, sourcesIn, testsFor } from "./folders.ts";
import type { Chosen, Mutant } from "./mutant.ts";
import { isChosen, type Part } from "./sample.ts";

/** Lines that are chosen or left out together when only a part is mutated. */
const WINDOW = 12;
const TEMP = ".cache/stryker";

/**
 * @param options.lines globs with line ranges (`src/a.ts:3-9`); absent: the whole folder
 * @returns every mutant
 */
export async function mutateSources(chosen: Chosen): Promise<Mutant[]> {
  const { folder, lines, part, seed, concurrency, withoutStatic } = chosen;
  process.env.MUTANT_TESTS = testsFor(folder).join(",");
  linkShared();
  const mutate = lines?.filter((range) => isChosen(range, { part, seed })) ?? windowsOf(folder, { part, seed });
  if (mutate.length === 0) return [];
  const results = await new Stryker(
    options(folder, { mutate, concurrency, ignoreStatic: withoutStatic }),
  ).runMutationTest();
  return results.map((it) => ({
    file: it.fileName.startsWith(ROOT) ? it.fileName.slice(ROOT.length) : it.fileName,
    line: it.location.start.line,
    mutator: it.mutatorName,
    from: textAt(it.fileName, it.location),
    to: it.replacement,
    status: it.status,
  }));
}

function options(
  folder: string,
  run: { mutate: string[]; concurrency: number; ignoreStatic: boolean },
): PartialStrykerOptions {
  return {
    testRunner: "vitest",
    plugins: ["@stryker-mutator/vitest-runner", join(ROOT, "scripts/mutants/live_survivors.mjs")],
    vitest: { configFile: "scripts/mutants/vitest.config.ts", related: true },
    ...run,
    // What an error says is held by snapshots of the whole message, not by mutants of each word.
    mutator: { excludedMutations: ["StringLiteral"] },
    coverageAnalysis: "perTest",
    timeoutMS: 20_000,
    dryRunTimeoutMinutes: 30,
    reporters: ["progress-append-only", "live-survivors", "html", "json"],
    htmlReporter: { fileName: `.cache/mutants/${folder}.html` },
    jsonReporter: { fileName: `.cache/mutants/${folder}.json` },
    tempDirName: TEMP,
    cleanTempDir: "always",
    // dist is copied: some tests of the command line start it as a process, which runs without the mutant.
    ignorePatterns: [".cache", "runs", "checkpoints"],
    // Stryker rewrites it with TypeScript's JavaScript interface, which TypeScript 7 no longer has.
    tsconfigFile: "none",
    // Nothing checks types here, and some tests compare examples with their files.
    disableTypeChecks: false,
    warnings: false,
  };
}

/** All files of a target, or a seeded part of their lines. A mutant that spans two windows is in no part below 1. */
function windowsOf(folder: string, { part, seed }: Part): string[] {
  const files = sourcesIn(folder) ?? [];
  if (part >= 1) return files;
  return files.flatMap((file) => {
    const count = readFileSync(join(ROOT, file), "utf8").split("\n").length;
    const starts = Array.from({ length: Math.ceil(count / WINDOW) }, (_, i) => i * WINDOW + 1);
    const chosen = starts.filter((start) => isChosen(`${file}:${start}`, { part, seed }));
    return chosen.map((start) => `${file}:${start}-${Math.min(start + WINDOW - 1, count)}`);
  });
}

/** Tests look for golden files in `../shared`, and Stryker runs them in a copy of the checkout. */
function linkShared(): void {
  const temp = join(ROOT, TEMP);
  const shared = join(ROOT, "..", "shared");
  mkdirSync(temp, { recursive: true });
  if (existsSync(shared) && !existsSync(join(temp, "shared"))) symlinkSync(shared, join(temp, "shared"), "dir");
}

/** Lines and columns count from 1. */
function textAt(file: string, { start, end }: Location): string {
  const lines = readFileSync(join(ROOT, file.replace(ROOT, "")), "utf8")
    .split("\n")
    .slice(start.line - 1, end.line);
  if (lines.length === 0) return "";
  lines[lines.length - 1] = lines[lines.length - 1]!.slice(0, end.column - 1);
  lines[0] = lines[0]!.slice(start.column - 1);
  return lines.join("\n");
}
