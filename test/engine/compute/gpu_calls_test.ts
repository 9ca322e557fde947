/** What is asked of WebGPU: submits and the time they take, bind groups, staging buffers, errors. A fake device counts. */
import { describe, expect, test, vi } from "vitest";
import { MemoryRange } from "../../../src/engine/compute/memory.ts";
import { Bindings } from "../../../src/engine/compute/webgpu/bindings.ts";
import {
  CommandEncoding,
  type DispatchOp,
  type EncodingTarget,
  packParams,
} from "../../../src/engine/compute/webgpu/encoding.ts";
import { GpuFailures } from "../../../src/engine/compute/webgpu/failures.ts";
import { Pace } from "../../../src/engine/compute/webgpu/pace.ts";
import { validationError } from "../../../src/engine/compute/webgpu/pipeline.ts";
import { ReadBack, StagingPool } from "../../../src/engine/compute/webgpu/read_back.ts";
import type { GpuDevice } from "../../../src/engine/compute/webgpu/types.ts";
import { DeviceLostError, OutOfMemoryError, RemoteError, ShaderError } from "../../../src/leaves/errors.ts";

/** A buffer of the fake, by its size. */
interface FakeBuffer {
  readonly label: string;
  readonly size: number;
  isDestroyed: boolean;
}

/** Logs calls by name and figures, and answers waits at once. */
function fakeGpu() {
  const calls: string[] = [];
  const buffers: FakeBuffer[] = [];
  const groups: { entries: { resource: { offset: number; size: number } }[] }[] = [];
  const pass = {
    setPipeline: (pipeline: { readonly logged?: string }) => {
      if (pipeline.logged) calls.push(pipeline.logged);
    },
    setBindGroup: (index: number, _: unknown, offsets?: number[]) => {
      if (offsets) calls.push(`params ${index} at ${offsets}`);
    },
    dispatchWorkgroups: (...grid: number[]) => calls.push(`dispatch ${grid.join(" ")}`),
    end: () => calls.push("end"),
  };
  const encoder = {
    beginComputePass: () => {
      calls.push("pass");
      return pass;
    },
    copyBufferToBuffer: (_: unknown, from: number, __: unknown, to: number, bytes: number) =>
      calls.push(`copy ${bytes} from ${from} to ${to}`),
    clearBuffer: (_: unknown, at: number, bytes: number) => calls.push(`clear ${bytes} at ${at}`),
    finish: () => ({}),
  };
  const gpu = {
    createCommandEncoder: () => encoder,
    createBuffer({ label, size }: { label: string; size: number }) {
      const buffer = { label, size, isDestroyed: false };
      buffers.push(buffer);
      return Object.assign(buffer, {
        destroy: () => {
          buffer.isDestroyed = true;
        },
      });
    },
    createBindGroup(of: (typeof groups)[number]) {
      groups.push(of);
      return of;
    },
    queue: {
      submit: () => calls.push("submit"),
      writeBuffer: (_: unknown, at: number, data: Uint8Array) => calls.push(`write ${data.byteLength} at ${at}`),
      onSubmittedWorkDone: async () => void calls.push("wait"),
    },
  };
  return { gpu: gpu as unknown as GpuDevice, calls, buffers, groups };
}

const range = (byteOffset = 0, byteLength = 16, capacity = 256) =>
  new MemoryRange(
    { buffer: {} as never, state: "ready" as const },
    { label: "x", byteOffset, byteLength, capacity, id: 1 },
  );

const dispatch = (nominal: number, of: Partial<DispatchOp> = {}): DispatchOp => ({
  type: "dispatch",
  pipeline: { compiled: {}, paramsBytes: 16, bindingCode: 2, bindingLayout: {} } as never,
  paramTypes: { count: "u32", shift: "u32" },
  buffers: [range()],
  params: new Uint32Array(2),
  grid: [3],
  kernel: "k",
  nominal,
  ...of,
});

