/**
 * Group-normalised advantages of a million rewards (groups of 8 that lie together; ragged ones of 4 to 16, whose
 * members do or do not), and generalised advantages over a million tokens, against tight JavaScript loops.
 */

import type { AdvantageBuffers } from "../src/engine/algorithm/advantage/definition.ts";
import { recordAdvantages } from "../src/engine/algorithm/advantage/device.ts";
import { type Groups, packGroups } from "../src/engine/algorithm/advantage/groups.ts";
import { countRows } from "../src/engine/algorithm/rows.ts";
import { type Device, readFloats } from "../src/engine/compute/device.ts";
import { mulberry32 } from "../src/leaves/random.ts";
import { check, heading, openBenchDevice, report, time } from "./harness.ts";

const MILLION = 2 ** 20;
/** Runs per timed submit: the wait for one would be longer than the run. */
const RUNS = 10;

function pseudoRandom(length: number, scale = 1): Float32Array {
  const next = mulberry32(7);
  return Float32Array.from({ length }, () => scale * next());
}

/** Groups of the given sizes, repeated; `shuffled` spreads their members over all rows. */
function makeGroups(rows: number, sizes: readonly number[], shuffled: boolean): Groups {
  const groupOfRow = new Uint32Array(rows);
  let row = 0;
  let group = 0;
  for (; row < rows; group++)
    for (let k = 0; k < sizes[group % sizes.length]! && row < rows; k++) groupOfRow[row++] = group;
  if (!shuffled) return packGroups(groupOfRow, group);
  const dealt = groupOfRow.map((_, i) => groupOfRow[(i * 7919) % rows]!);
  return packGroups(dealt, group);
}

/** As a careful programmer writes it without a GPU: two passes over each group, float64 inside. */
function javaScript(scores: Float32Array, { offsets, members }: Groups, out: Float32Array): void {
  for (let group = 0; group + 1 < offsets.length; group++) {
    const [first, end] = [offsets[group], offsets[group + 1]];
    let sum = 0;
    for (let k = first; k! < end!; k!++) sum += scores[members[k!]!]!;
    const mean = end! - first! > 1 ? sum / (end! - first!) : 0;
    let squares = 0;
    for (let k = first; k! < end!; k!++) squares += (scores[members[k!]!]! - mean) ** 2;
    const spread = end! - first! > 1 ? Math.sqrt(squares / (end! - first! - 1)) : 1;
    for (let k = first; k! < end!; k!++) out[members[k!]!] = (scores[members[k!]!]! - mean) / (spread + 1e-6);
  }
}

/** The loop for groups of a size that lie together: no lists to follow. */
function javaScriptFixed(scores: Float32Array, size: number, out: Float32Array): void {
  for (let first = 0; first < scores.length; first += size) {
    let sum = 0;
    for (let k = first; k < first + size; k++) sum += scores[k]!;
    const mean = sum / size;
    let squares = 0;
    for (let k = first; k < first + size; k++) squares += (scores[k]! - mean) * (scores[k]! - mean);
    const spread = Math.sqrt(squares / (size - 1)) + 1e-6;
    for (let k = first; k < first + size; k++) out[k] = (scores[k]! - mean) / spread;
  }
}

async function measureGroups(device: Device, name: string, groups: Groups): Promise<void> {
  const rows = groups.members.length;
  const scores = pseudoRandom(rows);
  const want = new Float32Array(rows);
  const loop = () =>
    groups.fixedSize ? javaScriptFixed(scores, groups.fixedSize, want) : javaScript(scores, groups, want);
  const js = await time(async () => loop());
  const buffers = {
    scores: device.upload(scores, "scores"),
    groupOffsets: device.upload(groups.offsets, "group offsets"),
    groupMembers: device.upload(groups.members, "group members"),
  };
  const input = { buffers, groups, counts: { tokens: 0, trained: new Uint32Array(rows), longest: 0 } };
  const checked = recordAdvantages(device, "grpo", input);
  const got = await readFloats(device, checked.advantages.values, rows);
  checked.release();
  check(
    got.every((a, i) => Math.abs(a - want[i]!) <= 2e-5 * Math.abs(want[i]!) + 2e-6),
    name,
  );
  const timing = await time(async () => {
    for (let k = 0; k < RUNS; k++) recordAdvantages(device, "grpo", input).release();
    await device.submit();
  });
  device.release(...Object.values(buffers));
  const rate = (RUNS * rows) / timing.median / 1e6;
  report({ what: `${name}, JavaScript`, rate: rows / js.median / 1e6, unit: "Mrow/s", timing: js });
  report({
    what: `${name}, ${RUNS} runs`,
    rate,
    unit: "Mrow/s",
    timing,
    against: { name: "JavaScript", rate: rows / js.median / 1e6 },
  });
}

