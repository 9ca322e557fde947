/**
 * Log-prob, entropy and sum of squared probabilities from logits, and their gradient, against a two-pass JavaScript
 * loop: 512 rows of 32,768 and 200 of 150,016. Then the fused head against the same work with all logits in memory.
 */

import { recordHeadLogprobs } from "../src/engine/algorithm/logprobs/head.ts";
import { recordLogprobs } from "../src/engine/algorithm/logprobs/logits.ts";
import { type Device, readFloats } from "../src/engine/compute/device.ts";
import { measureCeilings } from "../src/engine/compute/measure.ts";
import { mulberry32 } from "../src/leaves/random.ts";
import { check, heading, openBenchDevice, report, type Timing, time } from "./harness.ts";

function pseudoRandom(length: number, scale: number): Float32Array {
  const next = mulberry32(11);
  return Float32Array.from({ length }, () => scale * (next() - 0.5));
}

interface Shape {
  readonly rows: number;
  readonly vocabulary: number;
}

/** Highest logit, then sums; float64 inside. */
function javaScript({ rows, vocabulary }: Shape, logits: Float32Array, targets: Uint32Array) {
  const [logprobs, entropies] = [new Float32Array(rows), new Float32Array(rows)];
  for (let r = 0; r < rows; r++) {
    const start = r * vocabulary;
    let highest = Number.NEGATIVE_INFINITY;
    for (let j = start; j < start + vocabulary; j++) if (logits[j]! > highest) highest = logits[j]!;
    let [total, weighted] = [0, 0];
    for (let j = start; j < start + vocabulary; j++) {
      const shifted = logits[j]! - highest;
      const weight = Math.exp(shifted);
      total += weight;
      weighted += weight * shifted;
    }
    logprobs[r] = logits[start + targets[r]!]! - highest - Math.log(total);
    entropies[r] = Math.log(total) - weighted / total;
  }
  return { logprobs, entropies };
}

async function measure(device: Device, shape: Shape, copied: number): Promise<void> {
  const { rows, vocabulary } = shape;
  const values = pseudoRandom(rows * vocabulary, 8);
  const ids = Uint32Array.from({ length: rows }, (_, r) => (r * 7919) % vocabulary);
  const want = javaScript(shape, values, ids);
  const js = await time(async () => javaScript(shape, values, ids), { rounds: 3 });
  const [logits, targets] = [device.upload(values, "logits"), device.upload(ids, "targets")];
  await device.submit();
  const forward = await time(async () => {
    const recorded = recordLogprobs(device, { ...shape, logits, targets });
    await device.submit();
    recorded.release();
  });
  const recorded = recordLogprobs(device, { ...shape, logits, targets });
  const near = (x: number, y: number) => Math.abs(x - y) <= 2e-5 * Math.abs(y) + 1e-5;
  const got = await readFloats(device, recorded.logprobs, rows);
  const entropies = await readFloats(device, recorded.entropies, rows);
  check(
    got.every((x, r) => near(x, want.logprobs[r]!)) && entropies.every((x, r) => near(x, want.entropies[r]!)),
    "log-probs",
  );
  const grads = device.upload(new Float32Array(rows).fill(1e-3), "gradients");
  const backward = await time(async () => {
    recorded.backward({ dlogprobs: grads, dentropy: grads });
    await device.submit();
  });
  recorded.release();
  device.release(logits, targets, grads);
  const what = `${rows} x ${vocabulary.toLocaleString("en")}`;
  const lines: [string, Timing, number][] = [
    ["forward", forward, 4],
    ["backward, in place", backward, 8],
  ];
  report({ what: `${what} JavaScript, forward`, rate: rows / js.median, unit: "token/s", timing: js });
  for (const [name, timing, bytes] of lines) {
    const peer = { name: "JavaScript", rate: rows / js.median };
    report({
      what: `${what} ${name}`,
      rate: rows / timing.median,
      unit: "token/s",
      timing,
      against: name === "forward" ? peer : undefined,
    });
    const rate = (bytes * rows * vocabulary) / timing.median / 1e9;
    report({
      what: `${what} ${name}, bytes`,
      rate,
      unit: "GB/s",
      timing,
      against: { name: "copy", rate: copied / 1e9 },
    });
  }
}

async function measureHead(device: Device, shape: Shape & { channels: number }): Promise<void> {
  const { rows, vocabulary, channels } = shape;
  const hidden = device.upload(pseudoRandom(rows * channels, 1), "hidden");
  const head = device.upload(pseudoRandom(vocabulary * channels, 1), "head");
  const targets = device.upload(new Uint32Array(rows).fill(5), "targets");
  const before = device.memory.live;
  for (const columnsPerPiece of [4096, vocabulary]) {
    const forward = await time(
      async () => {
        const recorded = recordHeadLogprobs(device, { ...shape, hidden, head, targets, columnsPerPiece });
        await device.submit();
        recorded.release();
      },
      { rounds: 3 },
    );
    const held = (rows * columnsPerPiece * 4) / 2 ** 20;
    const flops = (2 * rows * vocabulary * channels) / forward.median / 1e9;
    report({
      what: `head, ${columnsPerPiece} columns, ${held.toFixed(0)} MiB of logits`,
      rate: flops,
      unit: "GFLOP/s",
      timing: forward,
    });
  }
  check(device.memory.live === before, "the head's memory");
  device.release(hidden, head, targets);
}

export async function run(): Promise<void> {
  const device = await openBenchDevice();
  const { copyBytesPerSecond: copied } = await measureCeilings(device);
  heading(`From logits on ${device.info.description}, copy ${(copied / 1e9).toFixed(1)} GB/s`);
  const small = device.info.kind === "cpu";
  await measure(device, { rows: small ? 16 : 512, vocabulary: 32_768 }, copied);
  await measure(device, { rows: small ? 4 : 200, vocabulary: 150_016 }, copied);
  await measureHead(device, { rows: small ? 8 : 128, vocabulary: 32_768, channels: 64 });
  device.destroy();
}
