/** The kernels of the paged key/value cache, of both families and both types of numbers. */
import { beforeEach, describe, expect, test } from "vitest";
import type { Constants } from "../../../../src/engine/compute/kernel.ts";
import { decodeFloats, encodeBf16 } from "../../../../src/engine/model/dtype.ts";
import { WHOLE_SEQUENCE } from "../../../../src/engine/model/kernels/attention.ts";
import { type AttentionKernels, chooseAttention } from "../../../../src/engine/model/kernels/attention_choice.ts";
import {
  attentionMerge,
  attentionStepChunks,
  chunkFloats,
} from "../../../../src/engine/model/kernels/attention_chunks.ts";
import { attentionStep } from "../../../../src/engine/model/kernels/attention_step.ts";
import {
  attentionDecodeTiled,
  attentionStepTiled,
  decodeConstants,
} from "../../../../src/engine/model/kernels/attention_tiled.ts";
import { attentionDecode, cacheAppend, cacheCopy, cacheGather } from "../../../../src/engine/model/kernels/cache.ts";
import { type CacheDtype, PAGE_TOKENS } from "../../../../src/engine/model/kernels/cache_storage.ts";
import { ropeAppend } from "../../../../src/engine/model/kernels/rope_append.ts";
import { randomStream } from "../../../../src/leaves/random.ts";
import { seeds } from "../../../fixtures/numbers.ts";
import { expectClose, integers, noise, runOn, runOnBoth, unwritten, useDevices } from "./run.ts";

const devices = useDevices();

/** Traits of adapters, one for each family of kernels. */
const limits = { maxWorkgroupStorageBytes: 32_768 };
const ADAPTERS = {
  "a software driver": { family: "scalar", subgroupSize: 0, limits },
  "8 lanes": { family: "scalar", subgroupSize: 8, limits },
  "a GPU": { family: "tiled", subgroupSize: 32, limits },
} as const;
type AdapterName = keyof typeof ADAPTERS;
const DTYPES: readonly CacheDtype[] = ["float32", "bfloat16"];

interface Shape {
  readonly heads: number;
  readonly keyHeads: number;
  readonly width: number;
}

/** Sequences of these lengths in pages that lie in no order, with a page to spare. */
function layOut(lengths: readonly number[]) {
  const row_pages = Math.max(1, ...lengths.map((length) => Math.ceil(length / PAGE_TOKENS)));
  const count = lengths.length * row_pages + 1;
  // Odd numbers below, then even ones: neighbours in a line of the table are not neighbours in the cache.
  const order = [...Array(count).keys()].sort((a, b) => (b % 2) - (a % 2) || b - a);
  const pages = Uint32Array.from(order.slice(1));
  const place = (row: number, position: number) =>
    pages[row * row_pages + Math.floor(position / PAGE_TOKENS)]! * PAGE_TOKENS + (position % PAGE_TOKENS);
  return { pages, row_pages, place, tokens: count * PAGE_TOKENS };
}

/** A cache of `elements` numbers: noise of the type. */
function cacheOf(dtype: CacheDtype, elements: number, seed: number): Float32Array | Uint32Array {
  const values = noise(elements, seed);
  return dtype === "float32" ? values : new Uint32Array(encodeBf16(values).buffer);
}

/** vitest takes seconds over as many numbers as a cache has. */
function expectBits(got: NodeJS.ArrayBufferView, wanted: NodeJS.ArrayBufferView): void {
  const [a, b] = [got, wanted].map(({ buffer, byteOffset, byteLength }) => Buffer.from(buffer, byteOffset, byteLength));
  expect(Buffer.compare(a!, b!)).toBe(0);
}

/** The numbers in a cache. */
function numbers(cache: ArrayLike<number>): Float32Array {
  if (!(cache instanceof Uint32Array)) return cache as Float32Array;
  return decodeFloats(new Uint8Array(cache.buffer, cache.byteOffset, cache.byteLength), "BF16")!;
}

