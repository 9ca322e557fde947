/** Matrix products in the shapes of a small model's training, against the arithmetic peak measured in the same run. */
import { CpuDevice } from "../src/compute/cpu.ts";
import { type Device, readFloats } from "../src/compute/device.ts";
import { matmul, matmulFamily } from "../src/compute/matmul/matmul.ts";
import type { MatmulOptions } from "../src/compute/matmul/product.ts";
import { measureCeilings } from "../src/compute/measure.ts";
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
  device.destroy();
}

function operands(device: Device, { m, n, k }: Shape) {
  const numbers = (length: number) => Float32Array.from({ length }, (_, i) => ((i * 37) % 101) / 101 - 0.5);
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
