/** Products by a packed B give the bits of the product by its f32 values. */
import { expect, test } from "vitest";
import { type Device, readFloats } from "../../../src/engine/compute/device.ts";
import { matmul } from "../../../src/engine/compute/matmul/matmul.ts";
import { unpackMatrix } from "../../../src/engine/compute/matmul/unpack.ts";
import { FORMAT, type PackedFormat } from "../../../src/engine/compute/packed.ts";
import { changed, narrowDevice } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { floats } from "../../fixtures/numbers.ts";
import { PACKED_FORMATS, packedElements } from "../../fixtures/packed.ts";

const bitsOf = (values: Float32Array) => new Uint32Array(values.buffer, values.byteOffset, values.length);

interface Case {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeB: boolean;
  readonly format: PackedFormat;
  readonly maxBindingBytes?: number;
  readonly addend?: boolean;
}

/** The bits of a product by a packed matrix and by its values in f32. */
async function bothProducts(device: Device, it: Case) {
  const { m, n, k, format, transposeB } = it;
  const packed = packedElements(format, n * k, 2);
  const A = device.upload(floats(m * k, 1), "a");
  const D = device.upload(floats(m * n, 3), "d");
  const B = device.upload(packed.words, "b");
  const S = device.upload(packed.scales, "scales");
  const V = device.upload(packed.values, "values");
  const on = it.maxBindingBytes ? narrowDevice(device, it.maxBindingBytes) : device;
  const results: Uint32Array[] = [];
  for (const b of [{ buffer: B, format, scales: S }, { buffer: V }]) {
    const C = device.upload(floats(m * n, 4), "c");
    const addend = it.addend ? D : undefined;
    matmul(on, { m, n, k, a: { buffer: A }, b, c: { buffer: C }, transposeB, addend });
    results.push(bitsOf(await readFloats(device, C, m * n)));
    device.release(C);
  }
  device.release(A, B, D, S, V);
  return results;
}

