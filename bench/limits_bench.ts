/**
 * How near this device comes to its own limits, which are measured first: products and norms in shapes of Qwen2.5-0.5B, decoding steps, a training pass
 * and a GRPO step of that shape with random weights in bfloat16. The least time of each is that of its counted bytes and operations. A software adapter takes
 * the stories model, or with `--large` the large one.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Device, readFloats } from "../src/engine/compute/device.ts";
import { matmul } from "../src/engine/compute/matmul/matmul.ts";
import type { Matrix } from "../src/engine/compute/matmul/product.ts";
import { measureCeilings } from "../src/engine/compute/measure.ts";
import { openDevice } from "../src/engine/compute/open.ts";
import { packElements } from "../src/engine/model/formats/pack.ts";
import { chooseRmsNorm, plainRows } from "../src/engine/model/kernels/norm.ts";
import { UnsupportedError } from "../src/leaves/errors.ts";
import { leastSeconds, type Machine } from "./cost/machines.ts";
import { check, heading, openBenchDevice, remark, report, time } from "./harness.ts";
import { type Size, timePhases } from "./limits/phases.ts";
import { numbers } from "./matmul_bench.ts";
import { STORIES_SHAPE } from "./model_bench.ts";
import { comparesLarge } from "./options.ts";
import { QWEN_SHAPE, writeRandomModel } from "./peers/random_model.ts";

const LARGE: Size = { config: QWEN_SHAPE, promptTokens: 512, passTokens: 8192, answerTokens: 1024, loraRank: 16 };
const SMALL: Size = { config: STORIES_SHAPE, promptTokens: 64, passTokens: 2048, answerTokens: 64, loraRank: 8 };

/** x W^T: few rows, the head, and gate and up of a training pass. */
const PRODUCTS = [
  { m: 1, n: 9728, k: 896 },
  { m: 64, n: 896, k: 4864 },
  { m: 110, n: 151_936, k: 896 },
  { m: 8192, n: 9728, k: 896 },
] as const;
/** On software adapters products of more operations take too long. */
const MOST_FLOP_OF_SOFTWARE = 2e9;
/** By which Dawn shows the matrix units of GPUs. */
const MATRIX_TOGGLES = ["allow_unsafe_apis", "vulkan_enable_f16_on_nvidia"];
/** Seconds that a timed run of repeated work should take. */
const RUN_SECONDS = 0.05;

export async function run(): Promise<void> {
  const device = await openBenchDevice();
  const isSoftware = device.info.family !== "tiled";
  const isLarge = !isSoftware || comparesLarge(process.argv.slice(2));
  const { arithmeticFlops: flops, copyBytesPerSecond: bandwidth } = await measureCeilings(device);
  const machine = { name: "the least time", flops, bandwidth };
  const peak = `${(flops / 1e12).toFixed(3)} TFLOP/s, ${(bandwidth / 1e9).toFixed(1)} GB/s`;
  heading(`Limits of ${device.info.description}: ${peak}; products by ${device.info.tile ?? device.info.family}`);
  const shapes = PRODUCTS.filter(({ m, n, k }) => !isSoftware || 2 * m * n * k < MOST_FLOP_OF_SOFTWARE);
  for (const shape of shapes) for (const format of FORMATS) await timeProduct(device, { ...shape, format, machine });
  for (const rows of [1, 64]) await timeNorm(device, { rows, machine });
  const folder = mkdtempSync(join(tmpdir(), "grpu-limits-"));
  try {
    const size = isLarge ? LARGE : SMALL;
    await writeRandomModel(folder, size.config);
    await timePhases(device, { folder, size, machine });
  } finally {
    rmSync(folder, { recursive: true });
    device.destroy();
  }
  await timeUnits(shapes, machine);
}

const FORMATS = ["float32", "bfloat16"] as const;

interface Product {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly format: (typeof FORMATS)[number];
  readonly machine: Machine;
  /** What multiplies, where it is not what the device chooses. */
  readonly by?: string;
}

async function timeProduct(device: Device, { m, n, k, format, machine, by }: Product): Promise<void> {
  const values = numbers(n * k);
  const weights = packElements("bfloat16", values);
  const [A, C] = [device.upload(numbers(m * k), "a"), device.alloc(m * n * 4, "c")];
  const held = format === "float32" ? values : weights.words;
  const b: Matrix = { buffer: device.upload(held, "b"), format };
  const work = () => matmul(device, { m, n, k, a: { buffer: A }, b, c: { buffer: C }, transposeB: true });
  work();
  const [first] = await readFloats(device, C, 1);
  const expected = numbers(k).reduce((sum, a, i) => sum + a * values[i]!, 0);
  check(Math.abs(first! - expected) < 0.02 * Math.sqrt(k), `a product of ${m} x ${n} x ${k} by ${format}`);
  const { seconds, timing } = await repeated(device, work);
  const flop = 2 * m * n * k;
  const bytes = 4 * (m * k + m * n) + (format === "float32" ? 4 : 2) * n * k;
  const limit = { name: machine.name, rate: flop / leastSeconds({ flop, bytes }, machine) / 1e9 };
  const what = `x W^T: ${m} x ${n} x ${k}, ${format}${by ? `, ${by}` : ""}`;
  report({ what, rate: flop / seconds / 1e9, unit: "GFLOP/s", timing, against: limit });
  device.release(A, C, b.buffer);
}

async function timeNorm(device: Device, { rows, machine }: { rows: number; machine: Machine }): Promise<void> {
  const width = QWEN_SHAPE.hiddenSize;
  const [x, weight] = [device.upload(numbers(rows * width), "x"), device.upload(numbers(width), "weight")];
  const [y, inverseRms] = [device.alloc(rows * width * 4, "y"), device.alloc(rows * 4, "inverse")];
  const params = { ...plainRows(rows, width), epsilon: 1e-6 };
  const kernel = chooseRmsNorm(device.info, params);
  const { seconds, timing } = await repeated(device, () =>
    device.dispatch(kernel, { buffers: { x, weight, y, inverseRms }, params }),
  );
  const bytes = 4 * (2 * rows + 1) * width;
  const limit = { name: machine.name, rate: bytes / leastSeconds({ flop: 0, bytes }, machine) / 1e9 };
  report({ what: `rms_norm: ${rows} x ${width}`, rate: bytes / seconds / 1e9, unit: "GB/s", timing, against: limit });
  device.release(x, weight, y, inverseRms);
}

/** On matrix units, where the adapter has them; one that multiplies wrongly is refused when it is opened. */
async function timeUnits(shapes: readonly Omit<Product, "format" | "machine">[], machine: Machine): Promise<void> {
  try {
    const device = await openDevice({ products: "subgroup_matrix", toggles: MATRIX_TOGGLES });
    for (const shape of shapes)
      for (const format of FORMATS) await timeProduct(device, { ...shape, format, machine, by: "matrix units" });
    device.destroy();
  } catch (error) {
    if (!(error instanceof UnsupportedError)) throw error;
    remark(`matrix units skipped: ${error.message}`);
  }
}

/** Seconds of one, and the time of a run of as many as take about {@link RUN_SECONDS}. */
async function repeated(device: Device, work: () => void) {
  const runOf = (times: number) => async () => {
    for (let i = 0; i < times; i++) work();
    await device.submit();
  };
  const { median: one } = await time(runOf(8));
  const times = Math.min(4096, Math.max(1, Math.round((8 * RUN_SECONDS) / one)));
  const timing = await time(runOf(times));
  return { seconds: timing.median / times, timing };
}
