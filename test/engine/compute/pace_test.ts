/** Work bounded in time: where a submit ends, and what is learned from how long it took. */
import { describe, expect, test } from "vitest";
import { type Device, readFloats } from "../../../src/engine/compute/device.ts";
import { defineKernel } from "../../../src/engine/compute/kernel.ts";
import { matmul } from "../../../src/engine/compute/matmul/matmul.ts";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import { LONGEST_SUBMIT_SECONDS, Pace, type SecondsByKernel } from "../../../src/engine/compute/webgpu/pace.ts";
import { mulberry32 } from "../../../src/leaves/random.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

describe("the estimate", () => {
  test("is by arithmetic or by bytes, by which takes longer, and never nothing", () => {
    const pace = new Pace("tiled");
    const empty = pace.nominal({ bytes: 0 });
    expect(empty).toBeGreaterThan(0);
    expect(pace.nominal({ bytes: 1e11 })).toBeCloseTo(1 + empty, 9);
    expect(pace.nominal({ bytes: 1e11, flops: 3e12 })).toBeCloseTo(3 + empty, 9);
    expect(new Pace("scalar").nominal({ bytes: 1e9 })).toBeGreaterThan(pace.nominal({ bytes: 1e9 }));
  });

  test("comes to what is measured, for each kernel of a changing mix", () => {
    const pace = new Pace("tiled");
    const truth: Readonly<Record<string, number>> = { matmul: 0.1, attention: 12, norm: 1 };
    const kernels = Object.keys(truth);
    const random = mulberry32(5);
    const timeOf = (work: SecondsByKernel) =>
      [...work].reduce((sum, [name, nominal]) => sum + nominal * truth[name]!, 0);
    const mix = () => new Map(kernels.map((name) => [name, random() / 50]));
    for (let call = 0; call < 100; call++) {
      const work = mix();
      pace.learn(work, timeOf(work));
    }
    const next = mix();
    const estimate = [...next].reduce((sum, [name, nominal]) => sum + pace.seconds(name, nominal), 0);
    expect(estimate / timeOf(next)).toBeCloseTo(1, 1);
    expect(pace.seconds("attention", 1)).toBeGreaterThan(10 * pace.seconds("norm", 1) * 0.5);
  });

  test("of a kernel that was never seen is the nominal one", () => {
    const pace = new Pace("tiled");
    pace.learn(new Map([["matmul", 1]]), 5);
    expect(pace.seconds("other", 0.5)).toBe(0.5);
    expect(pace.seconds("matmul", 1)).toBeCloseTo(3, 3);
  });

  test("survives a pause of the machine, and measurements of nothing", () => {
    const pace = new Pace("tiled");
    pace.learn(new Map([["matmul", 0.1]]), 3600);
    expect(pace.seconds("matmul", 1)).toBe(8);
    for (let i = 0; i < 20; i++) pace.learn(new Map([["matmul", 0.1]]), 0.1);
    expect(pace.seconds("matmul", 1)).toBeCloseTo(1, 2);
    pace.learn(new Map(), 1);
    for (let i = 0; i < 100; i++) pace.learn(new Map([["tiny", 2e-5]]), 2e-3);
    expect(pace.seconds("tiny", 1)).toBeLessThan(10);
    for (let i = 0; i < 50; i++) pace.learn(new Map([["matmul", 0.1]]), 0);
    expect(pace.seconds("matmul", 1)).toBeGreaterThan(0);
  });
});

/** y += 1, said to take `flops` operations. */
const steps = (flops: number) =>
  defineKernel({
    name: `test_step_${flops}`,
    source: `
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1)
fn main() { y[0] = y[0] * 1.5 + 1.0; }`,
    bindings: { y: "write f32" },
    params: {},
    grid: () => [1],
    work: () => flops,
    reference({ y }) {
      y[0] = y[0]! * 1.5 + 1;
    },
    tolerance: { relative: 0, absolute: 0 },
  });

/** y = 1, by threads that are said to read all of x. */
const reading = defineKernel({
  name: "test_reading",
  source: `
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1)
fn main() { y[0] = y[0] + x[0]; }`,
  bindings: { x: "read f32", y: "write f32" },
  params: {},
  grid: () => [1],
  reference({ x, y }) {
    y[0] = y[0]! + x[0]!;
  },
  tolerance: { relative: 0, absolute: 0 },
});

