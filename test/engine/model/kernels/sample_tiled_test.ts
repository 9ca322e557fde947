/** The steps of sampling on GPUs, each against its reference, and random draws against the reference of all of them. */
import { beforeAll, describe, expect, test } from "vitest";
import { type Device, readFloats } from "../../../../src/engine/compute/device.ts";
import { inverseTemperature, recordLogprob } from "../../../../src/engine/model/kernels/logprob.ts";
import { drawToken, samplingSettings } from "../../../../src/engine/model/kernels/sample.ts";
import {
  filtersOf,
  recordSample,
  sampleHistogram,
  sampleKept,
  sampleSegments,
  sampleTiled,
} from "../../../../src/engine/model/kernels/sample_tiled.ts";
import { segmentCount } from "../../../../src/engine/model/kernels/segments.ts";
import {
  binValue,
  CHOICE_WORDS,
  HISTOGRAM_WORDS,
  SEGMENT_FLOATS,
} from "../../../../src/engine/model/kernels/selection.ts";
import { Scratch } from "../../../../src/engine/model/scratch.ts";
import { uniformAt } from "../../../../src/leaves/random.ts";
import { changed } from "../../../fixtures/changed_device.ts";
import { firstDifference, uniform } from "../../../fixtures/numbers.ts";
import { sampleOnBoth } from "./record.ts";
import { expectClose, integers, noise, runOn, runOnBoth, useDevices } from "./run.ts";

const devices = useDevices();

type Setting = Parameters<typeof samplingSettings>[0];
const PLAIN: Setting = { temperature: 0.7, top_p: 1, top_k: 0 };
const SETTINGS: readonly Setting[] = [
  { ...PLAIN, top_p: 0.9 },
  { ...PLAIN, top_k: 3 },
  PLAIN,
  { ...PLAIN, top_k: 40, top_p: 0.6 },
  { ...PLAIN, temperature: 0, top_k: 2, top_p: 0.5 },
];

describe.each([
  { rows: 0, vocabulary: 4 },
  { rows: 1, vocabulary: 1 },
  { rows: 5, vocabulary: 5 },
  { rows: 6, vocabulary: 2047 },
  { rows: 5, vocabulary: 2049 },
  { rows: 5, vocabulary: 40_003 },
])("of $rows rows of $vocabulary logits", ({ rows, vocabulary }) => {
  const [first_row, stride] = [2, Math.ceil(vocabulary / 4) * 4];
  const logits = noise(rows * stride).map((x, i) => (i % stride < vocabulary ? x * 6 : 1e9));
  const all = Array.from({ length: first_row + rows }, (_, row) => SETTINGS[(row + 3) % SETTINGS.length]!);
  const settings = Float32Array.from(all.flatMap((setting) => samplingSettings(setting)));
  const floats = (width: number) => new Float32Array(rows * width);
  const state = {
    ...{ logits, settings },
    segments: floats(segmentCount(vocabulary) * SEGMENT_FLOATS),
    histograms: new Uint32Array(rows * HISTOGRAM_WORDS),
    choices: new Uint32Array(rows * CHOICE_WORDS),
  };
  const params = (step: number) => ({ rows, first_row, vocabulary, stride, step });

  beforeAll(async () => {
    const { segments } = await runOnBoth(devices, sampleSegments, { buffers: pick(), params: params(0) });
    state.segments = segments as Float32Array<ArrayBuffer>;
  });
  const pick = () => ({ logits, settings, segments: state.segments });

  test.each([0, 1, 2, 3, 4, 5, 6, 7])("step %d of the selection", async (step) => {
    const run = { buffers: state, params: params(step) };
    const [got, wanted] = [
      await runOn(devices.gpu, sampleHistogram, run),
      await runOn(devices.cpu, sampleHistogram, run),
    ];
    const values = (of: typeof got) =>
      Float64Array.from({ length: rows * 8 * 256 }, (_, i) => {
        const at = Math.floor(i / 256) * 3 * 256 + (i % 256);
        return binValue(of.histograms as Uint32Array, at, Math.floor(i / 256) % 8 < 4);
      });
    const counted = step < 4;
    const name = `step ${step}`;
    expectClose(values(got) as never, values(wanted), { relative: counted ? 0 : 1e-5, absolute: 1e-9, name });
    if (counted) expect(got.choices).toEqual(wanted.choices);
    const isUsed = all
      .slice(first_row)
      .some(({ temperature, top_k, top_p }) =>
        temperature === 0 ? false : counted ? top_k > 0 && top_k < vocabulary : top_p < 1,
      );
    expect(values(got).some((value) => value > 0)).toBe(isUsed || values(state as never).some((value) => value > 0));
    Object.assign(state, { histograms: got.histograms, choices: got.choices });
  });

  test("what is kept, and the draw", async () => {
    const kept = await runOnBoth(devices, sampleKept, { buffers: state, params: params(8) });
    const histories = () => new Float32Array((rows + first_row) * 3);
    const buffers = {
      ...{ logits, settings, segments: kept.segments },
      seeds: integers(rows + first_row, 2 ** 31, 5),
      positions: integers(rows + first_row, 1000, 6),
      next: new Uint32Array(rows + first_row),
      tokens: new Uint32Array((rows + first_row) * 3),
      logprobs: histories(),
    };
    const own = { rows, first_row, vocabulary, stride, shift: 1, history_stride: 3 };
    await runOnBoth(devices, sampleTiled, { buffers, params: own });
  });
});

