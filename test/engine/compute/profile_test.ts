/** What a profile holds of a device's work, and the trace that is made of it. */
import { describe, expect, test } from "vitest";
import type { Device } from "../../../src/engine/compute/device.ts";
import { matmul } from "../../../src/engine/compute/matmul/matmul.ts";
import type { KernelRuns } from "../../../src/engine/compute/observer.ts";
import { kernelRuns, Profile } from "../../../src/engine/compute/profile/profile.ts";
import { kernelTable, timeByKernel } from "../../../src/engine/compute/profile/table.ts";
import { type TraceEvent, traceEvents, traceText } from "../../../src/engine/compute/profile/trace.ts";
import { overDevices } from "../../fixtures/devices.ts";

const N = 16;

/** Multiplies a matrix by itself again and again, and returns the last product. */
async function products(device: Device, count: number): Promise<Float32Array> {
  const a = device.upload(
    Float32Array.from({ length: N * N }, (_, i) => Math.sin(i) / 4),
    "a",
  );
  const c = device.alloc(N * N * 4, "c");
  for (let i = 0; i < count; i++)
    matmul(device, { m: N, n: N, k: N, a: { buffer: a }, b: { buffer: a }, c: { buffer: c } });
  const [result] = await device.read([{ buffer: c, type: "f32" }]);
  device.release(a, c);
  return result as Float32Array;
}

async function profiled(device: Device, count: number, profile: Profile = new Profile()) {
  profile.attach(device);
  const result = await products(device, count);
  await profile.stop();
  return { result, profile };
}