describe("recorded work", () => {
  const ran = (ops: ConstructorParameters<typeof CommandEncoding>[1]) => {
    const { gpu, calls } = fakeGpu();
    const target: EncodingTarget = {
      gpuDevice: gpu,
      bindings: { era: {}, group: () => ({}) as never },
      pace: new Pace("tiled"),
      writeNow: (_, data, byteOffset) => void calls.push(`host ${data.byteLength} at ${byteOffset}`),
    };
    return { pieces: new CommandEncoding(target, ops).run(), calls };
  };

  test("looks the bind group of kept dispatches up once, and again when it may name what is destroyed", () => {
    const { gpu, calls } = fakeGpu();
    const groups: unknown[] = [];
    const bindings = { era: {}, group: () => groups[groups.push({}) - 1] as never };
    const target: EncodingTarget = { gpuDevice: gpu, bindings, pace: new Pace("tiled"), writeNow: () => {} };
    const [kept, plain] = [dispatch(1e-4, { kept: {} }), dispatch(1e-4)];
    const ops = [kept, plain, kept, { ...kept, params: Uint32Array.of(1, 2) }];
    new CommandEncoding(target, ops).run();
    expect(groups).toHaveLength(2);
    new CommandEncoding(target, ops).run();
    expect(groups).toHaveLength(3);
    bindings.era = {};
    new CommandEncoding(target, ops).run();
    expect(groups).toHaveLength(5);
    expect(calls.filter((call) => call.startsWith("params"))).toHaveLength(12);
  });

  test("shares passes and submits until something stands between", () => {
    const { calls, pieces } = ran([
      dispatch(1e-4),
      dispatch(1e-4, { grid: [2, 5] }),
      { type: "copy", from: range(256), to: range(512), byteLength: 8 },
      { type: "clear", buffer: range(256, 6) },
      dispatch(1e-4, { grid: [1, 2, 3] }),
      { type: "write", buffer: range(), data: Float32Array.of(1, 2), byteOffset: 4 },
      dispatch(1e-4),
    ]);
    expect(calls).toEqual([
      ...["pass", "params 0 at 0", "dispatch 3", "params 0 at 256", "dispatch 2 5 1", "end"],
      ...["copy 8 from 256 to 512", "clear 8 at 256"],
      ...["pass", "params 0 at 512", "dispatch 1 2 3", "end", "submit", "host 8 at 4"],
      ...["pass", "params 0 at 768", "dispatch 3", "end", "submit"],
    ]);
    expect(pieces).toHaveLength(1);
    expect([...pieces[0]!.work.keys()]).toEqual(["k", "copy", "clear"]);
    expect(pieces[0]!.work.get("k")).toBeCloseTo(4e-4, 12);
    // A copy reads and writes its bytes, at 1e11 a second.
    expect(pieces[0]!.work.get("copy")).toBeCloseTo(1e-5 + 16e-11, 14);
    expect(pieces[0]!.work.get("clear")).toBeCloseTo(1e-5 + 6e-11, 14);
  });

  test("sets a pipeline once for dispatches in a row, and again in each pass", () => {
    const [one, two] = ["one", "two"].map((logged) => ({
      pipeline: { compiled: { logged }, paramsBytes: 0 } as never,
    }));
    const { calls } = ran([
      ...[dispatch(1e-4, one), dispatch(1e-4, one), dispatch(1e-4, two), dispatch(1e-4, one)],
      { type: "clear", buffer: range() },
      dispatch(1e-4, one),
    ]);
    expect(calls).toEqual([
      ...["pass", "one", "dispatch 3", "dispatch 3", "two", "dispatch 3", "one", "dispatch 3", "end"],
      ...["clear 16 at 0", "pass", "one", "dispatch 3", "end", "submit"],
    ]);
  });

  test("is submitted once before writes in a row, and not where they come first", () => {
    const write = { type: "write", buffer: range(), data: Float32Array.of(1), byteOffset: 0 } as const;
    const clear = { type: "clear", buffer: range() } as const;
    const { calls } = ran([write, write, clear, write, write, clear]);
    expect(calls).toEqual([
      ...["host 4 at 0", "host 4 at 0", "clear 16 at 0", "submit"],
      ...["host 4 at 0", "host 4 at 0", "clear 16 at 0", "submit"],
    ]);
  });

  test("takes several submits where it is long, and the time of each of at least 20 ms is measured", () => {
    const { calls, pieces } = ran([dispatch(0.1), dispatch(0.1), dispatch(0.1), dispatch(0.3), dispatch(0.01)]);
    expect(calls.filter((call) => call === "submit" || call === "wait" || call.startsWith("dispatch"))).toEqual([
      ...["dispatch 3", "dispatch 3", "submit", "wait"],
      ...["dispatch 3", "submit", "wait", "dispatch 3", "submit", "wait"],
      ...["dispatch 3", "submit"],
    ]);
    expect(pieces.map(({ work }) => work.get("k"))).toEqual([0.2, 0.1, 0.3, 0.01]);
    expect(pieces.map(({ done }) => done !== undefined)).toEqual([true, true, true, false]);
  });

  test("is measured together where submits are short", () => {
    const write = { type: "write", buffer: range(), data: Float32Array.of(1), byteOffset: 0 } as const;
    const { pieces } = ran([dispatch(0.019), write, dispatch(0.021), write, dispatch(0.005)]);
    expect(pieces.map(({ work }) => work.get("k"))).toEqual([0.04, 0.005]);
  });

  test("without params binds none", () => {
    const { calls } = ran([dispatch(1e-4, { pipeline: { compiled: {}, paramsBytes: 0 } as never })]);
    expect(calls).toEqual(["pass", "dispatch 3", "end", "submit"]);
  });
});