test.each([
  { rows: 65_540, vocabulary: 3, setting: PLAIN },
  // More segments than threads.
  { rows: 2, vocabulary: 300_001, setting: { ...PLAIN, top_p: 0.9 } },
  { rows: 2, vocabulary: 300_001, setting: PLAIN },
  { rows: 4099, vocabulary: 7, setting: { ...PLAIN, top_k: 3, top_p: 0.8 } },
])("$rows rows of $vocabulary logits", async ({ rows, vocabulary, setting }) => {
  const stride = Math.ceil(vocabulary / 4) * 4;
  const buffers = {
    logits: noise(rows * stride, 3),
    seeds: integers(rows, 2 ** 31, 5),
    positions: integers(rows, 1000, 6),
    settings: Float32Array.from({ length: rows * 4 }, (_, i) => samplingSettings(setting)[i % 4]!),
    next: new Uint32Array(rows),
    tokens: new Uint32Array(rows),
    logprobs: new Float32Array(rows),
  };
  const params = { rows, first_row: 0, vocabulary, stride, shift: 0, history_stride: 1 };
  await sampleOnBoth(devices, { family: "tiled", run: { buffers, params } });
});

test.each([
  ["neither", [PLAIN, { ...PLAIN, temperature: 0, top_k: 5, top_p: 0.5 }], 0],
  ["top-k", [PLAIN, { ...PLAIN, top_k: 5 }], 5],
  ["top-p", [PLAIN, { ...PLAIN, top_p: 0.5 }], 5],
  [
    "both",
    [
      { ...PLAIN, top_k: 5 },
      { ...PLAIN, top_p: 0.5 },
    ],
    9,
  ],
] as const)("rows that use %s", async (_, settings, filterDispatches) => {
  const names: string[] = [];
  const device = changed(devices.gpu, {
    info: { ...devices.gpu.info, family: "tiled" },
    dispatch: (kernel, options) => {
      names.push(kernel.name);
      devices.gpu.dispatch(kernel, options);
    },
  });
  await draw(device, { rows: 2, vocabulary: 64, settings, logits: noise(128).slice() });
  expect(names[0]).toBe("decode/sample_segments");
  expect(names.at(-1)).toBe("decode/sample_tiled");
  expect(names.length - 2).toBe(filterDispatches);
});

const CASES = Number(process.env.SAMPLE_CASES ?? 200);

/** SAMPLE_CASES=10000 runs that many. */
test(`${CASES} random batches draw what the reference draws`, { timeout: 7_200_000 }, async () => {
  for (let seed = 1; seed <= CASES; seed++) await runCase(randomCase(seed), `seed ${seed}`);
});

interface Case {
  readonly rows: number;
  readonly vocabulary: number;
  readonly settings: readonly Setting[];
  readonly logits: Float32Array<ArrayBuffer>;
}

function randomCase(seed: number): Case {
  const next = uniform(seed);
  const below = (end: number) => Math.floor(next() * end);
  const rows = 1 + below(6);
  const vocabulary = 1 + below(below(2) === 0 ? 300 : 9000);
  const settings = Array.from({ length: rows }, () => ({
    temperature: [0, 0.3, 1, 1.7][below(4)]!,
    top_k: [0, 1, 1 + below(40), 1 + below(vocabulary)][below(4)]!,
    top_p: [1, 0, next(), 0.95, 0.9999][below(5)]!,
  }));
  const stride = Math.ceil(vocabulary / 4) * 4;
  // Ties, distances that leave one token, logits that nothing may draw.
  const [scale, grain] = [[0.1, 3, 30][below(3)]!, [0, 0.5][below(2)]!];
  const isHidden = below(4) === 0;
  const logits = Float32Array.from({ length: rows * stride }, (_, i) => {
    const x = (next() * 2 - 1) * scale;
    if (i % stride >= vocabulary) return 1e9;
    if (isHidden && i % stride > 0 && next() < 0.8) return -1e30;
    return grain > 0 ? Math.round(x / grain) * grain : x;
  });
  return { rows, vocabulary, settings, logits };
}

