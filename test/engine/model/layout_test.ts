/** How matrices lie in few buffers, and how rows are cut into windows: figures. */
import { describe, expect, test } from "vitest";
import { CountingDevice, TYPICAL_GPU } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { packElements } from "../../../src/engine/model/formats/pack.ts";
import { PackedMatrices } from "../../../src/engine/model/packed_matrices.ts";
import { layOutParameters, layoutBytes, ParameterSet } from "../../../src/engine/model/parameters.ts";
import { rowRuns, rowWindows } from "../../../src/engine/model/row_windows.ts";
import { expectClose, floats } from "../../fixtures/numbers.ts";

/** A device that binds and allocates at most so much. */
function device(maxBindingBytes: number, maxBufferBytes = 2 ** 40): CountingDevice {
  return new CountingDevice({
    info: { ...TYPICAL_GPU, limits: { ...TYPICAL_GPU.limits, maxBindingBytes, maxBufferBytes } },
  });
}

const row = (columns: number) => ({ rows: 1, columns });

test("tensors lie end to end at multiples of 256 bytes, in buffers of at most one binding", () => {
  const { entries, shardBytes } = layOutParameters(device(1024), [
    ["a", row(64)],
    ["b", row(65)],
    ["c", row(64)],
    ["d", row(1)],
    ["large", { rows: 4, columns: 100 }],
    ["e", row(10)],
  ]);
  expect([...entries.values()].map(({ shard, byteOffset }) => [shard, byteOffset])).toEqual([
    ...[
      [0, 0],
      [0, 256],
      [0, 768],
    ],
    ...[
      [1, 0],
      [2, 0],
      [3, 0],
    ],
  ]);
  expect(shardBytes).toEqual([1024, 256, 1792, 256]);
  expect(layoutBytes({ entries, shardBytes })).toBe(3328);
  expect(
    layOutParameters(device(2 ** 30), [
      ["x", row(2 ** 24)],
      ["y", row(1)],
    ]).shardBytes,
  ).toEqual([2 ** 26, 256]);
});

test("a set of parameters is zero at first, its gaps too, and knows its tensors by name", async () => {
  const cpu = new CpuDevice();
  const set = new ParameterSet(
    cpu,
    layOutParameters(cpu, [
      ["a", row(3)],
      ["b", row(2)],
    ]),
    "weights",
  );
  const [data] = await cpu.read([{ buffer: set.shards[0]!, type: "f32" }]);
  expect(data).toEqual(new Float32Array(128));
  set.write("b", Float32Array.of(1, 2));
  expect(await set.read()).toEqual(
    new Map([
      ["a", new Float32Array(3)],
      ["b", Float32Array.of(1, 2)],
    ]),
  );
  expect([set.has("a"), set.has("c")]).toEqual([true, false]);
  expect(set.get("b")).toBe(set.get("b"));
  expect(() => set.get("c")).toThrow("Cannot find a parameter named c.");
  const other = new ParameterSet(cpu, set.layout, "copy");
  other.copyFrom(set);
  set.clear();
  expect((await other.read()).get("b")).toEqual(Float32Array.of(1, 2));
  expect((await set.read()).get("b")).toEqual(new Float32Array(2));
  set.release();
  other.release();
  expect(cpu.memory.live).toBe(0);
});

test("packed matrices fill the first buffer with room, and a large one has a buffer that others fill up", () => {
  const MIB = 2 ** 20;
  const shape = (columns: number, format: "bfloat16" | "int8" = "bfloat16") => ({ rows: MIB, columns, format });
  const packed = new PackedMatrices(
    device(2 ** 40),
    [
      ["half", shape(20)],
      ["large", shape(41)],
      ["fits", shape(8)],
      ["int8", shape(7, "int8")],
      ["beside", shape(3)],
      ["new", shape(1)],
    ],
    "packed",
  );
  const places = [...packed.matrices].map(([name, { buffer, scales }]) => [
    name,
    buffer.whole.byteLength / MIB,
    buffer.byteOffset / MIB,
    scales && scales.byteOffset / MIB,
  ]);
  expect(places).toEqual([
    ["half", 63.4375, 0, undefined],
    // Its buffer may hold 88 MiB, an eighth of a power of two more than 80.
    ["large", 88, 0, undefined],
    ["fits", 63.4375, 40, undefined],
    // 7 MiB of bytes, and a scale of 4 bytes for 64 of them.
    ["int8", 63.4375, 56, 63],
    ["beside", 88, 82, undefined],
    ["new", 2, 0, undefined],
  ]);
  expect(packed.byteLength / MIB).toBeCloseTo(63.4375 + 88 + 2, 9);
  expect(() => packed.get("none")).toThrow("Cannot find a packed matrix named none.");
});

