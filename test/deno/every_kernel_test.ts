/** Every kernel compiles on the runtime's own WebGPU, except those that need subgroups where it has none. */
import { readdirSync } from "node:fs";
import { expect, test } from "vitest";
import { kernelText } from "../../src/engine/compute/shader.ts";
import { gpuDevice } from "../fixtures/devices.ts";
import { kernelsOf } from "../fixtures/kernel_contract.ts";
import { lossKernels } from "../fixtures/loss_kernels.ts";

const files = ["engine/compute", "engine/model", "engine/algorithm"].flatMap((room) =>
  readdirSync(`src/${room}`, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => `../../src/${room}/${name}`),
);
const modules: object[] = [];
for (const file of files) modules.push(await import(/* @vite-ignore */ file));
const kernels = [...new Set([...modules.flatMap(kernelsOf), ...lossKernels()])];
const needsSubgroups = new Set<string>();
for (const kernel of kernels) if (/^enable subgroups/m.test(await kernelText(kernel))) needsSubgroups.add(kernel.name);

test("the device is the runtime's own", () => {
  expect(gpuDevice?.gpuDevice).toBeInstanceOf(GPUDevice);
});

test("all kernels are here", () => {
  expect(kernels.length - needsSubgroups.size).toBeGreaterThan(100);
});

test.skipIf(!gpuDevice).each(kernels)("$name compiles", async (kernel) => {
  const compiled = gpuDevice!.prepare([{ kernel }]);
  if (!needsSubgroups.has(kernel.name) || gpuDevice!.info.features.includes("subgroups")) await compiled;
  else await expect(compiled).rejects.toThrow("subgroups");
});