overDevices("a profile", (device) => {
  test("has a time for each run of each kernel, within the host's wait, and changes no bit", async () => {
    const before = performance.now();
    const plain = await products(device, 3);
    const { result, profile } = await profiled(device, 3);
    const after = performance.now();
    expect(result).toEqual(plain);
    expect(profile.untimed).toBeUndefined();
    const runs = [...kernelRuns(profile.batches)];
    expect(runs.map(({ name }) => name)).toEqual(Array(3).fill(expect.stringMatching(/^matmul\//)));
    for (const [i, { start, end }] of runs.entries()) {
      expect(end).toBeGreaterThan(start);
      expect(start).toBeGreaterThanOrEqual(i === 0 ? before : runs[i - 1]!.start);
      expect(end).toBeLessThan(after);
    }
    expect(profile.leftOut).toEqual({ hostEvents: 0, spans: 0 });
  });

  test("ends with stop", async () => {
    const { profile } = await profiled(device, 1);
    await products(device, 2);
    expect([...kernelRuns(profile.batches)]).toHaveLength(1);
  });

  test("no longer times kernels when it is full, and says since when", async () => {
    const profile = new Profile({ runs: 2 });
    profile.attach(device);
    await products(device, 2);
    // The times of a GPU arrive after the results.
    while (profile.timesKernels) await new Promise((resume) => setTimeout(resume, 1));
    await products(device, 5);
    await profile.stop();
    expect([...kernelRuns(profile.batches)]).toHaveLength(2);
    expect(profile.leftOut.kernelsAfter).toBeGreaterThan(profile.start);
  });

  test.runIf(device.info.kind === "webgpu")(
    "has submits and read-backs, and more dispatches than a query set",
    async () => {
      const { profile } = await profiled(device, 2100);
      expect([...kernelRuns(profile.batches)]).toHaveLength(2100);
      const { events } = profile;
      const submit = events.find(({ kind }) => kind === "submit")!;
      const readBack = events.find(({ kind }) => kind === "read-back")!;
      expect(submit.dispatches).toBe(2100);
      expect(readBack.bytes).toBe(N * N * 4);
      expect(readBack.start).toBeGreaterThanOrEqual(submit.end);
      expect(readBack.end).toBeGreaterThan(readBack.start);
    },
  );
});

/** Runs of one submit on a GPU's clock. */
function batch(kernels: readonly string[], times: readonly number[], submitted: number): KernelRuns {
  return { kernels, times: Float64Array.from(times), host: { submitted, done: submitted + 100 } };
}

describe("runs on a GPU's clock", () => {
  test("begin when the idle GPU got them", () => {
    // The clocks differ by 1000; the GPU is busy when the second submit comes, and idle before the first.
    const batches = [batch(["a"], [50, 58], 1050), batch(["b"], [58, 60], 1052)];
    expect([...kernelRuns(batches)]).toEqual([
      { name: "a", start: 1050, end: 1058 },
      { name: "b", start: 1058, end: 1060 },
    ]);
  });

  test("without a time, or with an end before the start, are left out", () => {
    const batches = [batch(["a", "b", "c"], [0, 0, 50, 49, 60, 61], 1060)];
    expect([...kernelRuns(batches)].map(({ name }) => name)).toEqual(["c"]);
  });
});

function made(): Profile {
  const profile = new Profile();
  const at = profile.start;
  profile.span({ name: "generate", start: at + 1, end: at + 4 });
  profile.span({ name: "step", start: at + 1, end: at + 9 });
  profile.host({ kind: "submit", start: at + 1, end: at + 2, dispatches: 3 });
  profile.host({ kind: "read-back", start: at + 2, end: at + 4, bytes: 64 });
  profile.host({ kind: "wait", start: at + 3, end: at + 5 });
  // The second run of `a` begins before the first has ended, as independent dispatches may.
  profile.ran(batch(["a", "a", "b"], [2, 4, 3, 5, 5, 5.5], at + 2));
  return profile;
}

test("a trace is JSON that names a lane for each phase, kernel and kind of host event", () => {
  const text = [...traceText(made(), { device: "made up" })].join("");
  const { traceEvents: events, otherData } = JSON.parse(text) as { traceEvents: TraceEvent[]; otherData: object };
  expect(otherData).toEqual({ device: "made up" });
  const lanes = events.filter(({ name }) => name === "thread_name").map(({ args }) => args!.name);
  expect(lanes).toEqual(["generate", "step", "compile", "submit", "wait", "read-back", "a", "b"]);
  const places = new Set(events.filter(({ name }) => name === "thread_name").map(({ pid, tid }) => `${pid} ${tid}`));
  expect(places.size).toBe(8);
  for (const { ph, pid, tid, ts } of events) {
    if (ph !== "M") expect(ts).toBeGreaterThanOrEqual(0);
    if (ph !== "M") expect(places).toContain(`${pid} ${tid}`);
  }
});

test("events of a lane do not overlap, times are microseconds, and waits are pairs", () => {
  const events = [...traceEvents(made())];
  const complete = (lane: string) =>
    events.filter(({ ph, name }) => ph === "X" && name === lane).map(({ ts, dur }) => [ts, dur]);
  expect(complete("a")).toEqual([
    [2000, 2000],
    [4000, 1000],
  ]);
  expect(complete("b")).toEqual([[5000, 500]]);
  expect(complete("step")).toEqual([[1000, 8000]]);
  const pairs = events.filter(({ ph }) => ph === "b" || ph === "e").map(({ ph, id, ts }) => [ph, id, ts]);
  expect(pairs).toEqual([
    ["b", 1, 2000],
    ["e", 1, 4000],
    ["b", 2, 3000],
    ["e", 2, 5000],
  ]);
});

test("events beyond the limit are counted", () => {
  const profile = new Profile({ events: 1 });
  for (let i = 0; i < 3; i++) {
    profile.host({ kind: "wait", start: i, end: i + 1 });
    profile.span({ name: "step", start: i, end: i + 1 });
  }
  expect(profile.leftOut).toEqual({ hostEvents: 2, spans: 2 });
  expect(profile.events).toHaveLength(1);
});

test("the table sums by kernel, the longest first, and the rest in one row", () => {
  const times = timeByKernel({ batches: [batch(["a", "b", "a", "c"], [1, 2, 2, 8, 8, 10, 10, 11], 1)] });
  expect(times.map(({ name, calls, ms, share }) => [name, calls, ms, share])).toEqual([
    ["b", 1, 6, 0.6],
    ["a", 2, 3, 0.3],
    ["c", 1, 1, 0.1],
  ]);
  const lines = kernelTable(times, 1).trim().split("\n");
  expect(lines.map((line) => line.split(/ {2,}/))).toEqual([
    ["kernel", "time", "calls", "each", "share"],
    ["b", "6.0 ms", "1", "6000 us", "60.0%"],
    ["2 others", "4.0 ms", "3", "1333 us", "40.0%"],
  ]);
});

test("a backend without a device says so", () => {
  const profile = new Profile();
  expect(profile.untimed).toContain("no device");
  profile.attach({});
  expect(profile.untimed).toContain("no device");
});
