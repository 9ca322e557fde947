/** Dispatches that a GPU device records again, with a param that counts. */
import { describe, expect, test } from "vitest";
import { readFloats } from "../../src/compute/device.ts";
import { defineKernel } from "../../src/compute/kernel.ts";
import { gpuDevice } from "../fixtures/devices.ts";

/** y[at] = 2 y[at - 1] + 1. */
const step = defineKernel({
  name: "test_step",
  source: `
struct Params { offset: u32, at: u32 }
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;
@compute @workgroup_size(1)
fn main() { y[params.offset + params.at] = 2.0 * y[params.offset + params.at - 1u] + 1.0; }`,
  bindings: { y: "write f32" },
  params: { offset: "u32", at: "u32" },
  grid: () => [1],
  reference({ y }, { offset, at }) {
    y[offset + at] = 2 * y[offset + at - 1]! + 1;
  },
  tolerance: { relative: 0, absolute: 0 },
});
/** y[0] += y[1]. */
const count = defineKernel({
  name: "test_count",
  source: `
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1)
fn main() { y[0] += y[1]; }`,
  bindings: { y: "write f32" },
  params: {},
  grid: () => [1],
  reference({ y }) {
    y[0]! += y[1]!;
  },
  tolerance: { relative: 0, absolute: 0 },
});

describe.skipIf(!gpuDevice)("recorded dispatches", () => {
  const device = gpuDevice!;

  test("run again in their order, with the param one more each time", async () => {
    const y = device.upload(new Float32Array(16), "y");
    const counter = device.upload(Float32Array.of(0, 1), "counter");
    device.dispatch(count, { buffers: { y: counter }, params: {} });
    const mark = device.mark();
    device.dispatch(step, { buffers: { y }, params: { offset: 2, at: 1 } });
    device.dispatch(count, { buffers: { y: counter }, params: {} });
    expect(device.repeat!(mark, { times: 4, param: "at" })).toBe(true);
    expect(device.mark()).toBe(mark + 10);
    expect([...(await readFloats(device, y, 9))]).toEqual([0, 0, 0, 1, 3, 7, 15, 31, 0]);
    expect([...(await readFloats(device, counter, 2))]).toEqual([6, 1]);
    device.release(y, counter);
  });

  test("run as often as they were recorded where they are repeated 0 times or forgotten", async () => {
    const y = device.upload(new Float32Array(8), "y");
    const mark = device.mark();
    device.dispatch(step, { buffers: { y }, params: { offset: 0, at: 1 } });
    expect(device.repeat!(mark, { times: 0, param: "at" })).toBe(true);
    const second = device.mark();
    device.dispatch(step, { buffers: { y }, params: { offset: 0, at: 2 } });
    expect(device.repeat!(second, { times: 3, param: "at" })).toBe(true);
    device.rollback(second + 2);
    expect([...(await readFloats(device, y, 6))]).toEqual([0, 1, 3, 7, 0, 0]);
    device.release(y);
  });

  test("are not repeated with other work among them", async () => {
    const y = device.upload(new Float32Array(8), "y");
    const mark = device.mark();
    device.dispatch(step, { buffers: { y }, params: { offset: 0, at: 1 } });
    device.write(y, Float32Array.of(5), 0);
    expect(device.repeat!(mark, { times: 3, param: "at" })).toBe(false);
    expect(device.mark()).toBe(mark + 2);
    expect([...(await readFloats(device, y, 4))]).toEqual([5, 1, 0, 0]);
    device.release(y);
  });
});
