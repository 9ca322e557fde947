/** Runs the benchmarks, or those named: `npm run bench -- matmul model`. `--json` prints a line of JSON each. */
import { readdirSync } from "node:fs";

const wanted = process.argv.slice(2).filter((arg) => !arg.startsWith("--"));
const names = readdirSync(new URL(".", import.meta.url))
  .filter((file) => file.endsWith("_bench.ts"))
  .map((file) => file.replace("_bench.ts", ""))
  .sort();

const unknown = wanted.filter((name) => !names.includes(name));
if (unknown.length > 0) {
  console.error(`There is no benchmark named ${unknown.join(", ")}: ${names.join(", ")}`);
  process.exit(1);
}
for (const name of wanted.length > 0 ? wanted : names) {
  const { run } = (await import(`./${name}_bench.ts`)) as { run(): Promise<void> };
  await run();
}