interface Tokens {
  readonly offsets: Uint32Array;
  readonly mask: Uint32Array;
  readonly rewards: Float32Array;
  readonly values: Float32Array;
}

const [GAMMA, LAMBDA] = [0.99, 0.95];

/** The recurrence backwards over each row, then whitening: four passes over the tokens. */
function javaScriptGae({ offsets, mask, rewards, values }: Tokens, advantages: Float32Array, returns: Float32Array) {
  let [count, sum, squares] = [0, 0, 0];
  for (let row = 0; row + 1 < offsets.length; row++) {
    let [next, nextValue] = [0, 0];
    for (let t = offsets[row + 1]! - 1; t >= offsets[row]!; t--) {
      if (mask[t] === 0) continue;
      next = rewards[t]! + GAMMA * nextValue - values[t]! + GAMMA * LAMBDA * next;
      nextValue = values[t]!;
      advantages[t] = next;
      returns[t] = next + values[t]!;
      count++;
      sum += next;
    }
  }
  const mean = sum / count;
  for (let t = 0; t < mask.length; t++) if (mask[t] !== 0) squares += (advantages[t]! - mean) ** 2;
  const scale = 1 / Math.sqrt(squares / (count - 1) + 1e-8);
  for (let t = 0; t < mask.length; t++) advantages[t] = mask[t] === 0 ? 0 : (advantages[t]! - mean) * scale;
}

async function measureGae(device: Device, tokens: number, row: number): Promise<void> {
  const rows = tokens / row;
  const data: Tokens = {
    offsets: Uint32Array.from({ length: rows + 1 }, (_, i) => i * row),
    mask: pseudoRandom(tokens).reduce((mask, x, t) => {
      mask[t] = x < 0.9 ? 1 : 0;
      return mask;
    }, new Uint32Array(tokens)),
    rewards: pseudoRandom(tokens, 0.1),
    values: pseudoRandom(tokens, 0.5),
  };
  const [want, returns] = [new Float32Array(tokens), new Float32Array(tokens)];
  const js = await time(async () => javaScriptGae(data, want, returns));
  const buffers: AdvantageBuffers = {
    tokenRewards: device.upload(data.rewards, "rewards"),
    values: device.upload(data.values, "values"),
    mask: device.upload(data.mask, "mask"),
    offsets: device.upload(data.offsets, "offsets"),
  };
  const counts = countRows(data.offsets, data.mask);
  const input = {
    buffers,
    counts,
    groups: packGroups(new Uint32Array(rows), 1),
    settings: { gamma: GAMMA, lam: LAMBDA },
  };
  const checked = recordAdvantages(device, "gae", input);
  const got = await readFloats(device, checked.advantages.values, tokens);
  checked.release();
  check(
    got.every((a, t) => Math.abs(a - want[t]!) <= 1e-4 * Math.abs(want[t]!) + 1e-4),
    "gae",
  );
  const timing = await time(async () => {
    for (let k = 0; k < RUNS; k++) recordAdvantages(device, "gae", input).release();
    await device.submit();
  });
  device.release(...Object.values(buffers));
  const name = `gae, ${tokens / MILLION}M tokens in rows of ${row}`;
  const peer = { name: "JavaScript", rate: tokens / js.median / 1e6 };
  report({ what: `${name}, JavaScript`, rate: peer.rate, unit: "Mtoken/s", timing: js });
  const rate = (RUNS * tokens) / timing.median / 1e6;
  report({ what: `${name}, ${RUNS} runs`, rate, unit: "Mtoken/s", timing, against: peer });
}

export async function run(): Promise<void> {
  const device = await openBenchDevice();
  heading(`Advantages on ${device.info.description}`);
  const ragged = [4, 16, 7, 9, 12, 5, 8, 11];
  await measureGroups(device, "1M rewards, groups of 8", makeGroups(MILLION, [8], false));
  await measureGroups(device, "1M rewards, groups of 4 to 16", makeGroups(MILLION, ragged, false));
  await measureGroups(device, "1M rewards, the same dealt out", makeGroups(MILLION, ragged, true));
  await measureGae(device, MILLION, 256);
  await measureGae(device, MILLION, 4096);
  device.destroy();
}
