/** Products of float32 matrices next to those of jax-js on the same adapter. */
import { type Device, readFloats } from "../../src/engine/compute/device.ts";
import { matmul } from "../../src/engine/compute/matmul/matmul.ts";
import { check, heading, remark, report, time } from "../harness.ts";
import { linesOfNode } from "./peer_process.ts";

/** m, n and k: a square, a matrix of stories260k's shape for 8,192 tokens, one of Qwen2.5-0.5B for 1,024. */
const PRODUCTS = [
  [512, 512, 512],
  [8192, 344, 64],
  [1024, 4864, 896],
] as const;
/** Of a sum of hundreds of products of numbers up to a half, in another order. */
const TOLERANCE = 1e-4;

export async function nextToJax(device: Device): Promise<void> {
  heading(`Products next to jax-js on ${device.info.description}`);
  const named = PRODUCTS.map((sizes) => ({ sizes, what: sizes.join("x") }));
  const lines = linesOfNode(
    "peers/jax_products.mjs",
    named.map(({ what }) => what),
  );
  for (const { skipped } of lines) if (skipped) remark(`jax-js skipped: ${skipped}`);
  for (const { sizes, what } of named) {
    const theirs = lines.find((line) => line.what === what);
    if (theirs?.rate === undefined) continue;
    const { first, timing } = await timeProduct(device, sizes);
    check(
      Math.abs(first - theirs.first!) < TOLERANCE,
      `${what}: jax-js' first element is ${theirs.first}, ours ${first}`,
    );
    const rate = (2 * sizes[0] * sizes[1] * sizes[2]) / timing.median / 1e9;
    report({ what, rate, unit: "GFLOP/s", timing, against: { name: "jax-js", rate: theirs.rate } });
  }
}

async function timeProduct(device: Device, [m, n, k]: readonly [number, number, number]) {
  const [a, b] = [device.upload(numbers(m * k), "a"), device.upload(numbers(k * n), "b")];
  const c = device.alloc(m * n * 4, "c");
  const timing = await time(async () => {
    matmul(device, { m, n, k, a: { buffer: a }, b: { buffer: b }, c: { buffer: c } });
    await device.submit();
  });
  const [first] = await readFloats(device, c, 1);
  device.release(a, b, c);
  return { first: first!, timing };
}

/** As jax_products.mjs fills them. */
function numbers(length: number): Float32Array {
  return Float32Array.from({ length }, (_, i) => ((i * 7919) % 1013) / 1013 - 0.5);
}