test("params lie in the order of the struct, each in its type", () => {
  const view = new DataView(packParams({ a: "f32", b: "u32", c: "i32" }, { c: -2, b: 2 ** 32 - 1, a: 0.5 }).buffer);
  expect(view.byteLength).toBe(12);
  expect([view.getFloat32(0, true), view.getUint32(4, true), view.getInt32(8, true)]).toEqual([0.5, 2 ** 32 - 1, -2]);
});

describe("bind groups", () => {
  test("are made once for the same ranges, and bind whole vec4s within the allocation", () => {
    const { gpu, groups } = fakeGpu();
    const bindings = new Bindings(gpu);
    const sizes = [
      range(0, 1),
      range(0, 16),
      range(0, 17),
      range(256, 0, 512),
      range(256, 250, 512),
      range(256, 6, 260),
    ];
    const op = dispatch(0, { buffers: sizes });
    const first = bindings.group(op);
    expect(bindings.group({ ...op, params: new Uint32Array(1) })).toBe(first);
    expect(groups[0]!.entries.map(({ resource }) => [resource.offset, resource.size])).toEqual([
      ...[
        [0, 16],
        [0, 16],
        [0, 32],
      ],
      ...[
        [256, 16],
        [256, 256],
        [256, 4],
      ],
      // The params.
      [0, 16],
    ]);
    for (const buffers of [[range(0, 2), ...sizes.slice(1)], [range(256, 1), ...sizes.slice(1)], sizes.slice(1)])
      expect(bindings.group({ ...op, buffers })).not.toBe(first);
    // Another layout with the same code.
    const other = { ...op, pipeline: { ...op.pipeline, bindingLayout: {} } as never };
    const second = bindings.group(other);
    expect(second).not.toBe(first);
    expect(bindings.group(other)).toBe(second);
    const { era } = bindings;
    bindings.forget();
    expect(bindings.group(other)).not.toBe(second);
    expect(bindings.era).not.toBe(era);
  });

  test("the params of a submit share a buffer, which grows by powers of two from 64 KiB", () => {
    const { gpu, calls, buffers, groups } = fakeGpu();
    const bindings = new Bindings(gpu);
    const params = (count: number) => Array<DispatchOp>(count).fill(dispatch(0));
    bindings.uploadParams(params(0));
    bindings.uploadParams(params(256));
    const op = dispatch(0);
    const before = bindings.group(op);
    expect(bindings.group(op)).toBe(before);
    expect(groups).toHaveLength(1);
    bindings.uploadParams(params(257));
    bindings.uploadParams(params(512));
    expect(bindings.group(op)).not.toBe(before);
    expect(calls).toEqual([256, 65_536, 65_792, 131_072].map((bytes) => `write ${bytes} at 0`));
    expect(buffers).toMatchObject([
      { label: "params", size: 2 ** 16, isDestroyed: true },
      { label: "params", size: 2 ** 17, isDestroyed: false },
    ]);
    bindings.destroy();
    expect(buffers[1]!.isDestroyed).toBe(true);
  });
});