test("a packed matrix is written from any block on, and read back", async () => {
  const cpu = new CpuDevice();
  const packed = new PackedMatrices(cpu, [["m", { rows: 4, columns: 64, format: "nf4" }]], "packed");
  const values = floats(256, 3);
  for (const [first, last] of [
    [128, 256],
    [0, 128],
  ] as const)
    packed.write("m", { first, ...packElements("nf4", values.subarray(first, last)) });
  expectClose(await packed.read("m"), values, { relative: 0, absolute: 0.16 });
  packed.release();
  expect(cpu.memory.live).toBe(0);
});

describe("windows of rows", () => {
  const windows = (limit: number, matrix: Parameters<typeof rowWindows>[2]) => {
    const it = device(limit);
    const buffer = it.alloc(matrix.rows * matrix.width * 4, "matrix");
    return rowWindows(it, buffer, matrix).map(({ first, rows, buffer }) => [
      first,
      rows,
      buffer.byteOffset,
      buffer.byteLength,
    ]);
  };

  test.each([
    // A buffer within one binding is the only window.
    [1200, { rows: 10, width: 30 }, [[0, 10, 0, 1200]]],
    // Of 30 floats, 32 rows lie between two multiples of 256 bytes.
    [
      4000,
      { rows: 70, width: 30 },
      [
        [0, 32, 0, 3840],
        [32, 32, 3840, 3840],
        [64, 6, 7680, 720],
      ],
    ],
    [
      7680,
      { rows: 65, width: 30 },
      [
        [0, 64, 0, 7680],
        [64, 1, 7680, 120],
      ],
    ],
    [
      512,
      { rows: 5, width: 64 },
      [
        [0, 2, 0, 512],
        [2, 2, 512, 512],
        [4, 1, 1024, 256],
      ],
    ],
  ] as const)("in bindings of %i bytes, %o", (limit, matrix, expected) => {
    expect(windows(limit, matrix)).toEqual(expected);
  });

  test("a binding that holds no aligned rows is an error", () => {
    expect(() => windows(3839, { rows: 70, width: 30 })).toThrow(
      "Cannot process matrix: one binding of this device is smaller than 32 of its rows (3839 of 3840 bytes).",
    );
  });

  test("scales are cut where the blocks of a window begin", () => {
    const it = device(8192);
    const [buffer, scales] = [it.alloc(256 * 128, "matrix"), it.alloc((256 * 128) / 16, "scales")];
    const found = rowWindows(it, buffer, { rows: 256, width: 128, format: "int8", scales });
    expect(
      found.map((window) => [window.first, window.rows, window.scales!.byteOffset, window.scales!.byteLength]),
    ).toEqual([
      ...[
        [0, 64, 0, 512],
        [64, 64, 512, 512],
        [128, 64, 1024, 512],
        [192, 64, 1536, 512],
      ],
    ]);
  });

  test.each([
    // The widest row takes 400 bytes; rows of 16 floats are sliced at multiples of 4.
    [
      2 ** 30,
      10,
      { width: 100, sliced: 16, mostBytes: 4000 },
      [
        [0, 8],
        [8, 2],
      ],
    ],
    [2 ** 30, 8, { width: 100, sliced: 16, mostBytes: 4000 }, [[0, 8]]],
    [
      2 ** 30,
      13,
      { width: 100, sliced: 16, mostBytes: 4800 },
      [
        [0, 12],
        [12, 1],
      ],
    ],
    [2 ** 30, 0, { width: 100, sliced: 16, mostBytes: 4000 }, []],
    // At least as many rows as slicing takes.
    [
      2 ** 30,
      9,
      { width: 100, sliced: 16, mostBytes: 100 },
      [
        [0, 4],
        [4, 4],
        [8, 1],
      ],
    ],
    // The binding is the smaller limit.
    [
      3600,
      9,
      { width: 100, sliced: 16, mostBytes: 1e9 },
      [
        [0, 8],
        [8, 1],
      ],
    ],
  ] as const)("in bindings of %i bytes %i rows run as %o", (limit, count, of, expected) => {
    expect(rowRuns(device(limit), count, of).map(({ first, rows }) => [first, rows])).toEqual(expected);
  });
});
