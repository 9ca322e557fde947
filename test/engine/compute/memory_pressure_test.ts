/**
 * Random work under a budget that is always full: buffers are released while recorded work, submits under way and reads
 * still name them, and the pool trims itself to make room. What the work computes is compared with the same on the host.
 */
import { expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Buffer, Device } from "../../../src/engine/compute/device.ts";
import { defineKernel } from "../../../src/engine/compute/kernel.ts";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import { mulberry32 } from "../../../src/leaves/random.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

/** y[0] = 2 x[0] + add, in whole numbers below 2^24. `VARIANT` makes pipelines that are still to be compiled. */
const next = defineKernel({
  name: "test_next",
  source: `
struct Params { add: u32 }
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;
override VARIANT: u32 = 0u;
@compute @workgroup_size(1)
fn main() { y[0] = (2u * x[0] + params.add + VARIANT - VARIANT) % 16777216u; }`,
  bindings: { x: "read u32", y: "write u32" },
  params: { add: "u32" },
  constants: { VARIANT: 0 },
  grid: () => [1],
  reference: ({ x, y }, { add }) => {
    y[0] = (2 * x[0]! + add) % 16_777_216;
  },
  tolerance: { relative: 0, absolute: 0 },
});

const BUDGET_BYTES = 64 * 1024;
const SIZES = [256, 1024, 4096, 6000, 12_000, 16_384];

async function abuse(device: Device, seed: number): Promise<{ trimmed: boolean }> {
  const random = mulberry32(seed);
  const below = (n: number) => Math.floor(random() * n);
  const held: { buffer: Buffer; value: number }[] = [];
  const pending: Promise<void>[] = [];
  let trimmed = false;
  const drop = () => {
    const [{ buffer } = { buffer: undefined }] = held.splice(below(held.length), 1);
    if (buffer) device.release(buffer);
  };
  const fresh = (label: string): Buffer => {
    const size = SIZES[below(SIZES.length)]!;
    const { live, pooled } = device.memory;
    for (;;)
      try {
        const buffer = device.alloc(size, label);
        if (device.memory.live + device.memory.pooled < live + pooled + size) trimmed = true;
        return buffer;
      } catch {
        drop();
      }
  };
  for (let turn = 0; turn < 400; turn++) {
    const what = random();
    if (held.length === 0 || what < 0.15) {
      const value = below(1000);
      const buffer = fresh("uploaded");
      device.write(buffer, Uint32Array.of(value));
      held.push({ buffer, value });
    } else if (what < 0.6) {
      const buffer = fresh("computed");
      const from = held[below(held.length)];
      if (!from) {
        device.release(buffer);
        continue;
      }
      const add = below(100);
      device.dispatch(next, {
        buffers: { x: from.buffer, y: buffer },
        params: { add },
        constants: { VARIANT: turn >> 5 },
      });
      held.push({ buffer, value: (2 * from.value + add) % 16_777_216 });
    } else if (what < 0.75) drop();
    else if (what < 0.85) pending.push(device.submit());
    else {
      const { buffer, value } = held[below(held.length)]!;
      const read = device.read([{ buffer, type: "u32", length: 1 }]);
      pending.push(read.then(([data]) => expect(data![0]).toBe(value)));
      if (random() < 0.5) drop();
    }
    if (random() < 0.05) await Promise.all(pending.splice(0));
  }
  await Promise.all(pending);
  device.release(...held.map(({ buffer }) => buffer));
  expect(device.memory.live).toBe(0);
  return { trimmed };
}

test.each([1, 2, 3])("seed %i on the cpu device", async (seed) => {
  const { trimmed } = await abuse(new CpuDevice({ memoryBudgetBytes: BUDGET_BYTES }), seed);
  expect(trimmed).toBe(true);
});

test.skipIf(!gpuDevice).each([1, 2, 3, 4, 5, 6])("seed %i on webgpu", async (seed) => {
  const device = (await WebGpuDevice.open({ memoryBudgetBytes: BUDGET_BYTES }))!;
  const { trimmed } = await abuse(device, seed);
  expect(trimmed).toBe(true);
  device.destroy();
});
