/**
 * The packed package in a fresh project: its declarations under the strictest options that `tsc --init` writes, a training
 * program, and a page through each bundler. The project's only packages are the dependencies that package.json names.
 */
import { execFileSync, type SpawnSyncReturns } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { nodeResolve } from "@rollup/plugin-node-resolve";
import { rollup } from "@rollup/wasm-node";
import { build as esbuild } from "esbuild";
import type { ConsoleMessage } from "playwright-core";
import { beforeAll, describe, expect, test } from "vitest";
import { CHROMIUM, openChromium } from "./fixtures/chromium.ts";
import { temporaryFolder } from "./fixtures/folder.ts";
import { hasShared, sharedPath } from "./fixtures/shared.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const { dependencies } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));

const dir = temporaryFolder("consumer");
beforeAll(() => {
  run("npm", ["pack", "--silent", "--ignore-scripts", "--pack-destination", dir], ROOT);
  const archive = readdirSync(dir).find((name) => name.endsWith(".tgz"))!;
  const modules = join(dir, "node_modules");
  mkdirSync(modules);
  run("tar", ["-xzf", join(dir, archive), "-C", modules]);
  run("mv", [join(modules, "package"), join(modules, "grpu")]);
  for (const name of [...Object.keys(dependencies), "@types/node", "undici-types"]) {
    mkdirSync(dirname(join(modules, name)), { recursive: true });
    symlinkSync(join(ROOT, "node_modules", name), join(modules, name));
  }
  writeFileSync(join(dir, "package.json"), '{"type":"module"}');
});

