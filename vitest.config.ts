import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";
import { LONGEST_TESTS, NIGHTLY_TESTS, SLOW_TESTS } from "./vitest.slow.ts";

const isNightly = process.env.NIGHTLY === "1";
const isSlow = process.env.SLOW === "1" || isNightly;

/** `grpu` and its doors as deno.json names them: a test that writes a program down runs it on the sources. */
const { imports } = JSON.parse(readFileSync(new URL("deno.json", import.meta.url), "utf8"));
const alias = Object.entries(imports as Record<string, string>)
  .filter(([name]) => /^grpu\b/.test(name))
  .map(([name, path]) => ({
    find: new RegExp(`^${name}$`),
    replacement: fileURLToPath(new URL(path, import.meta.url)),
  }));

const include = isNightly ? [...NIGHTLY_TESTS] : isSlow ? [...SLOW_TESTS] : ["test/**/*_test.ts"];
// With commands of their own: `deno task test:webgpu`, `npm run test:interop` and `test:reference`, which need Python, and `test:soak`.
const OTHERS = ["test/deno/**", "test/interop/**", "test/reference/**", "test/soak/**"];
const exclude = ["**/node_modules/**", ...OTHERS, ...(isSlow ? [] : [...SLOW_TESTS, ...NIGHTLY_TESTS])];

/** The suite as one project in which each file has a process of its own. */
export const isolated = defineConfig({
  resolve: { alias },
  test: {
    include,
    exclude,
    // A test takes seconds, and a busy machine makes it ten times that; whole training runs are among the slow ones.
    testTimeout: isSlow ? 300_000 : 60_000,
    hookTimeout: 120_000,
    // On machines that others share, a test's second try tells a defect from a delay; the reporter marks it (retry x1).
    retry: process.env.CI ? 1 : 0,
    // Of this process alone: what tests start (the command line, servers) does not count.
    coverage: { provider: "v8", include: ["src/**/*.ts"], reporter: ["text-summary"] },
    // A GPU device per file; two files at once fill two cores without starving the driver's threads.
    pool: "forks",
    maxWorkers: 2,
  },
});

/** Rooms whose files share two processes, because to start one and to load the sources takes longer than most files. */
const ROOMS = /^test\/(chat|cluster|engine|leaves|serve|train)\//;

/** What other files of the same process would meet: a replaced module, a registered name, what a command line imports. */
const CHANGES_ITS_PROCESS = /\bvi\.(mock|doMock|resetModules)\(|\b(register|define)[A-Z]\w*\(|\brunCli\(/;

const root = new URL(".", import.meta.url);
const fast = readdirSync(new URL("test", root), { recursive: true, encoding: "utf8" })
  .map((path) => `test/${path.replaceAll("\\", "/")}`)
  .filter((path) => path.endsWith("_test.ts"));
const shared = fast.filter(
  (path) => ROOMS.test(path) && !CHANGES_ITS_PROCESS.test(readFileSync(new URL(path, root), "utf8")),
);

const { test, ...rest } = isolated;
const projects = [
  { ...rest, test: { ...test, name: "shared", include: shared, isolate: false } },
  { ...rest, test: { ...test, name: "alone", exclude: [...exclude, ...shared] } },
];

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = ({ moduleId }: TestSpecification) => {
      const index = LONGEST_TESTS.findIndex((path) => moduleId.endsWith(`/${path}`));
      return index < 0 ? LONGEST_TESTS.length : index;
    };
    return (await super.sort(files)).sort((one, other) => place(one) - place(other));
  }
}

/** The slow suite has a process for each file. */
const slow = { ...isolated, test: { ...isolated.test, sequence: { sequencer: LongestFirst } } };

export default isSlow ? slow : defineConfig({ test: { ...test, projects } });
