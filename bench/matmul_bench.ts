/** Matrix products in the shapes of a small model's training, against the arithmetic peak measured in the same run. */
import { CpuDevice } from "../src/engine/compute/cpu.ts";
import { type Device, readFloats } from "../src/engine/compute/device.ts";
import { matmul, matmulFamily, prefersColumns } from "../src/engine/compute/matmul/matmul.ts";
import type { MatmulOptions, Matrix } from "../src/engine/compute/matmul/product.ts";
import { measureCeilings } from "../src/engine/compute/measure.ts";
import type { PackedFormat } from "../src/engine/compute/packed.ts";
import { packElements, unpackElements } from "../src/engine/model/formats/pack.ts";
import { check, heading, openBenchDevice, report, time } from "./harness.ts";

type Shape = Pick<MatmulOptions, "m" | "n" | "k" | "transposeA" | "transposeB"> & { readonly what: string };

const SHAPES: readonly Shape[] = [
  { what: "512 x 512 x 512", m: 512, n: 512, k: 512 },
  { what: "x W: 8192 x 128 x 64", m: 8192, n: 128, k: 64 },
  { what: "x W: 8192 x 344 x 64", m: 8192, n: 344, k: 64 },
  { what: "x W: 8192 x 64 x 172", m: 8192, n: 64, k: 172 },
  { what: "dW = dy^T x: 344 x 64 x 8192", m: 344, n: 64, k: 8192, transposeA: true },
  { what: "x W^T (untransposed copy): 1024 x 64 x 64", m: 1024, n: 64, k: 64, transposeB: true },
  { what: "a decoding step: 64 x 64 x 64", m: 64, n: 64, k: 64 },
  { what: "one row of a wide model, B by rows: 1 x 6144 x 1024", m: 1, n: 6144, k: 1024 },
  { what: "and by columns: 1 x 6144 x 1024", m: 1, n: 6144, k: 1024, transposeB: true },
];

/** Products of Qwen2.5-0.5B by a frozen matrix W [out, in]: x W^T, and dy W where `backward`. The last is a part of its head. */
const WEIGHTS: readonly WeightShape[] = [
  ...[1, 8, 64].flatMap((m) => [
    { m, out: 4864, in: 896 },
    { m, out: 896, in: 4864 },
  ]),
  { m: 1024, out: 896, in: 4864 },
  { m: 1024, out: 896, in: 4864, backward: true },
  { m: 64, out: 16_384, in: 896 },
  { m: 64, out: 16_384, in: 896, backward: true },
];
interface WeightShape {
  readonly m: number;
  readonly out: number;
  readonly in: number;
  readonly backward?: boolean;
}
const FORMATS: readonly PackedFormat[] = ["bfloat16", "int8", "nf4"];

export async function run(): Promise<void> {
  const device = await openBenchDevice();
  const peak = { name: "the arithmetic peak", rate: (await measureCeilings(device)).arithmeticFlops / 1e9 };
  heading(
    `Matrix products on ${device.info.description}, family ${matmulFamily(device)}; peak ${peak.rate.toFixed(0)} GFLOP/s`,
  );
  for (const shape of SHAPES) {
    const { m, n, k, what } = shape;
    const products = Math.max(1, Math.round(2e8 / (m * n * k)));
    const buffers = operands(device, shape);
    await checkProduct(device, shape);
    const timing = await time(async () => {
      for (let i = 0; i < products; i++) matmul(device, { ...shape, ...buffers.matrices });
      await device.submit();
    });
    report({
      what,
      rate: (2 * m * n * k * products) / timing.median / 1e9,
      unit: "GFLOP/s",
      timing,
      against: peak,
    });
    buffers.release();
  }
  heading("Products by packed weights");
  for (const shape of WEIGHTS) await runPacked(device, shape);
  device.destroy();
}

/** A product by f32 weights as a forward pass holds them on this device, then by the same in each format. */
async function runPacked(device: Device, shape: WeightShape): Promise<void> {
  const [n, k] = shape.backward ? [shape.in, shape.out] : [shape.out, shape.in];
  const { m } = shape;
  const what = `${shape.backward ? "dy W" : "x W^T"}: ${m} x ${n} x ${k}`;
  const weights = numbers(n * k);
  const [a, c] = [device.upload(numbers(m * k), "a"), device.alloc(m * n * 4, "c")];
  const multiply = (b: Matrix, transposeB: boolean) =>
    matmul(device, { m, n, k, a: { buffer: a }, b, c: { buffer: c }, transposeB });
  const measure = async (name: string, b: Matrix, { transposeB = false, against = 0 } = {}) => {
    const products = Math.max(1, Math.round(2e8 / (m * n * k)));
    const timing = await time(async () => {
      for (let i = 0; i < products; i++) multiply(b, transposeB);
      await device.submit();
    });
    const rate = (2 * m * n * k * products) / timing.median / 1e9;
    const peer = against > 0 ? { name: "float32", rate: against } : undefined;
    report({ what, detail: name, rate, unit: "GFLOP/s", timing, against: peer });
    return rate;
  };
  const isAsStored = shape.backward || device.info.family === "tiled" || prefersColumns(device, { m, n, k });
  const plain = device.upload(isAsStored ? weights : transposed(weights, { rows: n, columns: k }), "weights");
  const against = await measure("float32", { buffer: plain }, { transposeB: isAsStored && !shape.backward });
  for (const format of FORMATS) {
    const packed = packElements(format, weights);
    const [words, scales] = [
      device.upload(packed.words, "words"),
      device.upload(packed.scales ?? numbers(1), "scales"),
    ];
    const b = { buffer: words, scales, format };
    multiply(b, !shape.backward);
    const got = await readFloats(device, c, m * n);
    device.write(plain, unpackElements(format, packed, n * k));
    multiply({ buffer: plain }, !shape.backward);
    const expected = await readFloats(device, c, m * n);
    check(
      got.every((x, i) => x === expected[i]),
      `${what} by ${format}`,
    );
    await measure(format, b, { transposeB: !shape.backward, against });
    device.release(words, scales);
  }
  device.release(a, c, plain);
}

function transposed(matrix: Float32Array, { rows, columns }: { rows: number; columns: number }): Float32Array {
  return Float32Array.from({ length: matrix.length }, (_, i) => matrix[(i % rows) * columns + Math.floor(i / rows)]!);
}

/** Values within half of 0. */
export function numbers(length: number): Float32Array {
  const values = new Float32Array(length);
  for (let i = 0; i < length; i++) values[i] = ((i * 37) % 101) / 101 - 0.5;
  return values;
}

function operands(device: Device, { m, n, k }: Shape) {
  const [a, b] = [device.upload(numbers(m * k), "a"), device.upload(numbers(k * n), "b")];
  const c = device.alloc(m * n * 4, "c");
  return {
    c,
    matrices: { a: { buffer: a }, b: { buffer: b }, c: { buffer: c } },
    release: () => device.release(a, b, c),
  };
}

/** The whole product against the reference, with few rows where there are many. */
async function checkProduct(device: Device, shape: Shape): Promise<void> {
  const few = { ...shape, m: Math.min(shape.m, 64), k: Math.min(shape.k, 256) };
  const results: Float32Array[] = [];
  for (const on of [device, new CpuDevice()]) {
    const { c, matrices, release } = operands(on, few);
    matmul(on, { ...few, ...matrices });
    results.push(await readFloats(on, c));
    release();
  }
  const [got, expected] = results;
  check(
    got!.every((x, i) => Math.abs(x - expected![i]!) <= 1e-4),
    few.what,
  );
}