/** q, k, v of packed sequences in one buffer, and those that each token attends to. */
function packed(lengths: readonly number[], { heads, keyHeads, width }: Shape) {
  const tokens = lengths.reduce((a, b) => a + b, 0);
  const rowOf = Uint32Array.from(lengths.flatMap((length, row) => Array<number>(length).fill(row)));
  const firstOf = lengths.map((_, row) => lengths.slice(0, row).reduce((a, b) => a + b, 0));
  const sequenceStart = rowOf.map((row) => firstOf[row]!);
  const positions = sequenceStart.map((start, t) => t - start);
  const stride = (heads + 2 * keyHeads) * width;
  const offsets = { q_stride: stride, q_offset: 0, k_stride: stride, k_offset: heads * width, v_stride: stride };
  const params = { ...offsets, v_offset: (heads + keyHeads) * width };
  const last = lengths.map((length, row) => firstOf[row]! + length - 1);
  return { tokens, rowOf, positions, sequenceStart, stride, params, last, qkv: noise(tokens * stride) };
}

/** Keeps a packed batch in a cache, and attends to it with the last token of each sequence. */
async function decodeLast(
  { decode, decodeConstants }: AttentionKernels,
  at: { lengths: readonly number[]; shape: Shape; dtype: CacheDtype; window: number },
) {
  const { lengths, dtype } = at;
  const { heads, keyHeads, width } = at.shape;
  const { qkv, rowOf, positions, tokens, stride, params, last } = packed(lengths, at.shape);
  const { pages, row_pages, place, tokens: places } = layOut(lengths);
  const { q_stride: _, q_offset: __, ...keyParams } = params;
  const cache = await runOnBoth(devices, cacheAppend[dtype], {
    buffers: {
      k: qkv,
      v: qkv,
      places: rowOf.map((row, t) => place(row, positions[t]!)),
      keys: cacheOf(dtype, places * keyHeads * width, 7),
      values: cacheOf(dtype, places * keyHeads * width, 8),
    },
    params: { rows: tokens, width: keyHeads * width, ...keyParams },
  });
  const { out } = await runOnBoth(devices, decode[dtype], {
    buffers: {
      q: Float32Array.from(last.flatMap((t) => [...qkv.subarray(t * stride, t * stride + heads * width)])),
      keys: cache.keys,
      values: cache.values,
      pages,
      positions: Uint32Array.from(lengths, (length) => Math.max(length - 2, 0)),
      out: unwritten(lengths.length * heads * width),
    },
    params: {
      rows: lengths.length,
      heads,
      key_heads: keyHeads,
      q_stride: heads * width,
      q_offset: 0,
      row_pages,
      shift: 1,
      window: at.window,
      scale: 1 / Math.sqrt(width),
    },
    constants: decodeConstants,
  });
  return out;
}

const LENGTHS = [5, 2, PAGE_TOKENS, PAGE_TOKENS + 1, 112];
/** Of several chunks of 256 keys. */
const LONG = [530, 256, 257, 40];

