/** Mutants of WGSL: each changed shader is put into a copy of the checkout, and the tests of its kernel run there. */
import { spawnSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { LONG_TESTS, NIGHTLY_TESTS, SLOW_TESTS } from "../../vitest.slow.ts";
import { ROOT, topOf } from "./folders.ts";
import type { Chosen, Mutant } from "./mutant.ts";
import { isChosen, type Part } from "./sample.ts";
import { mutantsOf, type WgslMutant } from "./wgsl.ts";

interface Trial {
  readonly file: string;
  readonly original: string;
  readonly mutant: WgslMutant;
}

/** A mutant may run into an endless loop on the device; one that takes this long counts as noticed. */
const TIMEOUT_MS = 240_000;
const COPIED = [
  "src",
  "test",
  "shaders",
  "config",
  "scripts",
  "examples",
  "page",
  "deno.json",
  "package.json",
  "tsconfig.json",
  "vitest.config.ts",
  "vitest.slow.ts",
];

/**
 * @param options.lines globs with line ranges (`shaders/a.wgsl:3-9`); absent: all shaders
 * @returns every mutant; `CompileError` where WGSL refuses the change
 */
export function mutateShaders({ lines, part, seed }: Chosen): Mutant[] {
  const checkout = copyCheckout();
  try {
    return wgslFiles().flatMap((file) => {
      const original = readFileSync(join(ROOT, file), "utf8");
      const isTypeScript = file.endsWith(".ts");
      const chosen = mutantsOf(original, { isTypeScript }).filter((mutant) =>
        isMeant(mutant, { file, lines, part, seed }),
      );
      return chosen.map((mutant) => judge(checkout, { file, original, mutant }));
    });
  } finally {
    rmSync(checkout, { recursive: true, force: true });
  }
}

interface Meant extends Part {
  readonly file: string;
  readonly lines: readonly string[] | undefined;
}

function isMeant({ line, to }: WgslMutant, { file, lines, part, seed }: Meant): boolean {
  if (!isChosen(`${file}:${line}:${to}`, { part, seed })) return false;
  if (!lines) return true;
  return lines.some((range) => {
    const [, name, from, until] = /^(.*):(\d+)-(\d+)$/.exec(range) ?? [];
    return name === file && line >= Number(from) && line <= Number(until);
  });
}

function judge(checkout: string, { file, original, mutant }: Trial): Mutant {
  const { text, ...change } = mutant;
  const path = join(checkout, file);
  checkSound(checkout, ownTests(file));
  writeFileSync(path, text);
  try {
    const status = statusOf(checkout, file);
    process.stderr.write(`${status.padEnd(12)} ${file}:${mutant.line}  ${mutant.to}\n`);
    return { file, ...change, status };
  } finally {
    writeFileSync(path, original);
  }
}

/** Test sets that were seen to pass without a mutant: only then does a failure mean anything. */
const sound = new Set<string>();

function checkSound(checkout: string, tests: readonly string[]): void {
  const key = tests.join(",");
  if (sound.has(key)) return;
  const { status, output } = runTests(checkout, tests);
  if (status !== 0) throw new Error(`Cannot judge mutants: ${key} fails without any.\n${output.slice(-2000)}`);
  sound.add(key);
}

function statusOf(checkout: string, file: string): string {
  const { status, output } = runTests(checkout, ownTests(file));
  if (/Cannot compile/.test(output)) return "CompileError";
  if (status === null) return "Timeout";
  return status === 0 ? "Survived" : "Killed";
}

function runTests(checkout: string, tests: readonly string[]): { status: number | null; output: string } {
  const vitest = join(checkout, "node_modules", "vitest", "vitest.mjs");
  const config = join("scripts", "mutants", "vitest.config.ts");
  const { status, stdout, stderr } = spawnSync(process.execPath, [vitest, "run", "--bail", "1", "--config", config], {
    cwd: checkout,
    env: { ...process.env, MUTANT_TESTS: tests.join(","), REQUIRE_GPU: "1", NO_COLOR: "1" },
    encoding: "utf8",
    timeout: TIMEOUT_MS,
    maxBuffer: 1 << 28,
  });
  return { status, output: stdout + stderr };
}

/**
 * The tests that import the code which names the shader, or code of that folder which imports it; of algorithms, whose
 * doors lie further up, all tests. For an included file: those of all kernels that include it.
 */
export function ownTests(file: string): string[] {
  if (/^src\/engine\/algorithm\//.test(file)) return algorithmTests();
  const name = file.replace(/^shaders\/|\.wgsl$/g, "");
  const owners = sourceFiles().filter((path) => textOf(path).includes(`"${name}"`));
  if (owners.length === 0) return [...new Set(includers(name).flatMap(ownTests))].sort();
  const top = topOf(owners[0]!.slice("src/".length));
  if (top === "engine/algorithm") return algorithmTests();
  const beside = sourceFiles().filter((path) => dirname(path) === dirname(owners[0]!) && importsAny(path, owners));
  return testFiles(`test/${top}`).filter((path) => importsAny(path, [...owners, ...beside]));
}

/** Tests that judge no mutant. */
const LEFT_OUT = [...SLOW_TESTS.filter((path) => !LONG_TESTS.includes(path)), ...NIGHTLY_TESTS];

/** A browser runs what is built, not the changed checkout. */
const algorithmTests = () => testFiles("test/engine/algorithm").filter((path) => !path.endsWith("/browser_test.ts"));

function importsAny(path: string, files: readonly string[]): boolean {
  return importsOf(path).some((imported) => files.includes(imported));
}

function importsOf(path: string): string[] {
  return Array.from(textOf(path).matchAll(/ from "(\.[^"]+\.ts)"/g), ([, to]) => join(dirname(path), to!));
}

const includers = (name: string) => wgslFiles().filter((path) => textOf(path).includes(`//#include "${name}.wgsl"`));
const texts = new Map<string, string>();
function textOf(path: string): string {
  const text = texts.get(path) ?? readFileSync(join(ROOT, path), "utf8");
  texts.set(path, text);
  return text;
}

/** Files of shaders/, and those of src/ that hold WGSL. */
const wgslFiles = () => [
  ...filesIn("shaders", ".wgsl"),
  ...filesIn("src", ".ts").filter((path) => textOf(path).includes("/* wgsl */ `")),
];
const sourceFiles = () => filesIn("src", ".ts");
const testFiles = (folder: string) => filesIn(folder, "_test.ts").filter((path) => !LEFT_OUT.includes(path));

function filesIn(folder: string, ending: string): string[] {
  const names = readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" });
  const chosen = names.filter((name) => name.endsWith(ending));
  return chosen.sort().map((name) => `${folder}/${name}`);
}

function copyCheckout(): string {
  mkdirSync(join(ROOT, ".cache", "mutants"), { recursive: true });
  const shared = join(ROOT, "..", "shared");
  const link = join(ROOT, ".cache", "mutants", "shared");
  if (existsSync(shared) && !existsSync(link)) symlinkSync(shared, link, "dir");
  const checkout = mkdtempSync(join(ROOT, ".cache", "mutants", "checkout-"));
  for (const name of COPIED) cpSync(join(ROOT, name), join(checkout, name), { recursive: true });
  symlinkSync(join(ROOT, "node_modules"), join(checkout, "node_modules"), "dir");
  return checkout;
}