/** Standard output; what the program printed is in the message where it fails. */
function run(command: string, args: readonly string[], cwd = dir): string {
  try {
    return execFileSync(command, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  } catch (error) {
    const { stdout, stderr } = error as SpawnSyncReturns<string>;
    throw new Error(`${command} ${args.join(" ")}:\n${stdout}${stderr}`);
  }
}

/** The README's two programs, as they stand. */
const [TRAINING, PAGE] = [...readFileSync(join(ROOT, "README.md"), "utf8").matchAll(/```ts\n([\s\S]*?)```/g)].map(
  ([, program]) => program!,
) as [string, string];

/** One name of each other door. */
const DOORS = `
import { createClient } from "grpu/chat";
import { WebGpuDevice } from "grpu/compute";
import { httpFolder, LanguageModel } from "grpu/model";
import { STAGES, trainStep } from "grpu/train";
export const names = [createClient, WebGpuDevice, httpFolder, LanguageModel, STAGES, trainStep];
`;

describe("declarations compile with every option of tsc --init, libraries checked too", () => {
  const common = {
    target: "esnext",
    noEmit: true,
    strict: true,
    noUncheckedIndexedAccess: true,
    exactOptionalPropertyTypes: true,
    verbatimModuleSyntax: true,
    isolatedModules: true,
    noUncheckedSideEffectImports: true,
    moduleDetection: "force",
    skipLibCheck: false,
  };
  const all = ["training.ts", "page.ts", "doors.ts"];
  test.each([
    ["nodenext, Node's types, no DOM", { module: "nodenext", lib: ["esnext"], types: ["node"] }, all],
    ["nodenext, Node's types and DOM", { module: "nodenext", types: ["node"] }, all],
    ["bundler, DOM alone", { module: "esnext", moduleResolution: "bundler", types: [] }, ["page.ts", "doors.ts"]],
  ])("%s", (name, options, files) => {
    writeFileSync(join(dir, "training.ts"), TRAINING);
    writeFileSync(join(dir, "page.ts"), PAGE);
    writeFileSync(join(dir, "doors.ts"), DOORS);
    const config = `tsconfig.${name.replaceAll(/\W+/g, "-")}.json`;
    writeFileSync(join(dir, config), JSON.stringify({ compilerOptions: { ...common, ...options }, files }));
    run(process.execPath, [join(ROOT, "node_modules", "typescript", "bin", "tsc"), "-p", config]);
  });
});

test.skipIf(!hasShared)("the training program trains and leaves checkpoints, logs and a report", () => {
  const program = TRAINING.replace("DIR", sharedPath("models/stories260k")).replaceAll("OUT", "out");
  writeFileSync(join(dir, "training.mjs"), program);
  expect(run(process.execPath, ["training.mjs"])).toBe("trained 2 steps\n");
  expect(readdirSync(join(dir, "out"))).toEqual(
    expect.arrayContaining(["global_step_2", "metrics.jsonl", "report.html", "groups.jsonl"]),
  );
  expect(
    readFileSync(join(dir, "out", "metrics.jsonl"), "utf8")
      .trim()
      .split("\n"),
  ).toHaveLength(2);
});

const bundleWithEsbuild = (outdir: string, splitting = true) =>
  esbuild({
    absWorkingDir: dir,
    entryPoints: ["page.mjs"],
    outdir,
    bundle: true,
    minify: true,
    splitting,
    format: "esm",
    platform: "browser",
    metafile: true,
  });

describe("a page", () => {
  beforeAll(() => {
    writeFileSync(join(dir, "page.mjs"), PAGE);
  });
  const out = (bundler: string) => join(dir, bundler);

  const BUNDLERS: Readonly<Record<string, () => Promise<unknown>>> = {
    "esbuild, one file": () => bundleWithEsbuild(out("esbuild, one file"), false),
    esbuild: () => bundleWithEsbuild(out("esbuild")),
    rollup: async () => {
      const plugins = [nodeResolve({ browser: true, rootDir: dir })];
      const bundle = await rollup({ input: join(dir, "page.mjs"), plugins, onwarn: () => undefined });
      await bundle.write({ dir: out("rollup"), entryFileNames: "[name].js" });
    },
    vite: async () => {
      const { build } = await import("vite");
      const input = join(dir, "page.mjs");
      const output = { entryFileNames: "[name].js" };
      await build({
        root: dir,
        logLevel: "silent",
        configFile: false,
        build: { target: "esnext", outDir: out("vite"), rollupOptions: { input, output } },
      });
    },
  };

  test.each(Object.keys(BUNDLERS))("%s: one command, and the bundle computes what the sources do", async (name) => {
    await BUNDLERS[name]!();
    const scripts = readdirSync(out(name), { recursive: true, encoding: "utf8" }).filter((file) =>
      file.endsWith(".js"),
    );
    const texts = scripts.map((file) => readFileSync(join(out(name), file), "utf8"));
    expect(texts.filter((text) => /(from|import\()\s*["']node:/.test(text))).toEqual([]);
    const printed = run(process.execPath, [join(out(name), "page.js")]);
    expect(printed).toMatch(/loss: -?0\.\d+/);
    expect(printed).toBe(run(process.execPath, ["page.mjs"]));
  });

  test.skipIf(!CHROMIUM)("esbuild: the bundle computes the same in headless Chromium", async () => {
    await bundleWithEsbuild(out("chromium"));
    const site = createServer((request, reply) => {
      const file = join(out("chromium"), request.url!.slice(1));
      const type = file.endsWith(".js") ? "text/javascript" : "text/html";
      reply.setHeader("content-type", type);
      reply.end(type === "text/html" ? "<!doctype html><title>page</title>" : readFileSync(file));
    });
    await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", resolve));
    const browser = await openChromium();
    try {
      const page = await browser.newPage();
      const printed = new Promise<ConsoleMessage>((resolve, reject) => {
        page.on("console", resolve);
        page.on("pageerror", reject);
      });
      // WebGPU is there for localhost, which is a secure context without a certificate.
      await page.goto(`http://localhost:${(site.address() as AddressInfo).port}/`);
      await page.addScriptTag({ url: "/page.js", type: "module" });
      const { loss } = await (await printed).args()[0]!.jsonValue();
      const [, onNode] = /loss: (-?[\d.]+)/.exec(run(process.execPath, ["page.mjs"]))!;
      expect(loss).toBeCloseTo(Number(onNode), 5);
    } finally {
      await browser.close();
      site.close();
    }
  });

  test("loads under 115 kB of JavaScript before its first kernel, none of it zod", async () => {
    const { metafile } = await bundleWithEsbuild(out("size"));
    const entry = Object.entries(metafile.outputs).find(([, { entryPoint }]) => entryPoint === "page.mjs")!;
    const loaded = reached(metafile.outputs, entry[0]);
    const bytes = loaded.reduce((sum, file) => sum + metafile.outputs[file]!.bytes, 0);
    expect(bytes).toBeGreaterThan(40_000);
    expect(bytes).toBeLessThan(115_000);
    const sources = loaded.flatMap((file) => Object.keys(metafile.outputs[file]!.inputs));
    expect(sources.filter((source) => /node_modules\/(?!grpu\/)/.test(source))).toEqual([]);
  });
});

/** A script and what it imports at once. */
function reached(
  outputs: Readonly<Record<string, { imports: readonly { path: string; kind: string }[] }>>,
  entry: string,
): string[] {
  const found = new Set([entry]);
  for (const file of found)
    for (const { path, kind } of outputs[file]!.imports) if (kind === "import-statement") found.add(path);
  return [...found];
}

test("the whole of `grpu` bundles for a page without a module of Node", async () => {
  const contents = 'import * as grpu from "grpu"; globalThis.grpu = grpu;';
  const { outputFiles } = await esbuild({
    stdin: { contents, resolveDir: dir },
    bundle: true,
    format: "esm",
    platform: "browser",
    write: false,
    logLevel: "silent",
  });
  expect(outputFiles[0]!.text).not.toMatch(/(from|import\()\s*["']node:/);
});