/** Counts submits, with the dispatches of each. */
function counted(device: WebGpuDevice): number[] {
  const { gpuDevice } = device;
  const perSubmit: number[] = [];
  let dispatches = 0;
  const createEncoder = gpuDevice.createCommandEncoder.bind(gpuDevice);
  gpuDevice.createCommandEncoder = (of) => {
    const encoder = createEncoder(of);
    const begin = encoder.beginComputePass.bind(encoder);
    encoder.beginComputePass = (about) => {
      const pass = begin(about);
      const dispatch = pass.dispatchWorkgroups.bind(pass);
      pass.dispatchWorkgroups = (...grid) => {
        dispatches++;
        return dispatch(...grid);
      };
      return pass;
    };
    return encoder;
  };
  const submit = gpuDevice.queue.submit.bind(gpuDevice.queue);
  gpuDevice.queue.submit = (buffers) => {
    if (dispatches > 0) perSubmit.push(dispatches);
    dispatches = 0;
    return submit(buffers);
  };
  return perSubmit;
}

describe.skipIf(!gpuDevice)("submits of a real queue", () => {
  /** Operations whose estimate is `seconds` on this device's kind. */
  const flopsFor = (seconds: number) => seconds * (gpuDevice!.info.family === "scalar" ? 1e10 : 1e12);

  async function run(kernels: readonly ReturnType<typeof steps>[], device: Device): Promise<number> {
    const y = device.alloc(4, "y");
    device.clear(y);
    for (const kernel of kernels) device.dispatch(kernel, { buffers: { y }, params: {} });
    const [value] = await readFloats(device, y);
    device.release(y);
    return value!;
  }

  test("hold at most the limit by the estimate; order and bits do not change", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 20 }))!;
    const perSubmit = counted(device);
    const [small, large] = [steps(1), steps(flopsFor(LONGEST_SUBMIT_SECONDS / 3.5))];
    const inOne = await run(Array(8).fill(small), device);
    expect(perSubmit.splice(0)).toEqual([8]);
    const inPieces = await run(Array(8).fill(large), device);
    expect(perSubmit).toEqual([3, 3, 2]);
    expect(inPieces).toBe(inOne);
    device.destroy();
  });

  test("hold at most the limit by the bytes that dispatches bind, where nothing says how much they compute", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 28 }))!;
    const rate = device.info.family === "scalar" ? 5e9 : 1e11;
    const bytes = 2 ** 26;
    const [x, y] = [device.alloc(bytes, "x"), device.alloc(bytes, "y")];
    const each = Math.floor(LONGEST_SUBMIT_SECONDS / ((2 * bytes) / rate + 1e-5));
    device.clear(y);
    await device.submit();
    const perSubmit = counted(device);
    for (let i = 0; i < each + 1; i++) device.dispatch(reading, { buffers: { x, y }, params: {} });
    await device.submit();
    expect(perSubmit).toEqual([each, 1]);
    device.destroy();
  });

  test("one dispatch above the limit is alone in its submit", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 20 }))!;
    const perSubmit = counted(device);
    const [small, huge] = [steps(1), steps(flopsFor(10))];
    await run([small, huge, huge, small, small], device);
    expect(perSubmit).toEqual([1, 1, 1, 2]);
    device.destroy();
  });

  test("grow when the work turns out to be quick", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 20 }))!;
    const perSubmit = counted(device);
    const kernels = Array(16).fill(steps(flopsFor(1)));
    await run(kernels, device);
    expect(perSubmit.splice(0)).toHaveLength(16);
    for (let call = 0; call < 12; call++) await run(kernels, device);
    perSubmit.splice(0);
    await run(kernels, device);
    expect(perSubmit).toEqual([16]);
    device.destroy();
  });

  test("shrink when the work turns out to be slow, and take about the limit each", { timeout: 120_000 }, async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 26 }))!;
    const n = device.info.family === "scalar" ? 512 : 2048;
    const [a, b, c] = ["a", "b", "c"].map((label) => device.alloc(n * n * 4, label)) as [never, never, never];
    device.clear(a);
    device.clear(b);
    await device.submit();
    const perSubmit = counted(device);
    const products = async (count: number) => {
      perSubmit.length = 0;
      const start = performance.now();
      for (let i = 0; i < count; i++)
        matmul(device, { m: n, n, k: n, a: { buffer: a }, b: { buffer: b }, c: { buffer: c } });
      await device.submit();
      return (performance.now() - start) / 1000 / perSubmit.length;
    };
    for (let call = 0; call < 4; call++) await products(48);
    const seconds = await products(48);
    expect(perSubmit.length).toBeGreaterThan(1);
    // Wide: other programs share this machine.
    expect(seconds).toBeGreaterThan(LONGEST_SUBMIT_SECONDS / 5);
    expect(seconds).toBeLessThan(LONGEST_SUBMIT_SECONDS * 5);
    device.destroy();
  });
});
