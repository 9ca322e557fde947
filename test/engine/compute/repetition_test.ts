/** Work that a GPU device keeps and records again, with a param that counts. */
import { describe, expect, test } from "vitest";
import { readFloats } from "../../../src/engine/compute/device.ts";
import { defineKernel } from "../../../src/engine/compute/kernel.ts";
import { BufferPool } from "../../../src/engine/compute/memory.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

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

describe.skipIf(!gpuDevice)("kept work", () => {
  const device = gpuDevice!;
  const AT = { param: "at" } as const;

  test("is recorded again in its order, with the param one more each time", async () => {
    const y = device.upload(new Float32Array(16), "y");
    const counter = device.upload(Float32Array.of(0, 1), "counter");
    device.dispatch(count, { buffers: { y: counter }, params: {} });
    const mark = device.mark();
    device.dispatch(step, { buffers: { y }, params: { offset: 2, at: 1 } });
    device.dispatch(count, { buffers: { y: counter }, params: {} });
    const kept = device.keep!(mark)!;
    expect(kept.record({ ...AT, times: 4, from: 2 })).toBe(true);
    expect(device.mark()).toBe(mark + 10);
    expect([...(await readFloats(device, y, 9))]).toEqual([0, 0, 0, 1, 3, 7, 15, 31, 0]);
    expect([...(await readFloats(device, counter, 2))]).toEqual([6, 1]);
    // Behind a submit, and from a value that it had before.
    expect(kept.record({ ...AT, times: 2, from: 4 })).toBe(true);
    expect(kept.record({ ...AT, times: 1, from: 8 })).toBe(true);
    expect([...(await readFloats(device, y, 11))]).toEqual([0, 0, 0, 1, 3, 7, 15, 31, 0, 0, 1]);
    expect([...(await readFloats(device, counter, 2))]).toEqual([9, 1]);
    kept.release();
    device.release(y, counter);
  });

  test("is recorded as often as it is asked for, unless it is forgotten", async () => {
    const y = device.upload(new Float32Array(8), "y");
    const mark = device.mark();
    device.dispatch(step, { buffers: { y }, params: { offset: 0, at: 1 } });
    const kept = device.keep!(mark)!;
    expect(kept.record({ ...AT, times: 0, from: 2 })).toBe(true);
    expect(kept.record({ ...AT, times: 4, from: 2 })).toBe(true);
    device.rollback(mark + 3);
    expect([...(await readFloats(device, y, 6))]).toEqual([0, 1, 3, 7, 0, 0]);
    kept.release();
    device.release(y);
  });

  test("has clears and copies, and no writes or reads", async () => {
    const y = device.upload(Float32Array.of(4, 0, 0, 0), "y");
    const z = device.upload(Float32Array.of(9, 9, 9, 9), "z");
    const mark = device.mark();
    device.clear(z);
    device.dispatch(step, { buffers: { y }, params: { offset: 0, at: 1 } });
    device.copy(y, z, 8);
    const kept = device.keep!(mark)!;
    device.write(y, Float32Array.of(5), 0);
    expect(device.keep!(mark)).toBeUndefined();
    await device.submit();
    device.write(z, Float32Array.of(1, 1, 1, 1));
    expect(kept.record({ ...AT, times: 1, from: 1 })).toBe(true);
    expect([...(await readFloats(device, z, 4))]).toEqual([5, 11, 0, 0]);
    kept.release();
    device.release(y, z);
  });

  test("is not recorded once a buffer that it names was released, whatever has its memory then", async () => {
    const y = device.upload(new Float32Array(8), "y");
    const mark = device.mark();
    device.dispatch(step, { buffers: { y: y.slice(0, 16) }, params: { offset: 0, at: 1 } });
    const kept = device.keep!(mark)!;
    await device.submit();
    device.release(y);
    const again = device.upload(new Float32Array(8), "y");
    const before = device.mark();
    expect(kept.record({ ...AT, times: 1, from: 2 })).toBe(false);
    expect(device.mark()).toBe(before);
    expect([...(await readFloats(device, again, 4))]).toEqual([0, 0, 0, 0]);
    kept.release();
    device.release(again);
  });

  test("keeps the memory of buffers that were released already from others, until it is released itself", async () => {
    const BYTES = 7 * 4096;
    const mark = device.mark();
    const { live, pooled } = device.memory;
    const y = device.alloc(BYTES, "y");
    device.clear(y);
    device.dispatch(step, { buffers: { y }, params: { offset: 0, at: 1 } });
    device.release(y);
    const kept = device.keep!(mark)!;
    const other = device.upload(new Float32Array(BYTES / 4).fill(3), "other");
    expect(kept.record({ ...AT, times: 2, from: 2 })).toBe(true);
    expect(new Set(await readFloats(device, other))).toEqual(new Set([3]));
    device.release(other);
    kept.release();
    const capacity = device.memory.pooled - pooled;
    expect(device.memory.live).toBe(live);
    // Both are free again.
    const two = [device.alloc(BYTES, "one"), device.alloc(BYTES, "two")];
    expect(device.memory.pooled).toBe(pooled);
    device.release(...two);
    expect(device.memory.pooled - pooled).toBe(capacity);
    expect(kept.record({ ...AT, times: 1, from: 2 })).toBe(false);
  });

  test("is not kept where others have the memory of a released buffer", async () => {
    const mark = device.mark();
    const y = device.alloc(7 * 4096, "y");
    device.dispatch(step, { buffers: { y }, params: { offset: 0, at: 1 } });
    device.release(y);
    const other = device.alloc(7 * 4096, "other");
    expect(device.keep!(mark)).toBeUndefined();
    device.dispatch(step, { buffers: { y: other }, params: { offset: 0, at: 1 } });
    expect(device.keep!(mark)).toBeUndefined();
    await device.submit();
    device.release(other);
  });
});

test("reserved storages are taken last, and their reservations end with it", () => {
  let next = 0;
  const destroyed: number[] = [];
  const pool = new BufferPool<number>(
    { create: () => next++, destroy: (storages) => void destroyed.push(...storages) },
    { budget: 1024, maxBufferBytes: 1024 },
  );
  const [a, b, c] = [pool.alloc(256, "a"), pool.alloc(256, "b"), pool.alloc(256, "c")];
  expect(pool.reserve([a])).toBeUndefined();
  for (const range of [a, b, c]) pool.release(range);
  expect(pool.reserve([a, pool.alloc(256, "c")])).toBeUndefined();
  const [one, other] = [pool.reserve([a])!, pool.reserve([b])!];
  expect(pool.reserve([a])).toBeUndefined();
  expect([pool.live, pool.pooled]).toEqual([256, 512]);
  other.release();
  expect([one.isHeld, other.isHeld]).toEqual([true, false]);
  // b's, then a new one, then what is reserved: nothing else is left.
  expect(pool.alloc(256, "d").storage).toBe(b.storage);
  const e = pool.alloc(256, "e");
  expect([e.storage, one.isHeld]).toEqual([3, true]);
  pool.release(e);
  expect(pool.alloc(512, "f").storage).toBe(4);
  expect(one.isHeld).toBe(false);
  expect(destroyed.toSorted()).toEqual([a.storage, 3]);
  expect([pool.live, pool.pooled]).toEqual([1024, 0]);
  one.release();
  expect(pool.pooled).toBe(0);
});