describe.each(Object.keys(ADAPTERS) as AdapterName[])("attention to the cache for %s", (adapter) => {
  beforeEach(({ skip }) => {
    if (adapter === "8 lanes" && devices.gpu.info.subgroupSize !== 8) skip("subgroups are not 8 lanes wide here");
  });
  const choose = ({ heads, keyHeads, width }: Shape) =>
    chooseAttention(ADAPTERS[adapter], { heads, keyHeads, headWidth: width });

  test.each<Shape & { window?: number; lengths?: readonly number[] }>([
    { heads: 8, keyHeads: 4, width: 8 },
    { heads: 4, keyHeads: 1, width: 12, window: 5 },
    { heads: 2, keyHeads: 2, width: 64, window: 16 },
    { heads: 2, keyHeads: 1, width: 128, window: 70 },
    { heads: 4, keyHeads: 1, width: 256 },
    { heads: 4, keyHeads: 1, width: 256, window: 21 },
    { heads: 3, keyHeads: 1, width: 64, lengths: LONG },
    { heads: 3, keyHeads: 1, width: 64, lengths: LONG, window: 300 },
    { heads: 2, keyHeads: 2, width: 8, lengths: LONG, window: 257 },
    { heads: 9, keyHeads: 1, width: 8, lengths: LONG, window: 70 },
  ])(
    "of the last tokens has the bits of attention over the whole: %o",
    async ({ window = WHOLE_SEQUENCE, lengths = LENGTHS, ...shape }) => {
      const kernels = choose(shape);
      const { qkv, tokens, sequenceStart, params, last } = packed(lengths, shape);
      const { heads, width } = shape;
      const { out: whole } = await runOn(devices.gpu, kernels.forward, {
        buffers: {
          q: qkv,
          k: qkv,
          v: qkv,
          sequenceStart,
          out: unwritten(tokens * heads * width),
          statistics: unwritten(tokens * heads * 2),
        },
        params: { tokens, heads, key_heads: shape.keyHeads, window, first: 0, ...params, scale: 1 / Math.sqrt(width) },
        constants: kernels.constants,
      });
      const wanted = last.flatMap((t) => [...whole.subarray(t * heads * width, (t + 1) * heads * width)]);
      const exact = await decodeLast(kernels, { lengths, shape, dtype: "float32", window });
      expect([...exact]).toEqual(wanted);
      const rounded = await decodeLast(kernels, { lengths, shape, dtype: "bfloat16", window });
      // Keys and values below 1 are kept to 2^-9 of their size.
      expectClose(rounded, wanted, { relative: 0, absolute: 0.02, name: "bfloat16" });
      expect([...rounded]).not.toEqual(wanted);
    },
  );

  test.each(DTYPES)("sees the last tokens of a window only, %s", async (dtype) => {
    const shape = { heads: 4, keyHeads: 2, width: 16 };
    const run = (window: number) => decodeLast(choose(shape), { lengths: [112], shape, dtype, window });
    const whole = await run(WHOLE_SEQUENCE);
    expect(await run(112)).toEqual(whole);
    for (const window of [1, 7, 8, 9, 70, 111]) expect(await run(window)).not.toEqual(whole);
  });

  test("of more than 65,535 workgroups", async () => {
    const shape = { heads: 4, keyHeads: 1, width: 4 };
    const { decode, decodeConstants } = choose(shape);
    const rows = adapter === "a GPU" ? 65_600 : 136_000;
    await runOnBoth(devices, decode.float32, {
      buffers: {
        q: noise(rows * 16),
        keys: noise(3 * PAGE_TOKENS * 4, 2),
        values: noise(3 * PAGE_TOKENS * 4, 3),
        pages: integers(rows, 3, 4),
        positions: integers(rows, 6, 5),
        out: unwritten(rows * 16),
      },
      params: {
        rows,
        heads: 4,
        key_heads: 1,
        q_stride: 16,
        q_offset: 0,
        row_pages: 1,
        shift: 0,
        window: WHOLE_SEQUENCE,
        scale: 0.5,
      },
      constants: decodeConstants,
    });
  });
});

/** Positions of a step's rows before `shift`. */
const POSITIONS = Uint32Array.of(0, 3, PAGE_TOKENS - 2, PAGE_TOKENS - 1, 2 * PAGE_TOKENS + 4);
/** `STEP_CASES=10000 npx vitest run test/engine/model/kernels/cache_test.ts` takes longer. */
const STEP_CASES = Number(process.env.STEP_CASES ?? 12);

interface StepCase {
  readonly width: number;
  /** Of a thread; absent for the kernels of GPUs. */
  readonly HEADS?: number;
  readonly window?: number;
  readonly rotates?: number;
}

