/**
 * Runs the benchmarks, or those named: `npm run bench -- matmul model`. `--json` prints each figure as a line of JSON,
 * `--save` also writes them to `bench/history/`. `cost` counts what machines that are not here would do, `--kernels` kernel by kernel. `algorithms` has options of its own: see algorithms_bench.ts.
 */
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { begin, figures } from "./harness.ts";
import { saveFigures } from "./history.ts";
import { namedBenches } from "./options.ts";

const wanted = namedBenches(process.argv.slice(2));
const names = readdirSync(new URL(".", import.meta.url))
  .filter((file) => file.endsWith("_bench.ts"))
  .map((file) => file.replace("_bench.ts", ""))
  .sort();

const unknown = wanted.filter((name) => !names.includes(name));
if (unknown.length > 0) {
  console.error(`Cannot run ${unknown.join(", ")}: there is no such benchmark. Choose from ${names.join(", ")}.`);
  process.exit(1);
}
for (const name of wanted.length > 0 ? wanted : names) {
  const { run } = (await import(`./${name}_bench.ts`)) as { run(): Promise<void> };
  begin(name);
  await run();
}
if (process.argv.includes("--save")) {
  const when = { date: new Date().toISOString(), commit: commit() };
  console.error(`saved ${saveFigures(figures.map((figure) => ({ ...when, ...figure })))}`);
}

function commit(): string {
  const git = (...args: string[]) => spawnSync("git", args, { encoding: "utf8" }).stdout?.trim() ?? "";
  const isChanged = git("status", "--porcelain", "--untracked-files=no") !== "";
  return `${git("rev-parse", "--short", "HEAD") || "unknown"}${isChanged ? "+" : ""}`;
}
