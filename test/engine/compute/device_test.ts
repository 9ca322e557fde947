import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { allocTogether, type Device, readFloats } from "../../../src/engine/compute/device.ts";
import { defineKernel, folded } from "../../../src/engine/compute/kernel.ts";
import { measureCeilings } from "../../../src/engine/compute/measure.ts";
import { capacityFor } from "../../../src/engine/compute/memory.ts";
import { openDevice } from "../../../src/engine/compute/open.ts";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import { ConfigError, RemoteError, ShaderError, UnsupportedError } from "../../../src/leaves/errors.ts";
import { gpuDevice, overDevices } from "../../fixtures/devices.ts";

/** y[i] = scale * x[i] + offset for i < count; one thread each, folded grid. */
const SCALE_WGSL = `
struct Params { count: u32, scale: f32, offset: i32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;
override POWER: u32 = 1u;
@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) w: vec3u, @builtin(num_workgroups) n: vec3u, @builtin(local_invocation_index) l: u32) {
  let i = (w.y * n.x + w.x) * 8u + l;
  if (i >= params.count) { return; }
  var value = params.scale * x[i] + f32(params.offset);
  if (POWER == 2u) { value = value * value; }
  y[i] = value;
}`;

const scaleKernel = defineKernel({
  name: "test_scale",
  source: SCALE_WGSL,
  bindings: { x: "read f32", y: "write f32" },
  params: { count: "u32", scale: "f32", offset: "i32" },
  constants: { POWER: 1 },
  grid: ({ count }) => folded(Math.ceil(count / 8)),
  reference({ x, y }, { count, scale, offset }, { POWER }) {
    for (let i = 0; i < count; i++) y[i] = (scale * x[i]! + offset) ** POWER!;
  },
  tolerance: { relative: 0, absolute: 0 },
});

function scaled(device: Device, x: Float32Array, constants?: { POWER: number }) {
  const [X, Y] = [device.upload(x, "x"), device.alloc(Math.max(x.byteLength, 4), "y")];
  device.dispatch(scaleKernel, {
    buffers: { x: X, y: Y },
    params: { count: x.length, scale: 2, offset: -3 },
    constants,
  });
  return { X, Y };
}

overDevices("Device", (device) => {
  for (const length of [0, 1, 7, 8, 9, 1000, 65_536 * 8 + 5])
    test(`runs a kernel over ${length} elements`, async () => {
      const x = Float32Array.from({ length }, (_, i) => i % 1000);
      const { X, Y } = scaled(device, x);
      const y = await readFloats(device, Y, length);
      expect(y).toEqual(x.map((value) => 2 * value - 3));
      device.release(X, Y);
    });

  test("a grid with a side of 0 records nothing", () => {
    const y = device.alloc(4, "y");
    const mark = device.mark();
    for (const grid of [[0], [3, 0], [3, 1, 0]] as const)
      device.dispatch(
        { ...scaleKernel, grid: () => grid },
        { buffers: { x: y, y }, params: { count: 1, scale: 1, offset: 0 } },
      );
    expect(device.mark()).toBe(mark);
    device.release(y);
  });

  test("buffers allocated together are allocated all or none", () => {
    const before = device.memory.live;
    const wanted = [
      { byteLength: 1000, label: "first" },
      { byteLength: 2000, label: "second" },
    ];
    const buffers = allocTogether(device, wanted);
    expect(buffers.map(({ byteLength, label }) => ({ byteLength, label }))).toEqual(wanted);
    device.release(...buffers);
    const tooLarge = { byteLength: device.memory.budget * 2, label: "third" };
    expect(() => allocTogether(device, [...wanted, tooLarge])).toThrow(/third/);
    expect(device.memory.live).toBe(before);
  });

  test("constants change the pipeline, params the dispatch", async () => {
    const { X, Y } = scaled(device, Float32Array.of(5), { POWER: 2 });
    expect([...(await readFloats(device, Y, 1))]).toEqual([49]);
    device.release(X, Y);
  });

  test("writes, copies, clears and dispatches happen in the order they were recorded", async () => {
    const [a, b] = [device.upload(Float32Array.of(1, 2, 3, 4), "a"), device.alloc(16, "b")];
    const source = Float32Array.of(9, 9, 9, 9);
    device.copy(a, b);
    device.write(a, source);
    source.fill(0); // The caller's array is free at once.
    device.clear(b.slice(0, 8));
    const [first, second] = await device.read([
      { buffer: a, type: "f32" },
      { buffer: b, type: "f32", length: 3 },
    ]);
    expect([...first!]).toEqual([9, 9, 9, 9]);
    expect([...second!]).toEqual([0, 0, 3]);
    device.release(a, b);
  });

  test("a released buffer is reused without overtaking recorded work", async () => {
    const x = Float32Array.from({ length: 64 }, (_, i) => i);
    const { X, Y } = scaled(device, x);
    const kept = device.alloc(256, "kept");
    device.copy(Y, kept);
    device.release(X, Y);
    const again = device.upload(new Float32Array(64).fill(-1), "again");
    expect(await readFloats(device, kept)).toEqual(x.map((value) => 2 * value - 3));
    device.release(kept, again);
  });

  test("slices share memory, start at multiples of 256 and stay within their buffer", async () => {
    const whole = device.upload(
      Float32Array.from({ length: 128 }, (_, i) => i),
      "whole",
    );
    const half = whole.slice(256, 256);
    expect((await readFloats(device, half))[0]).toBe(64);
    expect(() => whole.slice(4, 4)).toThrow(/multiple of 256/);
    expect(() => whole.slice(256, 260)).toThrow(/beyond its 512 bytes/);
    device.release(whole);
  });

  test("a buffer is released once, and not as a slice", () => {
    const buffer = device.alloc(512, "twice");
    expect(() => device.release(buffer.slice(0, 256))).toThrow(RangeError);
    device.release(buffer);
    expect(() => device.release(buffer)).toThrow(/released before/);
  });

  test("bytes are counted when allocated and when released", () => {
    const before = device.memory.live;
    const buffer = device.alloc(100_000, "counted");
    expect(device.memory.live - before).toBe(capacityFor(100_000));
    device.release(buffer);
    expect(device.memory.live).toBe(before);
  });

  test("measures finite ceilings", async () => {
    const ceilings = await measureCeilings(device);
    for (const rate of Object.values(ceilings)) expect(rate).toBeGreaterThan(1e6);
  });
});