describe.each(DTYPES)("a decoding step with a cache of %s", (dtype) => {
  // A kept number may lie on either side of a tie.
  const kept = dtype === "float32" ? { relative: 1e-6, absolute: 1e-6 } : { relative: 2 ** -7, absolute: 1e-6 };

  /** Rows at several positions, and everything that a step reads and writes. */
  function step(rows: number, { heads, keyHeads, width }: Shape, positions = POSITIONS.slice(0, rows)) {
    const { pages, row_pages, tokens } = layOut([...positions].map((position) => position + 2));
    const buffers = {
      qkv: noise(rows * (heads + 2 * keyHeads) * width),
      angles: noise((Math.max(0, ...positions) + 2) * width, 5),
      pages,
      positions,
      keys: cacheOf(dtype, tokens * keyHeads * width, 2),
      values: cacheOf(dtype, tokens * keyHeads * width, 3),
    };
    return { buffers, params: { rows, heads, key_heads: keyHeads, row_pages, shift: 1, rotates: 1 } };
  }

  /** One kernel for a step next to the two that it joins. */
  async function expectParts(run: ReturnType<typeof step>, it: StepCase) {
    const { width, HEADS, window = WHOLE_SEQUENCE, rotates = 1 } = it;
    const { rows, heads, key_heads, row_pages, shift } = run.params;
    const [joined, decode] = HEADS ? [attentionStep, attentionDecode] : [attentionStepTiled, attentionDecodeTiled];
    const constants = HEADS
      ? { HEAD_QUADS: width / 4, HEADS }
      : decodeConstants({ heads, keyHeads: key_heads, headWidth: width }, limits);
    const scale = 1 / Math.sqrt(width);
    const out = unwritten(rows * heads * width);
    const whole = { buffers: { ...run.buffers, out }, params: { ...run.params, rotates, window, scale }, constants };
    const got = await runOn(devices.gpu, joined[dtype], whole);
    const turned = await runOn(devices.gpu, ropeAppend[dtype], {
      buffers: run.buffers,
      params: { ...run.params, rotates, width },
    });
    const q_stride = (heads + 2 * key_heads) * width;
    const { qkv: q, keys, values } = turned;
    const { pages, positions } = run.buffers;
    const parts = await runOn(devices.gpu, decode[dtype], {
      buffers: { q, keys, values, pages, positions, out },
      params: { rows, heads, key_heads, q_stride, q_offset: 0, row_pages, shift, window, scale },
      constants,
    });
    expectBits(got.keys, keys);
    expectBits(got.values, values);
    expectBits(got.out, parts.out);
    if (!HEADS) await expectSplit(whole, got);
    return { got, whole };
  }

  /** A workgroup per chunk, then the fold, next to one kernel. */
  async function expectSplit(
    {
      buffers,
      params,
      constants,
    }: ReturnType<typeof step> & { constants: Constants; params: { window: number; scale: number } },
    got: Awaited<ReturnType<typeof runOn>>,
  ) {
    const { rows, heads, row_pages, shift, window } = params;
    const headWidth = constants.HEAD_QUADS! * 4;
    const left = await runOn(devices.gpu, attentionStepChunks[dtype], {
      buffers: { ...buffers, out: unwritten(chunkFloats({ rows, heads, headWidth, row_pages })) },
      params,
      constants,
    });
    const { out } = await runOn(devices.gpu, attentionMerge, {
      buffers: { parts: left.out!, positions: buffers.positions, out: unwritten(rows * heads * headWidth) },
      params: { rows, heads, row_pages, shift, window },
      constants: { HEAD_QUADS: headWidth / 4 },
    });
    expectBits(out, got.out!);
    expectBits(left.keys!, got.keys!);
    expectBits(left.values!, got.values!);
  }

  async function expectReference({ got, whole }: Awaited<ReturnType<typeof expectParts>>) {
    const wanted = await runOn(devices.cpu, attentionStep[dtype], whole);
    for (const name of ["keys", "values"] as const)
      expectClose(numbers(got[name]), numbers(wanted[name]), { ...kept, name });
    const absolute = dtype === "float32" ? attentionStep[dtype].tolerance.absolute : 0.02;
    expectClose(got.out, wanted.out, { relative: 0, absolute, name: "out" });
  }

  const ROPE_SHAPES = [
    [0, { heads: 2, keyHeads: 1, width: 4 }],
    [1, { heads: 1, keyHeads: 1, width: 4 }],
    [5, { heads: 3, keyHeads: 1, width: 12 }],
    [5, { heads: 4, keyHeads: 1, width: 256 }],
  ] as const;
  test.each(ROPE_SHAPES)("turns q, and keeps k turned with v: %i rows, %o", async (rows, shape) => {
    const run = step(rows, shape);
    for (const rotates of [1, 0]) {
      const params = { ...run.params, rotates, width: shape.width };
      const got = await runOn(devices.gpu, ropeAppend[dtype], { ...run, params });
      const wanted = await runOn(devices.cpu, ropeAppend[dtype], { ...run, params });
      expectClose(got.qkv, wanted.qkv, { ...ropeAppend[dtype].tolerance, name: "qkv" });
      for (const name of ["keys", "values"] as const)
        expectClose(numbers(got[name]), numbers(wanted[name]), { ...kept, name });
      if (rotates === 0) expect(got.qkv).toEqual(run.buffers.qkv);
      else if (rows > 0) expect(got.qkv).not.toEqual(run.buffers.qkv);
    }
  });

  test.each<StepCase & Shape & { rows: number }>([
    { rows: 5, heads: 8, keyHeads: 4, width: 8, HEADS: 2 },
    { rows: 5, heads: 8, keyHeads: 4, width: 8, HEADS: 1 },
    { rows: 5, heads: 4, keyHeads: 1, width: 16, HEADS: 2, window: 5, rotates: 0 },
    { rows: 5, heads: 4, keyHeads: 2, width: 16, HEADS: 1, window: 1 },
    { rows: 3, heads: 3, keyHeads: 3, width: 32, HEADS: 1 },
    { rows: 1, heads: 2, keyHeads: 1, width: 8, HEADS: 2 },
    { rows: 0, heads: 2, keyHeads: 1, width: 8, HEADS: 2 },
    { rows: 5, heads: 4, keyHeads: 2, width: 8 },
    { rows: 5, heads: 7, keyHeads: 1, width: 64, window: 16, rotates: 0 },
    { rows: 5, heads: 2, keyHeads: 2, width: 128 },
    { rows: 3, heads: 4, keyHeads: 1, width: 256, window: 1 },
    { rows: 0, heads: 2, keyHeads: 1, width: 64 },
  ])("in one kernel has the bits of its parts: %o", async (it) => {
    const run = step(it.rows, it);
    const results = await expectParts(run, it);
    await expectReference(results);
    if (it.rows > 0) expect(results.got.keys).not.toEqual(run.buffers.keys);
  });

  test("for GPUs has those bits wherever a context ends", async () => {
    const width = 32;
    // Steps of 8 keys, pages of 16 and blocks of 64 end and begin here; `shift` adds 1.
    // Chunks of 256 too.
    const positions = Uint32Array.from([
      6, 7, 8, 14, 15, 61, 62, 63, 64, 126, 127, 128, 190, 254, 255, 300, 510, 511, 700,
    ]);
    for (const window of [WHOLE_SEQUENCE, 257, 65, 9]) {
      const it = { rows: positions.length, heads: 4, keyHeads: 2, width, window };
      await expectReference(await expectParts(step(it.rows, it, positions), it));
    }
  });

  test.each([
    { heads: 4, keyHeads: 2, width: 16 },
    { heads: 9, keyHeads: 1, width: 8, window: 300 },
    { heads: 1, keyHeads: 1, width: 8, window: 5 },
  ])("by chunks of keys leaves what the fold takes: %o", async ({ window = WHOLE_SEQUENCE, ...shape }) => {
    const positions = Uint32Array.from([0, 3, 254, 255, 256, 600]);
    const { heads, keyHeads, width: headWidth } = shape;
    const { buffers, params } = step(positions.length, shape, positions);
    const { rows, row_pages, shift } = params;
    const constants = decodeConstants({ heads, keyHeads, headWidth }, limits);
    const out = unwritten(chunkFloats({ rows, heads, headWidth, row_pages }));
    const run = { buffers: { ...buffers, out }, params: { ...params, window, scale: 0.25 }, constants };
    const left = await runOn(devices.gpu, attentionStepChunks[dtype], run);
    const wanted = await runOn(devices.cpu, attentionStepChunks[dtype], run);
    const absolute = dtype === "float32" ? 1e-5 : 0.1;
    expectClose(left.out, wanted.out, { relative: absolute, absolute, name: "chunks" });
    await runOnBoth(devices, attentionMerge, {
      buffers: { parts: left.out, positions, out: unwritten(rows * heads * headWidth) },
      params: { rows, heads, row_pages, shift, window },
      constants: { HEAD_QUADS: headWidth / 4 },
    });
  });

  test(`for GPUs has those bits in ${STEP_CASES} random steps`, { timeout: 3_600_000 }, async () => {
    for (const seed of seeds(STEP_CASES)) {
      const next = randomStream(seed);
      const below = (end: number) => Math.floor(next() * end);
      const [keyHeads, rows] = [1 + below(3), 1 + below(5)];
      const width = [8, 16, 24, 64, 72, 128, 256][below(7)]!;
      const window = below(2) === 0 ? WHOLE_SEQUENCE : 1 + below(400);
      const sharing = [1, 2, 7, 9][below(4)]!;
      const it = { rows, keyHeads, heads: keyHeads * sharing, width, window, rotates: below(4) === 0 ? 0 : 1 };
      const positions = Uint32Array.from({ length: rows }, () => below([20, 260, 260, 1100][below(4)]!));
      await expectParts(step(rows, it, positions), it).catch((error: unknown) => {
        throw new Error(`seed ${seed} ${JSON.stringify(it)}`, { cause: error });
      });
    }
  });

  test("appends no rows", async () => {
    const none = new Float32Array(0);
    await runOnBoth(devices, cacheAppend[dtype], {
      buffers: {
        k: none,
        v: none,
        places: new Uint32Array(0),
        keys: cacheOf(dtype, 16, 1),
        values: cacheOf(dtype, 16, 2),
      },
      params: { rows: 0, width: 4, k_stride: 4, k_offset: 0, v_stride: 4, v_offset: 0 },
    });
  });
});