describe("a read", () => {
  test("copies its ranges end to end into a staging buffer, which the next one takes", () => {
    const { gpu, calls, buffers } = fakeGpu();
    const pool = new StagingPool(gpu as never);
    const requests = [
      { buffer: range(256, 12), type: "u32" },
      { buffer: range(0, 16), type: "f32", length: 0 },
      { buffer: range(0, 64), type: "i32", length: 3 },
    ] as const;
    const read = new ReadBack(requests, pool);
    read.record(gpu.createCommandEncoder());
    expect(calls).toEqual(["copy 12 from 256 to 0", "copy 12 from 0 to 16"]);
    const [staging] = buffers as unknown as Record<string, unknown>[];
    const mapped = Uint32Array.of(1, 2, 3, 99, 2 ** 32 - 1, 5, 6, 99).buffer;
    const asked: number[][] = [];
    Object.assign(staging!, {
      mapAsync: async (mode: number, from: number, bytes: number) => void asked.push([mode, from, bytes]),
      getMappedRange: (from: number, bytes: number) => asked.push([from, bytes]) && mapped,
      unmap: () => {},
    });
    void read.map();
    expect(read.take()).toEqual([Uint32Array.of(1, 2, 3), new Float32Array(0), Int32Array.of(-1, 5, 6)]);
    expect(asked).toEqual([
      [1, 0, 32],
      [0, 32],
    ]);
    new ReadBack(requests, pool);
    expect(buffers).toMatchObject([{ label: "read-back", size: 256 }]);
    new ReadBack([{ buffer: range(0, 257, 512), type: "f32" }], pool).drop();
    expect(buffers).toMatchObject([{ size: 256 }, { size: 512, isDestroyed: true }]);
  });

  test("free staging buffers are destroyed with the device", () => {
    const { gpu, buffers } = fakeGpu();
    const pool = new StagingPool(gpu as never);
    for (const bytes of [1, 256, 257]) pool.give(pool.take(bytes));
    pool.destroy();
    expect(buffers.map(({ size, isDestroyed }) => [size, isDestroyed])).toEqual([
      [256, true],
      [512, true],
    ]);
  });
});

class GPUOutOfMemoryError extends Error {}
class GPUValidationError extends Error {}

