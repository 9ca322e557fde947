/**
 * Mutation testing: makes one-place mistakes and counts those that the tests notice.
 *
 *   npm run mutants -- TARGET...             src/TARGET (`loop`, `model/files/jinja`, `log/progress.ts`), `shaders`, or
 *                                            `root` for the files directly in src/
 *   npm run mutants -- TARGET --part 0.1     a seeded tenth of its lines (`--seed N`)
 *   npm run mutants -- --changed REF         the lines changed since REF, in every folder; `--part` too
 *                                            `--most N`: a seeded sample of about N of those lines
 *   --concurrency N                          processes that judge mutants of TypeScript at once; default 2
 *   --without-static                         leaves out mutants that act at import: each runs every test that imports them
 *
 * Survivors are printed with file, line and change. Those listed in equivalent.json cannot be noticed by any test and
 * count as killed. Exits 1 when a target's score is below its threshold (folders.ts), 2 for wrong usage.
 * `--json FILE` appends one line per target: date, commit, part, counts, score, survivors. scores.jsonl keeps such lines
 * without the survivors.
 */
import { execFileSync } from "node:child_process";
import { appendFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { changedLines, partOfAbout } from "./changed.ts";
import { ROOT, requiredFor, sourcesIn } from "./folders.ts";
import type { Mutant, Plan } from "./mutant.ts";
import { scoreOf } from "./score.ts";
import { mutateShaders } from "./shaders.ts";
import { mutateSources } from "./sources.ts";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    part: { type: "string", default: "1" },
    seed: { type: "string", default: "1" },
    changed: { type: "string" },
    most: { type: "string" },
    json: { type: "string" },
    concurrency: { type: "string", default: "2" },
    "without-static": { type: "boolean", default: false },
  },
});

function plans(): readonly Plan[] {
  if (values.changed) return changedLines(values.changed);
  return positionals.map((folder) => ({ folder }));
}

function usage(message: string): never {
  process.stderr.write(
    `${message}\nUsage: npm run mutants -- TARGET... [--part 0.1] [--seed N] [--concurrency N] [--without-static] | --changed REF\n`,
  );
  process.exit(2);
}

/** Of the code that is judged: others may commit during a run of many minutes. */
const commit = execFileSync("git", ["rev-parse", "--short", "HEAD"], { cwd: ROOT, encoding: "utf8" }).trim();

interface Judged {
  readonly folder: string;
  readonly mutants: readonly Mutant[];
  readonly seconds: number;
}

/** Prints the target's score and survivors. Returns whether the score suffices. */
function report({ folder, mutants, seconds }: Judged): boolean {
  const { total, noticed, equivalent, percent, survivors } = scoreOf(mutants);
  const required = requiredFor(folder);
  for (const { file, line, mutator, from, to } of survivors)
    console.log(`survived  ${file}:${line}  ${mutator}  ${oneLine(from)}  ->  ${oneLine(to)}`);
  console.log(
    `${folder}: ${noticed} of ${total} noticed, ${equivalent} of them equivalent by list; ` +
      `score ${percent.toFixed(1)}, required ${required}; ${Math.round(seconds)} s`,
  );
  if (values.json) {
    const date = new Date().toISOString().slice(0, 10);
    const without = withoutStatic ? { without: "static" } : {};
    const row = { date, commit, folder, part: sampled, seed: Number(values.seed), ...without };
    const result = { mutants: total, killed: noticed, score: Number(percent.toFixed(1)), survivors };
    appendFileSync(values.json, `${JSON.stringify({ ...row, ...result })}\n`);
  }
  return percent >= required;
}

function oneLine(text: string): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > 70 ? `${line.slice(0, 67)}...` : line;
}

const part = Number(values.part);
if (!(part > 0 && part <= 1)) usage(`Cannot mutate a part of ${values.part}: it lies in (0, 1].`);
const concurrency = Number(values.concurrency);
if (!(Number.isInteger(concurrency) && concurrency > 0)) usage(`Cannot run ${values.concurrency} processes at once.`);
const withoutStatic = values["without-static"];
const chosen = plans();
const sampled = values.most === undefined ? part : partOfAbout(Number(values.most), chosen);
if (chosen.length === 0 && !values.changed) usage("Cannot tell what to mutate: name a target, or --changed REF.");
for (const { folder } of chosen)
  if (folder !== "shaders" && !sourcesIn(folder))
    usage(`Cannot mutate src/${folder}: there is no such file or folder.`);
let isGood = true;
for (const { folder, lines } of chosen) {
  const started = performance.now();
  const mutate = folder === "shaders" ? mutateShaders : mutateSources;
  const mutants = await mutate({ folder, lines, part: sampled, seed: Number(values.seed), concurrency, withoutStatic });
  const seconds = (performance.now() - started) / 1000;
  isGood = report({ folder, mutants, seconds }) && isGood;
}
if (chosen.length === 0) console.log("No line that can be mutated has changed.");
process.exitCode = isGood ? 0 : 1;