test("bfloat16 is rounded to nearest, ties to even; NaN stays NaN", async () => {
  const edges = [0, -0, 1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, 2 ** -130, -(2 ** 127) * 1.999];
  const k = Float32Array.from([...edges, Number.POSITIVE_INFINITY, 3.4e38, ...noise(70)]);
  const v = new Float32Array(new Uint32Array(80).fill(0x7fff_ffff).buffer);
  const run = {
    buffers: {
      k,
      v,
      places: Uint32Array.from({ length: 20 }, (_, i) => 19 - i),
      keys: new Uint32Array(40),
      values: new Uint32Array(40),
    },
    params: { rows: 20, width: 4, k_stride: 4, k_offset: 0, v_stride: 4, v_offset: 0 },
  };
  const got = await runOnBoth(devices, cacheAppend.bfloat16, run);
  const kept = numbers(got.keys);
  for (let row = 0; row < 20; row++)
    expect([...kept.subarray((19 - row) * 4, (20 - row) * 4)]).toEqual([
      ...decodeFloats(new Uint8Array(encodeBf16(k.slice(row * 4, row * 4 + 4)).buffer), "BF16")!,
    ]);
  expect(numbers(got.values).every(Number.isNaN)).toBe(true);
});

describe.each(DTYPES)("gathering from a cache of %s", (dtype) => {
  test.each([
    [0, 4],
    [1, 4],
    [7, 12],
    [33, 8],
    [65, 20],
  ])("%i rows of width %i, in the order of their places", async (rows, width) => {
    const places = Uint32Array.from({ length: rows }, (_, i) => (i * 29 + 5) % 80);
    const [keys, values] = [cacheOf(dtype, 80 * width, 3), cacheOf(dtype, 80 * width, 4)];
    const got = await runOnBoth(devices, cacheGather[dtype], {
      buffers: { places, keys, values, k: unwritten(rows * width), v: unwritten(rows * width) },
      params: { rows, width },
    });
    for (const [cache, found] of [
      [numbers(keys), got.k],
      [numbers(values), got.v],
    ] as const)
      expect([...found]).toEqual([...places].flatMap((at) => [...cache.subarray(at * width, (at + 1) * width)]));
  });
});

test.each([0, 1, 3])("copies %i pages, whatever they hold, and nothing else", async (copies) => {
  const page = (PAGE_TOKENS * 8) / 2;
  const keys = Uint32Array.from({ length: 7 * page }, (_, i) => (i * 2_654_435_761) >>> 0);
  const values = keys.map((bits) => ~bits >>> 0);
  const table = [1, 3, 6, 0, 1, 4].slice(0, copies * 2);
  const got = await runOnBoth(devices, cacheCopy, {
    buffers: { copies: Uint32Array.from(table), keys, values },
    params: { copies, page_quads: page / 4 },
  });
  for (const [cache, found] of [
    [keys, got.keys],
    [values, got.values],
  ] as const) {
    const wanted = cache.slice();
    for (let i = 0; i < copies; i++)
      wanted.copyWithin(table[i * 2 + 1]! * page, table[i * 2]! * page, (table[i * 2]! + 1) * page);
    expect(found).toEqual(wanted);
  }
});