describe("what goes wrong on the GPU", () => {
  function failures(errors: (Error | null)[] = []) {
    let lose: (info: { reason: string; message: string }) => void = () => {};
    const gpu = {
      lost: new Promise((resolve) => {
        lose = resolve;
      }),
      onuncapturederror: undefined as unknown as (event: { error: Error; preventDefault?: () => void }) => void,
      pushErrorScope: vi.fn(),
      popErrorScope: async () => errors.shift() ?? null,
    };
    return { gpu, failures: new GpuFailures(gpu as never), lose };
  }
  const settled = (it: GpuFailures, done: Promise<unknown> = Promise.resolve()) =>
    it.settle(
      it.scoped(() => {}),
      done,
    );

  test.each([
    [[null, null], undefined, ""],
    [[new GPUOutOfMemoryError(" no room "), null], OutOfMemoryError, "out of memory (no room). Lower"],
    [[null, new GPUValidationError('[ComputePipeline "matmul/any"] is wrong')], ShaderError, "is wrong"],
  ] as const)("%j in the scopes of a submit", async (errors, type, message) => {
    const { failures: it, gpu } = failures([...errors]);
    const call = settled(it);
    if (type === undefined) await call;
    else {
      await expect(call).rejects.toThrow(type);
      await expect(call).rejects.toThrow(message);
    }
    expect(gpu.pushErrorScope.mock.calls).toEqual([["validation"], ["out-of-memory"]]);
  });

  test("an error outside of them is thrown by the next call that waits, once", async () => {
    const { failures: it, gpu } = failures();
    const preventDefault = vi.fn();
    gpu.onuncapturederror({ error: new GPUValidationError("first"), preventDefault });
    gpu.onuncapturederror({ error: new GPUValidationError("second") });
    expect(preventDefault).toHaveBeenCalledOnce();
    await expect(settled(it)).rejects.toThrow("Cannot run the recorded GPU work: first");
    await settled(it);
  });

  test("work that fails says why: its scopes, or what the wait says", async () => {
    const scoped = failures([new GPUValidationError("wrong")]);
    await expect(settled(scoped.failures, Promise.reject(new Error("aborted")))).rejects.toThrow(ShaderError);
    const bare = failures();
    const call = settled(bare.failures, Promise.reject(new Error("aborted")));
    await expect(call).rejects.toThrow("Cannot finish the GPU work: Error: aborted");
    await expect(call).rejects.toMatchObject({ name: RemoteError.name, retryable: false });
  });

  test("a loss that is told after the errors that it causes is what is thrown", async () => {
    const { failures: it, lose } = failures([new GPUValidationError("wrong")]);
    setTimeout(() => lose({ reason: "unknown", message: " reset by the driver " }), 20);
    const call = settled(it, Promise.reject(new Error("aborted")));
    await expect(call).rejects.toThrow(DeviceLostError);
    await expect(call).rejects.toThrow("reset by the driver");
    expect(it.isLost).toBe(true);
    expect(() => it.throwIfLost()).toThrow(DeviceLostError);
    await expect(it.unlessLost(Promise.resolve(1))).rejects.toThrow(DeviceLostError);
    await expect(settled(it)).rejects.toThrow(DeviceLostError);
  });

  test.each([
    [{ reason: "unknown", message: "" }, "unknown"],
    [{ reason: "", message: " " }, "no reason given"],
  ])("a loss of %o says %s", async (loss, words) => {
    const { failures: it, lose } = failures();
    lose(loss);
    await Promise.resolve();
    expect(() => it.throwIfLost()).toThrow(words);
  });

  test("the first end of a device is its reason, and only a loss is a loss", async () => {
    const { failures: it, lose } = failures();
    const reason = new RemoteError("Cannot use the GPU device: it was destroyed.", { retryable: false });
    it.end(reason);
    lose({ reason: "destroyed", message: "later" });
    await Promise.resolve();
    expect(() => it.throwIfLost()).toThrow(reason);
    expect(it.isLost).toBe(false);
  });

  test("other errors of awaited work pass through", async () => {
    const { failures: it } = failures();
    expect(await it.unlessLost(Promise.resolve(1))).toBe(1);
    await expect(it.unlessLost(Promise.reject(new Error("its own")))).rejects.toThrow("its own");
  });

  test("an error names the kernel whose pipeline it is about", () => {
    expect(validationError('in [ComputePipeline "matmul/any"]. ')).toMatchObject({
      kernel: "matmul/any",
      message: 'Cannot run the recorded GPU work: in [ComputePipeline "matmul/any"].',
    });
    expect(validationError("of a buffer").kernel).toBe("unknown");
  });
});