async function runCase(it: Case, where: string): Promise<void> {
  const device = changed(devices.gpu, { info: { ...devices.gpu.info, family: "tiled" } });
  const { vocabulary } = it;
  const stride = Math.ceil(vocabulary / 4) * 4;
  const all = await draw(device, it);
  for (let row = 0; row < it.rows; row++) {
    const what = `${where}, row ${row}, ${vocabulary} logits, ${JSON.stringify(it.settings[row])}`;
    const logits = it.logits.slice(row * stride, (row + 1) * stride);
    expectDrawn(all.tokens[row]!, { logits: logits.subarray(0, vocabulary), row, setting: it.settings[row]!, what });
  }
  // The last row, alone, has the same bits; and so has the log-prob of what it drew, scored.
  const last = it.rows - 1;
  const logits = it.logits.slice(last * stride);
  const settings = it.settings.slice(last);
  const alone = await draw(device, { rows: 1, vocabulary, settings, logits }, last);
  const scored = await score(device, { vocabulary, logits, token: alone.tokens[0]!, setting: settings[0]! });
  expect(alone.tokens[0], `${where}, alone`).toBe(all.tokens[last]);
  expect(firstDifference(alone.logprobs, all.logprobs.slice(last)), `${where}, alone`).toBe(-1);
  expect(firstDifference(scored, alone.logprobs), `${where}, scored`).toBe(-1);
}

const SEED = 77;

async function draw(device: Device, { rows, vocabulary, settings, logits }: Case, position = 0) {
  const buffers = {
    logits: device.upload(logits, "logits"),
    seeds: device.upload(new Uint32Array(rows).fill(SEED), "seeds"),
    positions: device.upload(
      Uint32Array.from({ length: rows }, (_, i) => position + i),
      "positions",
    ),
    settings: device.upload(Float32Array.from(settings.flatMap((own) => samplingSettings(own))), "settings"),
    next: device.alloc(rows * 4, "next"),
    tokens: device.alloc(rows * 4, "tokens"),
    logprobs: device.alloc(rows * 4, "logprobs"),
  };
  const params = { rows, first_row: 0, vocabulary, stride: Math.ceil(vocabulary / 4) * 4, shift: 0, history_stride: 1 };
  Scratch.during(device, (scratch) => recordSample(device, { buffers, params, filters: filtersOf(settings), scratch }));
  const [tokens, logprobs] = await device.read([
    { buffer: buffers.tokens, type: "u32", length: rows },
    { buffer: buffers.logprobs, type: "f32", length: rows },
  ]);
  device.release(...Object.values(buffers));
  return { tokens: tokens as Uint32Array, logprobs: logprobs as Float32Array };
}

async function score(
  device: Device,
  it: { vocabulary: number; logits: Float32Array<ArrayBuffer>; token: number; setting: Setting },
): Promise<Float32Array> {
  const { vocabulary, logits, token, setting } = it;
  const buffers = {
    logits: device.upload(logits, "logits"),
    targets: device.upload(Uint32Array.of(token), "targets"),
    logprobs: device.alloc(4, "logprobs"),
    entropies: device.alloc(4, "entropies"),
    logSumExps: device.alloc(4, "log-sum-exps"),
  };
  const inverse_temperature = setting.temperature === 0 ? 1 : inverseTemperature(setting.temperature);
  const params = { rows: 1, first_row: 0, vocabulary, stride: Math.ceil(vocabulary / 4) * 4, inverse_temperature };
  Scratch.during(device, (scratch) => recordLogprob(device, { buffers, params, scratch }));
  const found = await readFloats(device, buffers.logprobs, 1);
  device.release(...Object.values(buffers));
  return found;
}

/** The reference's token, or one that it draws where rounding moves the number or the mass by 1e-5. */
function expectDrawn(token: number, of: { logits: Float32Array; row: number; setting: Setting; what: string }): void {
  const { temperature, top_k: topK, top_p } = of.setting;
  const at = uniformAt(SEED, of.row);
  const tokens = new Set<number>();
  for (const shift of [0, -1e-5, 1e-5])
    for (const change of top_p < 1 ? [0, -1e-5, 1e-5] : [0]) {
      const uniform = Math.min(Math.max(at + shift, 0), 1 - 2 ** -24);
      const [, , , inverse = 1] = samplingSettings(of.setting).map(Math.fround);
      const settings = { greedy: temperature === 0, inverse, topK, topP: Math.fround(top_p) + change };
      tokens.add(drawToken(of.logits, { ...settings, uniform }).token);
    }
  expect([...tokens], of.what).toContain(token);
}
