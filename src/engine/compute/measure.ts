/** The most that a device can do: `grpu device` prints these ceilings, and benchmarks compare with them. */
import type { Buffer, Device } from "./device.ts";
import { defineKernel } from "./kernel.ts";
import { matmul } from "./matmul/matmul.ts";

const COPY_GROUPS = 256;
const WORKGROUP = 64;

const copyKernel = defineKernel({
  name: "measure/copy",
  bindings: { x: "read f32", y: "write f32" },
  params: { quads: "u32" },
  constants: { WORKGROUP },
  grid: () => [COPY_GROUPS],
  reference: ({ x, y }, { quads }) => y.set(x.subarray(0, quads * 4)),
  tolerance: { relative: 0, absolute: 0 },
});

const ARITHMETIC_GROUPS = 256;
/** Multiply and add on eight vec4s. */
const FLOP_PER_ROUND = 64;

const arithmeticKernel = defineKernel({
  name: "measure/arithmetic",
  bindings: { y: "write f32" },
  params: { rounds: "u32", factor: "f32" },
  grid: () => [ARITHMETIC_GROUPS],
  reference({ y }, { rounds, factor }) {
    for (let thread = 0; thread < ARITHMETIC_GROUPS * WORKGROUP; thread++) {
      let sum = 0;
      for (let chain = 0; chain < 8; chain++) {
        let value = thread * 1e-6 + chain * 0.1;
        for (let i = 0; i < rounds; i++) value = value * factor + factor;
        sum += value;
      }
      y.fill(sum, thread * 4, thread * 4 + 4);
    }
  },
  tolerance: { relative: 1e-4, absolute: 1e-5 },
});

export interface Ceilings {
  /** Bytes read plus written per second by a kernel that only copies. */
  readonly copyBytesPerSecond: number;
  /** Multiply-adds in registers, two operations each. */
  readonly arithmeticFlops: number;
  /** 2mnk operations per second of a 512 x 512 x 512 product by the chosen family. */
  readonly matmulFlops: number;
}

/** Measures for about a second (longer on `cpu`). Takes the best of several rounds, because other work only slows one down. */
export async function measureCeilings(device: Device): Promise<Ceilings> {
  const small = device.info.kind === "cpu";
  return {
    copyBytesPerSecond: await copyRate(device, small ? 2 ** 22 : 2 ** 26),
    arithmeticFlops: await arithmeticRate(device, small ? 16 : 4096),
    matmulFlops: await matmulRate(device, small ? 128 : 512),
  };
}

async function copyRate(device: Device, bytes: number): Promise<number> {
  const x = device.alloc(bytes, "copy source");
  const y = device.alloc(bytes, "copy target");
  device.clear(x);
  const seconds = await best(device, [x, y], () =>
    device.dispatch(copyKernel, { buffers: { x, y }, params: { quads: bytes / 16 } }),
  );
  return (2 * bytes) / seconds;
}

async function arithmeticRate(device: Device, rounds: number): Promise<number> {
  const threads = ARITHMETIC_GROUPS * WORKGROUP;
  const y = device.alloc(threads * 16, "arithmetic");
  const seconds = await best(device, [y], () =>
    device.dispatch(arithmeticKernel, { buffers: { y }, params: { rounds, factor: 0.5 } }),
  );
  return (threads * rounds * FLOP_PER_ROUND) / seconds;
}

async function matmulRate(device: Device, n: number): Promise<number> {
  const buffers = ["a", "b", "c"].map((name) => device.alloc(n * n * 4, name));
  for (const buffer of buffers) device.clear(buffer);
  const [a, b, c] = buffers;
  const seconds = await best(device, buffers, () =>
    matmul(device, { m: n, n, k: n, a: { buffer: a! }, b: { buffer: b! }, c: { buffer: c! } }),
  );
  return (2 * n ** 3) / seconds;
}

/** Sides of the products whose rate counts as the peak: on a software GPU larger ones only take longer. */
const PEAK_SIZE = { tiled: 1024, scalar: 256 } as const;
/** Long enough that the call itself counts for little. */
const LEAST_ROUND_SECONDS = 0.005;
const MOST_PRODUCTS = 64;

/**
 * The most operations a second of products on a GPU, for utilisation: the best of several rounds, about a tenth of a second together,
 * while nothing else runs there. Undefined on `cpu`, and where the memory for three matrices is missing.
 */
export async function productPeak(device: Device): Promise<number | undefined> {
  const { kind, family } = device.info;
  const n = PEAK_SIZE[family];
  const { live, budget } = device.memory;
  if (kind === "cpu" || live + 3 * n * n * 4 > budget) return undefined;
  const buffers = ["a", "b", "c"].map((name) => device.alloc(n * n * 4, `measured ${name}`));
  const [a, b, c] = buffers;
  for (const buffer of [a!, b!]) device.clear(buffer);
  const record = (products: number) => {
    for (let i = 0; i < products; i++)
      matmul(device, { m: n, n, k: n, a: { buffer: a! }, b: { buffer: b! }, c: { buffer: c! } });
  };
  await secondsOf(device, () => record(1));
  let products = 1;
  while (products < MOST_PRODUCTS && (await secondsOf(device, () => record(products))) < LEAST_ROUND_SECONDS)
    products *= 2;
  const seconds = await best(device, buffers, () => record(products));
  return (products * 2 * n ** 3) / seconds;
}

async function secondsOf(device: Device, record: () => void): Promise<number> {
  const start = performance.now();
  record();
  await device.submit();
  return (performance.now() - start) / 1000;
}

const ROUNDS = 5;

/** Seconds of the quickest round after one that compiles; releases the buffers. */
async function best(device: Device, buffers: readonly Buffer[], record: () => void): Promise<number> {
  record();
  await device.submit();
  let least = Number.POSITIVE_INFINITY;
  for (let round = 0; round < ROUNDS; round++) least = Math.min(least, await secondsOf(device, record));
  device.release(...buffers);
  return least;
}
