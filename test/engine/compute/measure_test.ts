/** Rates from the time that submits take, and how waiting for a software GPU leaves it the cores. */
import { afterEach, expect, test, vi } from "vitest";
import { CountingDevice } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import { measureCeilings } from "../../../src/engine/compute/measure.ts";
import { PollSleep } from "../../../src/engine/compute/webgpu/poll_sleep.ts";
import { changed } from "../../fixtures/changed_device.ts";
import { expectContract } from "../../fixtures/kernel_contract.ts";

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

/** A device whose submits take these ms, one after another; it computes nothing. */
function timed(device: Device, ms: readonly number[]) {
  vi.useFakeTimers({ toFake: ["performance"] });
  let calls = 0;
  const submit = async () => void vi.advanceTimersByTime(ms[calls++ % ms.length]!);
  const dispatch = vi.fn();
  return { dispatch, device: changed(device, { submit, dispatch }), calls: () => calls };
}

// The first round compiles; of the others the quickest counts, 20 ms.
const MS = [5, 50, 40, 20, 30, 60];

test.each([
  ["a GPU", new CountingDevice(), { bytes: 2 ** 26, rounds: 4096, n: 512 }],
  ["the cpu device", new CpuDevice(), { bytes: 2 ** 22, rounds: 16, n: 128 }],
])("ceilings of %s", async (_, real, { bytes, rounds, n }) => {
  const { device, dispatch, calls } = timed(real, MS);
  expect(await measureCeilings(device)).toEqual({
    // Each byte is read and written.
    copyBytesPerSecond: (2 * bytes) / 0.02,
    // 256 workgroups of 64 threads, which multiply and add eight vec4s in a round.
    arithmeticFlops: (256 * 64 * rounds * 64) / 0.02,
    matmulFlops: (2 * n ** 3) / 0.02,
  });
  expect([calls(), dispatch.mock.calls.length]).toEqual([18, 18]);
  const [copy, { params }] = dispatch.mock.calls[0]!;
  expect(params).toEqual({ quads: bytes / 16 });
  for (const [kernel] of dispatch.mock.calls.slice(0, 12)) await expectContract(kernel);
  const [x, y] = [Float32Array.from({ length: 12 }, (_, i) => i + 1), new Float32Array(12)];
  copy.reference({ x, y }, { quads: 2 }, {});
  expect([...y]).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0]);
  expect(real.memory.live).toBe(0);
});

/** Turns of the event loop that were asked for, and naps in ms. */
function loop() {
  const turns: (() => void)[] = [];
  const naps: number[] = [];
  vi.stubGlobal("setImmediate", (run: () => void) => turns.push(run));
  vi.spyOn(Atomics, "wait").mockImplementation((_cell, _index, _value, ms) => {
    naps.push(ms!);
    return "timed-out";
  });
  return { turns, naps, turn: (count: number) => Array.from({ length: count }, () => turns.shift()!()) };
}

test("waiting sleeps after 20 turns, longer and longer up to half a millisecond", async () => {
  const { turns, naps, turn } = loop();
  const napper = new PollSleep(true);
  let finish: (value: number) => void = () => {};
  const waiting = napper.during(
    new Promise<number>((resolve) => {
      finish = resolve;
    }),
  );
  turn(20);
  expect(naps).toEqual([]);
  turn(3);
  expect(naps).toEqual([0.05, 0.0625, 0.07500000000000001]);
  turn(60);
  expect(naps.at(-1)).toBe(0.5);
  // Other work begins with busy turns again, in the same loop.
  const other = napper.during(Promise.resolve("other"));
  expect(turns).toHaveLength(1);
  const before = naps.length;
  turn(20);
  expect(naps).toHaveLength(before);
  finish(7);
  expect([await waiting, await other]).toEqual([7, "other"]);
  turn(1);
  expect(turns).toHaveLength(0);
  const failing = napper.during(Promise.reject(new Error("lost")));
  expect(turns).toHaveLength(1);
  await expect(failing).rejects.toThrow("lost");
  turn(1);
  expect(turns).toHaveLength(0);
});

test("waiting does not sleep where that costs nothing, or cannot be done", async () => {
  const { turns } = loop();
  expect(await new PollSleep(false).during(Promise.resolve(1))).toBe(1);
  vi.stubGlobal("SharedArrayBuffer", undefined);
  expect(await new PollSleep(true).during(Promise.resolve(2))).toBe(2);
  vi.unstubAllGlobals();
  vi.stubGlobal("setImmediate", undefined);
  expect(await new PollSleep(true).during(Promise.resolve(3))).toBe(3);
  expect(turns).toEqual([]);
});