overDevices("a product by a packed matrix", (device) => {
  for (const format of PACKED_FORMATS) {
    for (const transposeB of [false, true])
      test.each([
        [1, 1, 1],
        [1, 4, 3],
        [3, 5, 7],
        [1, 33, 20],
        [1, 1, 8],
        [1, 33, 24],
        [1, 70, 64],
        [1, 5, 0],
        [3, 70, 12],
        [8, 36, 64],
        [9, 36, 68],
        [65, 132, 64],
        [33, 31, 29],
        [2, 0, 5],
        [3, 5, 0],
      ])(`${format}${transposeB ? ", transposed" : ""}: %i x %i x %i has the bits of f32`, async (m, n, k) => {
        const [got, expected] = await bothProducts(device, { m, n, k, format, transposeB });
        expect(got).toEqual(expected);
        if (n > 0 && k > 0) expect(expected!.some((bits) => bits !== 0)).toBe(true);
      });

    test.each([
      ["from an offset", { offset: 72, joins: "nothing" }],
      ["added to C", { offset: 0, joins: "C" }],
      ["with a bias", { offset: 8, joins: "bias" }],
      ["with sums that start at C", { offset: 0, joins: "sums" }],
    ] as const)(`${format}: a row of 70 x 64 %s has the bits of f32`, async (_, { offset, joins }) => {
      const [n, k] = [70, 64];
      const packed = packedElements(format, offset + n * k, 2);
      const [W, S, V] = [packed.words, packed.scales, packed.values].map((values) => device.upload(values, "b"));
      const [A, D] = [device.upload(floats(k + 4, 1), "a"), device.upload(floats(n, 3), "bias")];
      const results: Float32Array[] = [];
      for (const b of [{ buffer: W!, format, scales: S! }, { buffer: V! }]) {
        const C = device.upload(floats(n + 3, 4), "c");
        matmul(device, {
          ...{ m: 1, n, k, transposeB: true, alpha: 0.5 },
          ...{ a: { buffer: A, offset: 4 }, b: { ...b, offset }, c: { buffer: C, offset: 3 } },
          ...(joins === "C" && { accumulate: true }),
          ...(joins === "bias" && { bias: { buffer: D } }),
          ...(joins === "sums" && { continues: true }),
        });
        results.push(await readFloats(device, C, n + 3));
        device.release(C);
      }
      device.release(A, D, W!, S!, V!);
      expect(results[0]).toEqual(results[1]);
      expect(results[0]!.subarray(0, 3)).toEqual(floats(n + 3, 4).subarray(0, 3));
      expect(results[0]!.subarray(3)).not.toEqual(floats(n + 3, 4).subarray(3));
    });

    // `cpu` rounds to f32 where k is cut, and packed matrices are cut elsewhere.
    if (device.info.kind === "webgpu")
      test.each([
        [5, 132, 144, false],
        [1, 516, 272, true],
        [70, 132, 144, true],
        [5, 516, 272, false],
      ])(`${format}: %i x %i x %i in parts that fit a binding has the bits of f32`, async (m, n, k, addend) => {
        for (const transposeB of [false, true]) {
          const at = { m, n, k, format, transposeB, addend };
          const [got, expected] = await bothProducts(device, { ...at, maxBindingBytes: 2 ** 15 });
          expect(got).toEqual(expected);
          expect(got).toEqual((await bothProducts(device, at))[1]);
        }
      });

    test.each([
      [70, 9, 12, 4100],
      [72, 68, 76, 4100],
      [1, 5, 5, 3],
      // All but one a multiple of 4.
      [8, 8, 8, 2],
      [8, 8, 10, 4],
      [6, 8, 8, 4],
      [8, 6, 8, 4],
    ])(`${format}: %i rows of %i, %i apart, from %i on`, async (rows, columns, stride, offset) => {
      const { words, scales, values } = packedElements(format, offset + rows * stride, 7);
      const [W, S] = [device.upload(words, "words"), device.upload(scales, "scales")];
      for (const isTransposed of [false, true]) {
        const out = device.alloc(rows * columns * 4, "out");
        device.dispatch(unpackMatrix, {
          buffers: { words: W, scales: S, out },
          params: {
            ...{ rows, columns, offset, stride },
            out_row: isTransposed ? 1 : columns,
            out_column: isTransposed ? rows : 1,
          },
          constants: { FORMAT: FORMAT[format] },
        });
        const expected = Float32Array.from({ length: rows * columns }, (_, i) => {
          const [r, c] = isTransposed ? [i % rows, Math.floor(i / rows)] : [Math.floor(i / columns), i % columns];
          return values[offset + r! * stride + c!]!;
        });
        expect(await readFloats(device, out, rows * columns)).toEqual(expected);
        device.release(out);
      }
      device.release(W, S);
    });
  }

  test("more than 65,535 workgroups are unpacked", async () => {
    const columns = 65_536 * 4 + 3;
    const { words, values } = packedElements("bfloat16", columns, 8);
    const [W, out] = [device.upload(words, "words"), device.alloc(columns * 4, "out")];
    device.dispatch(unpackMatrix, {
      buffers: { words: W, scales: W, out },
      params: { rows: 1, columns, offset: 0, stride: columns, out_row: columns, out_column: 1 },
      constants: { WORKGROUP: 1 },
    });
    const got = await readFloats(device, out, columns);
    expect(got.findIndex((value, i) => value !== values[i])).toBe(-1);
    device.release(W, out);
  });

  // The bits of one kernel of few rows and of many, on adapters of each kind.
  test.each(device.info.kind === "webgpu" ? ["tiled", "scalar"] : [])("%s kernels without subgroups", async (name) => {
    const family = name as "tiled" | "scalar";
    const like = changed(device, { info: { ...device.info, family, subgroupSize: 0 } });
    for (const format of PACKED_FORMATS)
      for (const transposeB of [false, true])
        for (const addend of [false, true]) {
          const shape = { n: 68, k: 148, format, transposeB, addend };
          const [many, expected] = await bothProducts(like, { ...shape, m: 20 });
          expect(many).toEqual(expected);
          for (const m of [1, 3, 8, 9])
            for (const few of await bothProducts(like, { ...shape, m })) expect(few).toEqual(many!.slice(0, m * 68));
        }
  });

  test("a packed A or C, and blocks without scales, are errors", () => {
    const buffer = device.alloc(64, "weights");
    const plain = { buffer };
    const options = { m: 1, n: 1, k: 1, a: plain, b: plain, c: plain };
    const packed = { buffer, format: "bfloat16" } as const;
    expect(() => matmul(device, { ...options, a: packed })).toThrow(/weights is bfloat16, and only B may be packed/);
    expect(() => matmul(device, { ...options, c: packed })).toThrow(/only B may be packed/);
    expect(() => matmul(device, { ...options, b: { buffer, format: "nf4" } })).toThrow(/nf4 needs scales/);
    device.release(buffer);
  });
});
