/**
 * The fused clipped loss (value, gradient, metrics) over millions of tokens in rows of 256, against a tight JavaScript
 * loop of the same figures and against the copy bandwidth of the same run. The data is on the device before the clock
 * starts, as in training; the loop's data is in typed arrays.
 */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { LossBuffers } from "../src/engine/algorithm/loss/binding_slots.ts";
import { recordPolicyLoss } from "../src/engine/algorithm/loss/device.ts";
import { countRows } from "../src/engine/algorithm/rows.ts";
import { type Device, readFloats } from "../src/engine/compute/device.ts";
import { measureCeilings } from "../src/engine/compute/measure.ts";
import { rowsOfTokens } from "../src/engine/packing/offsets.ts";
import { mulberry32 } from "../src/leaves/random.ts";
import { check, heading, openBenchDevice, report, time } from "./harness.ts";

const ROW = 256;
const MILLION = 2 ** 20;
const SPEC = { name: "vanilla", loss_agg_mode: "token-mean", settings: { clip_ratio_high: 0.28 } };

interface Batch {
  readonly offsets: Uint32Array;
  readonly rowOfToken: Uint32Array;
  readonly mask: Uint32Array;
  readonly logprobs: Float32Array;
  readonly old: Float32Array;
  readonly advantages: Float32Array;
}

function makeBatch(tokens: number, trained: number): Batch {
  const rows = tokens / ROW;
  const offsets = Uint32Array.from({ length: rows + 1 }, (_, i) => i * ROW);
  const logprobs = new Float32Array(tokens);
  const old = new Float32Array(tokens);
  const mask = new Uint32Array(tokens);
  const next = mulberry32(1);
  for (let t = 0; t < tokens; t++) {
    logprobs[t] = -2 * next();
    old[t] = logprobs[t]! + 0.4 * (next() - 0.5);
    mask[t] = next() < trained ? 1 : 0;
  }
  const advantages = Float32Array.from({ length: rows }, () => next() - 0.5);
  return { offsets, rowOfToken: rowsOfTokens(offsets), mask, logprobs, old, advantages };
}

/** The same figures in one loop over typed arrays with float64 sums, as a careful programmer writes it without a GPU. */
function javaScript({ rowOfToken, mask, logprobs, old, advantages }: Batch, gradient: Float32Array) {
  const tokens = logprobs.length;
  let count = 0;
  for (let t = 0; t < tokens; t++) count += mask[t]!;
  const weight = 1 / count;
  let [loss, clipped, kl, lower] = [0, 0, 0, 0];
  for (let t = 0; t < tokens; t++) {
    if (mask[t] === 0) {
      gradient[t] = 0;
      continue;
    }
    const a = advantages[rowOfToken[t]!]!;
    const d = Math.min(Math.max(logprobs[t]! - old[t]!, -20), 20);
    const r = Math.exp(d);
    const plain = -a * r;
    const bounded = -a * Math.min(Math.max(r, 0.8), 1.28);
    const worse = Math.max(plain, bounded);
    const capped = a < 0 && worse > -a * 3;
    loss += capped ? -a * 3 : worse;
    clipped += bounded > plain ? 1 : 0;
    kl -= d;
    lower += capped ? 1 : 0;
    gradient[t] = (plain > bounded || (r >= 0.8 && r <= 1.28)) && !capped ? plain * weight : 0;
  }
  return { loss: loss * weight, clipfrac: clipped * weight, kl: kl * weight, lower: lower * weight };
}

function upload(device: Device, batch: Batch): LossBuffers {
  return {
    logprobs: device.upload(batch.logprobs, "logprobs"),
    oldLogprobs: device.upload(batch.old, "old log-probs"),
    advantages: { level: "row", values: device.upload(batch.advantages, "advantages") },
    mask: device.upload(batch.mask, "mask"),
    offsets: device.upload(batch.offsets, "offsets"),
    trajectoryOfToken: device.upload(batch.rowOfToken, "row of token"),
  };
}

function release(device: Device, { advantages, ...buffers }: LossBuffers): void {
  const others = Object.values(buffers).filter((buffer) => buffer !== undefined);
  device.release(advantages.values, ...others);
}

