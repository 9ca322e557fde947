/** Modules and what they include. */
import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { defineKernel } from "../../../src/engine/compute/kernel.ts";
import { linkShader, loadShader, sourceLine } from "../../../src/engine/compute/shader.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

const FILES: Record<string, string> = {
  kernel: 'first\n//#include "a.wgsl"\n//#include "b.wgsl"\nlast\n',
  a: '//#include "b.wgsl"\nin a\n',
  b: '//#include "a.wgsl"\nin b\n',
};
const linked = linkShader("kernel", async (name) => FILES[name]!);

test("includes follow the module, each once, those of includes too", async () => {
  const lines = (await linked).split("\n").filter((line) => line !== "" && !line.startsWith("//"));
  expect(lines).toEqual(["first", "last", "in a", "in b"]);
});

test("a line of a linked module is found in its file", async () => {
  const code = await linked;
  const place = (text: string) => sourceLine(code, code.split("\n").indexOf(text) + 1);
  expect(place("last")).toEqual({ file: undefined, line: 4 });
  expect(place("in a")).toEqual({ file: "a", line: 2 });
  expect(place("in b")).toEqual({ file: "b", line: 2 });
});

const filesUnder = (folder: string, ending: string) =>
  readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(ending));
const shaders = filesUnder("shaders", ".wgsl").map((name) => name.replace(".wgsl", ""));
const isPart = (name: string) => /(^|\/)parts\//.test(name);

test("a file under parts/ is included by some module", () => {
  const texts = shaders.map((name) => readFileSync(`shaders/${name}.wgsl`, "utf8"));
  const included = new Set(texts.flatMap((text) => [...text.matchAll(/#include "(.*)\.wgsl"/g)].map((it) => it[1]!)));
  expect([...included].sort()).toEqual(shaders.filter(isPart).sort());
});

test("every other file is the module of a kernel, with one entry point once linked", async () => {
  const sources = filesUnder("src", ".ts").map((name) => readFileSync(`src/${name}`, "utf8"));
  for (const name of shaders.filter((it) => !isPart(it))) {
    expect(
      sources.some((text) => text.includes(`"${name}"`)),
      name,
    ).toBe(true);
    expect((await loadShader(name)).match(/^@compute/gm), name).toHaveLength(1);
  }
});

test.skipIf(!gpuDevice)("an error in an included file names the file and its line", async () => {
  const module = await loadShader("matmul/any");
  const source = module.replace("alpha: f32", "alpha: f33");
  const line = readFileSync("shaders/matmul/parts/params.wgsl", "utf8").split("\n").indexOf("  alpha: f32,") + 1;
  const broken = defineKernel({
    name: "broken",
    source,
    bindings: { a: "read f32", b: "read f32", addend: "read f32", c: "write f32" },
    params: {},
    grid: () => [1],
    reference: () => {},
    tolerance: { relative: 0, absolute: 0 },
  });
  await expect(gpuDevice!.prepare([{ kernel: broken }])).rejects.toThrow(`matmul/parts/params.wgsl line ${line}:`);
});