describe("the byte budget", () => {
  const open = async () => [new CpuDevice({ memoryBudgetBytes: 10_000 })] as Device[];
  test("exceeding it names the buffer and the largest holders, and keeps all data", async () => {
    const devices = await open();
    if (gpuDevice) devices.push((await WebGpuDevice.open({ memoryBudgetBytes: 10_000 }))!);
    for (const device of devices) {
      const kept = device.upload(Float32Array.of(1, 2), "weights");
      expect(() => device.alloc(20_000, "activations")).toThrow(ConfigError);
      expect(() => device.alloc(20_000, "activations")).toThrow(/activations \(.*memory budget of 9.8 KiB.*\(weights /);
      expect([...(await readFloats(device, kept, 2))]).toEqual([1, 2]);
      device.destroy();
    }
  });

  test("free buffers are dropped before an allocation fails", () => {
    const device = new CpuDevice({ memoryBudgetBytes: 10_000 });
    device.release(device.alloc(8_000, "first"));
    expect(() => device.alloc(9_000, "second")).not.toThrow();
  });
});

describe.skipIf(!gpuDevice)("memory pressure on webgpu", () => {
  const values = Float32Array.from({ length: 64 }, (_, i) => i);
  const doubled = values.map((value) => 2 * value - 3);

  test("a trimmed buffer lives until recorded work that uses it is submitted", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 9_500 }))!;
    const { X, Y } = scaled(device, values);
    const kept = device.alloc(256, "kept");
    device.copy(Y, kept);
    device.release(X, Y);
    const large = device.alloc(9_000, "large");
    expect(await readFloats(device, kept, 64)).toEqual(doubled);
    device.release(kept, large);
    device.destroy();
  });

  test("a trimmed buffer lives until work that waits for its pipelines is submitted", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 9_500 }))!;
    const { X, Y } = scaled(device, values);
    const reading = readFloats(device, Y, 64);
    device.release(X, Y);
    const large = device.alloc(9_000, "large");
    expect(await reading).toEqual(doubled);
    device.release(large);
    device.destroy();
  });

  test("the driver frees destroyed buffers at the next submit", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 9_500 }))!;
    let destroyed = 0;
    const create = device.gpuDevice.createBuffer.bind(device.gpuDevice);
    device.gpuDevice.createBuffer = (of) => {
      const buffer = create(of);
      const destroy = buffer.destroy.bind(buffer);
      if (of.label === "dropped")
        buffer.destroy = () => {
          destroyed++;
          return destroy();
        };
      return buffer;
    };
    const dropped = device.alloc(4_000, "dropped");
    device.clear(dropped);
    device.release(dropped);
    device.alloc(9_000, "large");
    expect(destroyed).toBe(0);
    await device.submit();
    expect(destroyed).toBe(1);
    device.destroy();
  });
});

describe("trimming the pool", () => {
  const open = () => new CpuDevice({ memoryBudgetBytes: 10_240 });

  test("drops the buffers released first, and only as many as needed", () => {
    const device = open();
    const buffers = [1_024, 2_048, 4_096].map((bytes) => device.alloc(bytes, `${bytes} bytes`));
    device.release(...buffers);
    device.alloc(5_120, "new");
    // 1,024 and 2,048 went; 4,096 stayed.
    expect(device.memory.pooled).toBe(4_096);
  });

  test("drops nothing when the allocation fails anyway", () => {
    const device = open();
    device.release(device.alloc(1_024, "free"));
    expect(() => device.alloc(20_000, "too large")).toThrow(ConfigError);
    expect(device.memory.pooled).toBe(1_024);
  });
});

test.each([
  [0, [0, 1, 1]],
  [1, [1, 1, 1]],
  [65_535, [65_535, 1, 1]],
  [65_536, [32_768, 2, 1]],
  [131_071, [43_691, 3, 1]],
])("%i workgroups are folded into %j", (count, grid) => {
  expect(folded(count)).toEqual(grid);
});