async function checkLoss(device: Device): Promise<void> {
  const batch = makeBatch(64 * ROW, 0.9);
  const buffers = upload(device, batch);
  const recorded = recordPolicyLoss(device, SPEC, { buffers, counts: countRows(batch.offsets, batch.mask) });
  const { loss, metrics } = recorded.decode(await device.read(recorded.reads));
  const want = new Float32Array(64 * ROW);
  const js = javaScript(batch, want);
  const got = await readFloats(device, recorded.dlogprobs, want.length);
  const near = (x: number, y: number) => Math.abs(x - y) <= 2e-5 * Math.abs(y) + 2e-6;
  check(near(loss, js.loss) && near(metrics["actor/pg_clipfrac"]!, js.clipfrac), "the loss");
  check(
    got.every((x, t) => near(x, want[t]!)),
    "the gradient",
  );
  recorded.release();
  release(device, buffers);
}

/** Bytes that a token must move: log-prob, old, row, gradient, and the mask where it is read. */
const bytesPerToken = (trained: number) => (trained < 1 ? 20 : 16);

async function measure(device: Device, tokens: number, options: { trained: number; copied: number; loop: boolean }) {
  const { trained, copied, loop } = options;
  const batch = makeBatch(tokens, trained);
  const what = `${tokens / MILLION}M tokens${trained < 1 ? ", masked" : ""}`;
  const js = loop ? await timeLoop(batch) : undefined;
  if (js) report({ what: `${what}, JavaScript`, rate: tokens / js.median / 1e6, unit: "Mtoken/s", timing: js });
  const before = device.memory.live;
  const buffers = upload(device, batch);
  await device.submit();
  const inputs = device.memory.live - before;
  const counts = countRows(batch.offsets, batch.mask);
  const timing = await time(async () => {
    const recorded = recordPolicyLoss(device, SPEC, { buffers, counts });
    recorded.decode(await device.read(recorded.reads));
    recorded.release();
  });
  const peak = device.memory.peak - before;
  release(device, buffers);
  const rate = tokens / timing.median / 1e6;
  const against = js && { name: "JavaScript", rate: tokens / js.median / 1e6 };
  report({ what: `${what}, fused`, rate, unit: "Mtoken/s", timing, against });
  const bytes = bytesPerToken(trained) * tokens;
  report({
    what: `${what}, bytes`,
    rate: bytes / timing.median / 1e9,
    unit: "GB/s",
    timing,
    against: { name: "copy", rate: copied / 1e9 },
  });
  return { inputs, peak, outputs: tokens * 4 };
}

function timeLoop(batch: Batch) {
  const gradient = new Float32Array(batch.logprobs.length);
  return time(async () => javaScript(batch, gradient), { rounds: 3 });
}

/** One line of peer_losses.py. */
interface PeerLine {
  readonly what: string;
  readonly rate: number;
  readonly unit: string;
  /** Of the median, and of the quickest and the slowest run. */
  readonly ms: number;
  readonly spread_ms: readonly [number, number];
  readonly skipped?: string;
}

/** Reports the same work, and that of the advantages and log-probs, by plain PyTorch operations on the CPU. */
function reportPeer(tokens: number): void {
  const script = fileURLToPath(new URL("peer_losses.py", import.meta.url));
  const { stdout, error } = spawnSync("python3", [script, "--tokens", String(tokens)], { encoding: "utf8" });
  if (error) console.error("peer skipped: there is no python3");
  heading("The same in PyTorch on the CPU");
  for (const text of (stdout ?? "").split("\n").filter((line) => line.startsWith("{"))) {
    const { what, rate, unit, ms, spread_ms, skipped } = JSON.parse(text) as PeerLine;
    const timing = { median: ms / 1000, least: spread_ms?.[0] / 1000, most: spread_ms?.[1] / 1000 };
    if (skipped) console.error(`peer skipped: ${skipped}`);
    else report({ what: `PyTorch, ${what}`, rate, unit, timing });
  }
}

export async function run(): Promise<void> {
  const device = await openBenchDevice();
  await checkLoss(device);
  const { copyBytesPerSecond: copied } = await measureCeilings(device);
  heading(`Fused policy loss on ${device.info.description}, copy ${(copied / 1e9).toFixed(1)} GB/s`);
  const largest = device.info.kind === "cpu" ? 1 : 16;
  const memory = await measure(device, largest * MILLION, { trained: 1, copied, loop: true });
  await measure(device, largest * MILLION, { trained: 0.9, copied, loop: true });
  if (largest === 16 && process.argv.includes("--large"))
    await measure(device, 64 * MILLION, { trained: 1, copied, loop: false });
  const share = memory.peak / (memory.inputs + memory.outputs);
  heading(`  peak device memory ${(100 * share).toFixed(0)}% of inputs and outputs`);
  device.destroy();
  reportPeer(largest * MILLION);
}