test("the cpu device lets timers run between its dispatches, and forgets its buffers when destroyed", async () => {
  const device = new CpuDevice();
  const slow = defineKernel({
    ...scaleKernel,
    name: "test_slow",
    reference() {
      for (const start = performance.now(); performance.now() - start < 45; );
    },
  });
  const y = device.alloc(16, "y");
  const order: string[] = [];
  for (const _ of [1, 2]) device.dispatch(slow, { buffers: { x: y, y }, params: { count: 1, scale: 1, offset: 0 } });
  setTimeout(() => order.push("timer"));
  await device.submit();
  order.push("submitted");
  expect(order).toEqual(["timer", "submitted"]);
  device.destroy();
  expect(device.memory).toMatchObject({ live: 0, pooled: 0 });
});

describe("opening", () => {
  test("without an adapter, webgpu is an error and auto means cpu", async () => {
    const gpu = { requestAdapter: async () => null } as unknown as GPU;
    await expect(openDevice({ device: "webgpu", gpu })).rejects.toThrow(UnsupportedError);
    await expect(openDevice({ device: "webgpu", gpu })).rejects.toThrow(/npm run setup.*--device cpu/);
    expect((await openDevice({ device: "auto", gpu })).info.kind).toBe("cpu");
    expect((await openDevice({ device: "cpu" })).info.kind).toBe("cpu");
  });
});

describe.skipIf(!gpuDevice)("what WebGPU finds wrong", () => {
  const broken = (source: string) =>
    defineKernel({
      name: "test_broken",
      source,
      bindings: { y: "write f32" },
      params: {},
      grid: () => [1],
      reference() {},
      tolerance: { relative: 0, absolute: 0 },
    });

  test("a shader that does not compile names kernel, line and text, and the device stays usable", async () => {
    const device = gpuDevice!;
    const y = device.alloc(16, "y");
    const source =
      "@group(0) @binding(0) var<storage, read_write> y: array<f32>;\n@compute @workgroup_size(1)\nfn main() {\n  y[0] = oops;\n}";
    device.dispatch(broken(source), { buffers: { y }, params: {} });
    const error = await device.submit().catch((cause: unknown) => cause as ShaderError);
    expect(error).toBeInstanceOf(ShaderError);
    expect(error).toMatchObject({ kernel: "test_broken", line: 4 });
    expect((error as ShaderError).message).toContain("y[0] = oops;");
    const { X, Y } = scaled(device, Float32Array.of(4));
    expect([...(await readFloats(device, Y, 1))]).toEqual([5]);
    device.release(y, X, Y);
  });

  test("an invalid dispatch rejects the call that waits for it", async () => {
    const device = gpuDevice!;
    const { X, Y } = scaled(device, Float32Array.of(4));
    device.dispatch(scaleKernel, { buffers: { x: X, y: X }, params: { count: 1, scale: 1, offset: 0 } });
    await expect(device.submit()).rejects.toThrow(ShaderError);
    expect([...(await readFloats(device, X, 1))]).toEqual([4]);
    device.release(X, Y);
  });

  test("a lost device rejects pending and later calls with a typed error", async () => {
    const device = (await WebGpuDevice.open())!;
    const { Y } = scaled(device, new Float32Array(100));
    const pending = device.read([{ buffer: Y, type: "f32" }]);
    device.destroy();
    await expect(pending).rejects.toThrow(RemoteError);
    await expect(device.submit()).rejects.toThrow(/destroyed/);
  });

  test("uploads are handed to the driver after 64 MiB, because it holds a copy of each until then", async () => {
    const device = (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 27 }))!;
    const { queue } = device.gpuDevice;
    const submits: number[] = [];
    const submit = queue.submit.bind(queue);
    queue.submit = (buffers) => {
      submits.push([...buffers].length);
      return submit(buffers);
    };
    const data = new Float32Array(2 ** 22);
    const buffer = device.alloc(data.byteLength, "large");
    for (let i = 0; i < 4; i++) device.write(buffer, data);
    expect(submits).toEqual([]);
    device.write(buffer, data);
    expect(submits).toEqual([0]);
    for (let i = 0; i < 4; i++) device.write(buffer, data);
    expect(submits).toEqual([0]);
    device.destroy();
  });

  test("many dispatches take one submit and one read-back", async () => {
    const device = gpuDevice!;
    const { queue } = device.gpuDevice;
    let submits = 0;
    const submit = queue.submit.bind(queue);
    queue.submit = (buffers) => {
      submits++;
      return submit(buffers);
    };
    const [a, b] = [device.upload(Float32Array.of(1), "a"), device.alloc(4, "b")];
    for (let i = 0; i < 100; i++)
      device.dispatch(scaleKernel, { buffers: { x: a, y: b }, params: { count: 1, scale: i, offset: 0 } });
    expect([...(await readFloats(device, b))]).toEqual([99]);
    queue.submit = submit;
    expect(submits).toBe(1);
    device.release(a, b);
  });
});
