import { beforeEach, describe, expect, test } from "vitest";
import { attention, headConstants, WHOLE_SEQUENCE } from "../../../../src/engine/model/kernels/attention.ts";
import { chooseAttention } from "../../../../src/engine/model/kernels/attention_choice.ts";
import { seeds, uniform } from "../../../fixtures/numbers.ts";
import { expectGradient, noise, runOn, runOnBoth, unwritten, useDevices, weightedSum } from "./run.ts";

const devices = useDevices();

interface Shape {
  readonly lengths: readonly number[];
  readonly heads: number;
  readonly keyHeads: number;
  readonly width: number;
  /** Default: the whole sequence. */
  readonly window?: number;
  /** Whether q lies behind k and v in a token. */
  readonly isQueryLast?: boolean;
}

/** A packed batch whose q, k, v are fused as [T, (H + 2 KV) D]. */
function batch({ lengths, heads, keyHeads, width, window = WHOLE_SEQUENCE, isQueryLast }: Shape) {
  const tokens = lengths.reduce((a, b) => a + b, 0);
  const sequenceStart = new Uint32Array(tokens);
  const sequenceEnd = new Uint32Array(tokens);
  let first = 0;
  for (const length of lengths) {
    sequenceStart.fill(first, first, first + length);
    sequenceEnd.fill(first + length, first, first + length);
    first += length;
  }
  const stride = (heads + 2 * keyHeads) * width;
  const k_offset = isQueryLast ? 0 : heads * width;
  const strides = {
    q_stride: stride,
    q_offset: isQueryLast ? 2 * keyHeads * width : 0,
    k_stride: stride,
    k_offset,
    v_stride: stride,
    v_offset: k_offset + keyHeads * width,
  };
  const params = { tokens, heads, key_heads: keyHeads, window, first: 0, ...strides, scale: 1 / Math.sqrt(width) };
  return { tokens, stride, sequenceStart, sequenceEnd, params, constants: headConstants(width) };
}

/** Buffers of a forward kernel over a fused batch. */
function forwardBuffers(
  qkv: Float32Array,
  { heads, width }: Pick<Shape, "heads" | "width">,
  sequenceStart: Uint32Array,
) {
  const rows = sequenceStart.length * heads;
  const [out, statistics] = [unwritten(rows * width), new Float32Array(rows * 2)];
  return { q: qkv, k: qkv, v: qkv, sequenceStart, out, statistics };
}

const SHAPES: [string, Shape][] = [
  ["no token", { lengths: [], heads: 2, keyHeads: 1, width: 4 }],
  ["one token", { lengths: [1], heads: 2, keyHeads: 1, width: 4 }],
  ["one above the workgroup", { lengths: [9], heads: 1, keyHeads: 1, width: 8 }],
  ["grouped and ragged", { lengths: [3, 1, 17, 8, 40], heads: 8, keyHeads: 4, width: 8 }],
  ["no grouping", { lengths: [21, 12], heads: 3, keyHeads: 3, width: 12 }],
  ["one key head", { lengths: [30, 5], heads: 4, keyHeads: 1, width: 16 }],
  ["width 20", { lengths: [19, 14], heads: 2, keyHeads: 1, width: 20 }],
  ["width 36", { lengths: [5, 12], heads: 2, keyHeads: 2, width: 36 }],
  ["width 128", { lengths: [5, 30], heads: 2, keyHeads: 1, width: 128 }],
  ["width 256", { lengths: [5, 30], heads: 2, keyHeads: 1, width: 256 }],
  ["a window of one token", { lengths: [7, 12], heads: 2, keyHeads: 1, width: 8, window: 1 }],
  ["a window shorter than a tile", { lengths: [3, 1, 17, 8, 40], heads: 4, keyHeads: 2, width: 8, window: 5 }],
  ["a window of whole tiles", { lengths: [29, 16], heads: 3, keyHeads: 3, width: 12, window: 16 }],
  ["a window across tiles", { lengths: [50, 2, 33], heads: 4, keyHeads: 1, width: 16, window: 19 }],
  ["a window as long as the sequence", { lengths: [20, 21], heads: 2, keyHeads: 1, width: 8, window: 20 }],
  ["several tiles of keys and of queries", { lengths: [150, 9, 70], heads: 7, keyHeads: 1, width: 8 }],
  ["tiles of wide heads, and a window", { lengths: [140], heads: 2, keyHeads: 1, width: 132, window: 70 }],
  ["k, v, then q", { lengths: [3, 18], heads: 4, keyHeads: 2, width: 8, isQueryLast: true }],
  ["width 256 and a window", { lengths: [43, 9], heads: 2, keyHeads: 1, width: 256, window: 11 }],
];

/** `ATTENTION_CASES=2000 npx vitest run test/engine/model/kernels/attention_test.ts` takes longer. */
const ATTENTION_CASES = Number(process.env.ATTENTION_CASES ?? 12);

/** A batch for the kernels of GPUs. */
function randomShape(seed: number): Shape {
  const next = uniform(seed);
  const below = (end: number) => Math.floor(next() * end);
  const keyHeads = 1 + below(3);
  const length = () => 1 + below([8, 70, 300][below(3)]!);
  return {
    lengths: Array.from({ length: 1 + below(5) }, length),
    keyHeads,
    heads: keyHeads * [1, 2, 4, 7, 8][below(5)]!,
    width: [4, 8, 20, 64, 72, 128, 256][below(7)]!,
    ...(below(2) && { window: 1 + below(300) }),
    isQueryLast: below(2) === 0,
  };
}

/** Traits of adapters, one for each family of kernels. */
const limits = { maxWorkgroupStorageBytes: 32_768 };
const ADAPTERS = {
  "a software driver": { family: "scalar", subgroupSize: 0, limits },
  "8 lanes": { family: "scalar", subgroupSize: 8, limits },
  "a GPU": { family: "tiled", subgroupSize: 32, limits },
} as const;

type AdapterName = keyof typeof ADAPTERS;
const ADAPTER_NAMES = Object.keys(ADAPTERS) as AdapterName[];

const [SOFTWARE, LANES, GPU] = ["a software driver", "8 lanes", "a GPU"] as const;
test.each([
  // Bytes of workgroup memory; all adapters have 16,384. `halves` of the rows that a thread has at once.
  [SOFTWARE, 32, 32_768, "plain", {}],
  [SOFTWARE, 36, 16_384, "tiled", { queries: 2, keys: 1 }],
  [SOFTWARE, 36, 16_383, "plain", {}],
  [LANES, 32, 32_768, "subgroup", {}],
  [LANES, 36, 16_384, "tiled", { queries: 2, keys: 1 }],
  [GPU, 8, 16_384, "tiled", { queries: 2, keys: 1 }],
  [GPU, 128, 16_384, "tiled", { queries: 2, keys: 1 }],
  [GPU, 132, 16_384, "tiled", { queries: 1, keys: 1 }],
  [GPU, 256, 16_384, "tiled", { queries: 1, keys: 1 }],
  [GPU, 256, 16_383, "plain", {}],
] as const)("%s with heads of %i and %i bytes takes the family %s %o", (adapter, headWidth, bytes, family, halves) => {
  const info = { ...ADAPTERS[adapter], limits: { maxWorkgroupStorageBytes: bytes } };
  const chosen = chooseAttention(info, { heads: 4, keyHeads: 2, headWidth });
  const names = [chosen.forward, chosen.backwardQueries, chosen.backwardKeys, chosen.decode.float32].map(
    (it) => it.name,
  );
  const ending = family === "plain" ? "" : `_${family}`;
  expect(names).toEqual([
    `attention/${family}`,
    `attention/backward_queries${ending}`,
    `attention/backward_keys${ending}`,
    `decode/attention_decode${family === "tiled" ? "_tiled" : ""}`,
  ]);
  const { constants, backwardKeysConstants, decodeConstants } = chosen;
  expect(constants.HEAD_QUADS).toBe(headWidth / 4);
  expect({ queries: constants.HALVES, keys: backwardKeysConstants.HALVES }).toEqual({
    queries: undefined,
    keys: undefined,
    ...halves,
  });
  expect(constants.HEADS).toBe(family === "subgroup" ? 2 : undefined);
  // Two heads of a thread share their key head; GPUs take no pairs.
  expect(decodeConstants.HEADS).toBe(family === "tiled" ? undefined : adapter === GPU ? 1 : 2);
});

test.each([
  [4, 2, 128, 2],
  [3, 1, 128, 1],
  [6, 2, 8, 1],
  [4, 2, 132, 1],
])("%i heads on %i key heads of width %i are decoded %i to a thread", (heads, keyHeads, headWidth, together) => {
  const small = { ...ADAPTERS[SOFTWARE], limits: { maxWorkgroupStorageBytes: 0 } };
  const { decodeConstants } = chooseAttention(small, { heads, keyHeads, headWidth });
  expect(decodeConstants).toEqual({ HEAD_QUADS: headWidth / 4, HEADS: together });
});

test("decoding takes wide heads one by one on adapters with little workgroup memory", () => {
  const small = { ...ADAPTERS["a software driver"], limits: { maxWorkgroupStorageBytes: 16_383 } };
  const wide = chooseAttention(small, { heads: 4, keyHeads: 1, headWidth: 256 });
  expect(wide.decodeConstants).toMatchObject({ HEADS: 1 });
  expect(chooseAttention(small, { heads: 4, keyHeads: 1, headWidth: 32 }).decodeConstants).toMatchObject({ HEADS: 2 });
});

function choose(adapter: AdapterName, { heads, keyHeads, width }: Shape) {
  return chooseAttention(ADAPTERS[adapter], { heads, keyHeads, headWidth: width });
}

/** Kernels for subgroups of 8 lanes run only on machines that have them. */
function skipWithoutLanes(adapter: AdapterName, skip: (note: string) => void): void {
  if (adapter === "8 lanes" && devices.gpu.info.subgroupSize !== 8)
    skip("this machine's subgroups are not 8 lanes wide");
}

/** Forward and backward kernels of an adapter on both devices. */
async function gradients(adapter: AdapterName, shape: Shape) {
  const { tokens, stride, sequenceStart, sequenceEnd, params } = batch(shape);
  const { heads, width } = shape;
  const { forward, backwardQueries, backwardKeys, constants, backwardKeysConstants } = choose(adapter, shape);
  const qkv = noise(tokens * stride).map((x) => x * 2);
  const outGrad = noise(tokens * heads * width, 2);
  const qkvBuffers = { q: qkv, k: qkv, v: qkv };
  const { out, statistics } = await runOnBoth(devices, forward, {
    buffers: forwardBuffers(qkv, shape, sequenceStart),
    params,
    constants,
  });
  const queries = await runOnBoth(devices, backwardQueries, {
    buffers: {
      ...qkvBuffers,
      out,
      outGrad,
      sequenceStart,
      statistics,
      qGrad: new Float32Array(tokens * stride),
    },
    params: { ...params, grad_stride: stride, grad_offset: params.q_offset },
    constants,
  });
  const keys = await runOnBoth(devices, backwardKeys, {
    buffers: {
      ...qkvBuffers,
      outGrad,
      sequenceEnd,
      statistics: queries.statistics,
      keyValueGrad: queries.qGrad,
    },
    params: {
      ...params,
      dk_stride: stride,
      dk_offset: params.k_offset,
      dv_stride: stride,
      dv_offset: params.v_offset,
    },
    constants: backwardKeysConstants,
  });
  return { qkv, outGrad, keys };
}

test(`attention for a GPU in ${ATTENTION_CASES} random batches`, { timeout: 7_200_000 }, async () => {
  for (const seed of seeds(ATTENTION_CASES))
    await gradients("a GPU", randomShape(seed)).catch((error: unknown) => {
      throw new Error(`seed ${seed} ${JSON.stringify(randomShape(seed))}`, { cause: error });
    });
});

describe.each(ADAPTER_NAMES)("attention for %s", (adapter) => {
  beforeEach(({ skip }) => skipWithoutLanes(adapter, skip));

  test.each(SHAPES)("%s, with its gradients", async (_, shape) => {
    const { qkv, outGrad, keys } = await gradients(adapter, shape);
    const { sequenceStart, params, tokens, constants } = batch(shape);
    const loss = () => {
      const result = new Float64Array(outGrad.length) as never;
      const scratch = new Float64Array(tokens * shape.heads * 2) as never;
      const buffers = { q: qkv, k: qkv, v: qkv, sequenceStart, out: result, statistics: scratch };
      attention.reference(buffers, params, constants);
      return weightedSum(result, outGrad);
    };
    expectGradient(qkv, keys.keyValueGrad, {
      loss,
      name: "qkv",
      stride: qkv.length > 200 ? Math.ceil(qkv.length / 40) : 1,
    });
  });

  test("q, k and v in separate buffers give the same", async () => {
    const { tokens, stride, sequenceStart, params } = batch(SHAPES[3]![1]);
    const { forward, constants } = choose(adapter, SHAPES[3]![1]);
    const qkv = noise(tokens * stride);
    const split = (offset: number, width: number) =>
      Float32Array.from(
        { length: tokens * width },
        (_, i) => qkv[Math.floor(i / width) * stride + offset + (i % width)]!,
      );
    const results = { sequenceStart, out: unwritten(tokens * 64), statistics: unwritten(tokens * 16) };
    const fused = await runOn(devices.gpu, forward, {
      buffers: { q: qkv, k: qkv, v: qkv, ...results },
      params,
      constants,
    });
    const apart = await runOn(devices.gpu, forward, {
      buffers: { q: split(0, 64), k: split(64, 32), v: split(96, 32), ...results },
      params: { ...params, q_stride: 64, k_stride: 32, k_offset: 0, v_stride: 32, v_offset: 0 },
      constants,
    });
    expect(apart.out).toEqual(fused.out);
  });

  test.each([
    ["grouped", { heads: 8, keyHeads: 4, width: 8 }],
    ["wide, with a window", { heads: 2, keyHeads: 1, width: 64, window: 21 }],
    ["narrow, with a window", { heads: 4, keyHeads: 2, width: 16, window: 9 }],
  ])("queries from a later token on have the bits that they have among all, %s", async (_, heads) => {
    const shape = { lengths: [150, 9, 20], ...heads };
    const { tokens, stride, sequenceStart, params } = batch(shape);
    const { forward, constants } = choose(adapter, shape);
    const qkv = noise(tokens * stride);
    const width = shape.heads * shape.width;
    const whole = await runOn(devices.gpu, forward, {
      buffers: forwardBuffers(qkv, shape, sequenceStart),
      params,
      constants,
    });
    for (const first of [1, 16, 31, 64, 100, 149]) {
      const count = tokens - first;
      const part = await runOnBoth(devices, forward, {
        buffers: {
          q: qkv.slice(first * stride),
          k: qkv,
          v: qkv,
          sequenceStart,
          out: unwritten(count * width),
          statistics: new Float32Array(count * shape.heads * 2),
        },
        params: { ...params, tokens: count, first },
        constants,
      });
      expect(part.out).toEqual(whole.out.subarray(first * width, tokens * width));
    }
  });

  test("a sequence does not see its neighbours", async () => {
    const shape = { lengths: [11, 7, 13], heads: 2, keyHeads: 1, width: 8 };
    const { tokens, stride, sequenceStart, params } = batch(shape);
    const { forward, constants } = choose(adapter, shape);
    const run = async (qkv: Float32Array) =>
      (
        await runOn(devices.gpu, forward, {
          buffers: {
            q: qkv,
            k: qkv,
            v: qkv,
            sequenceStart,
            out: unwritten(tokens * 16),
            statistics: unwritten(tokens * 4),
          },
          params,
          constants,
        })
      ).out.slice(11 * 16, 18 * 16);
    const qkv = noise(tokens * stride);
    const changed = qkv.map((x, i) => (i < 11 * stride || i >= 18 * stride ? -9 * x : x));
    expect(await run(changed)).toEqual(await run(qkv));
  });

  test("large scores stay finite", async () => {
    const { tokens, stride, sequenceStart, params } = batch(SHAPES[3]![1]);
    const { forward, constants } = choose(adapter, SHAPES[3]![1]);
    const qkv = noise(tokens * stride).map((x) => x * 60);
    await runOnBoth(
      devices,
      { ...forward, tolerance: { relative: 1e-3, absolute: 1e-2 } },
      {
        buffers: forwardBuffers(qkv, SHAPES[3]![1], sequenceStart),
        params,
        constants,
      },
    );
  });

  test("more than 65,535 workgroups", async () => {
    const lengths = Array.from({ length: 66_000 }, () => 4);
    const shape = { lengths, heads: 4, keyHeads: 1, width: 4 };
    const { tokens, stride, sequenceStart, params } = batch(shape);
    const { forward, constants } = choose(adapter, shape);
    const qkv = noise(tokens * stride);
    await runOnBoth(devices, forward, {
      buffers: forwardBuffers(qkv, shape, sequenceStart),
      params,
      constants,
    });
  });

  test.each([
    [1, [13, 37, 6]],
    [6, [13, 37, 6]],
    [8, [13, 37, 6]],
    [21, [13, 37, 6]],
    [70, [9, 150, 6]],
    [200, [70, 150, 3]],
  ])("a window of %i: the bits of a sequence do not depend on where it lies among %o", async (window, among) => {
    const [before, length] = among as [number, number, number];
    const run = async (lengths: number[], values: Float32Array) => {
      const shape = { lengths, heads: 2, keyHeads: 1, width: 8, window };
      const { sequenceStart, params } = batch(shape);
      const { forward, constants } = choose(adapter, shape);
      const buffers = forwardBuffers(values, shape, sequenceStart);
      return (await runOn(devices.gpu, forward, { buffers, params, constants })).out;
    };
    const stride = 4 * 8;
    const values = noise(among.reduce((a, b) => a + b) * stride);
    const packed = await run(among, values);
    const alone = await run([length], values.slice(before * stride, (before + length) * stride));
    expect(packed.slice(before * 16, (before + length) * 16)).toEqual(alone);
  });

  test("a token does not see what is before its window", async () => {
    const shape = { lengths: [40], heads: 2, keyHeads: 1, width: 8, window: 9 };
    const { stride, sequenceStart, params } = batch(shape);
    const { forward, constants } = choose(adapter, shape);
    const run = async (qkv: Float32Array) => {
      const buffers = forwardBuffers(qkv, shape, sequenceStart);
      const { out } = await runOn(devices.gpu, forward, { buffers, params, constants });
      return [out.slice(29 * 16, 30 * 16), out.slice(30 * 16)];
    };
    const qkv = noise(40 * stride);
    const changed = qkv.map((x, i) => (i < 22 * stride ? -9 * x : x));
    const [[last, after], [lastBefore, afterBefore]] = [await run(changed), await run(qkv)];
    expect(after).toEqual(afterBefore);
    expect(last).not.toEqual(lastBefore);
  });

  test.each([0, 6, 260])("refuses heads of width %i", (width) => {
    expect(() => headConstants(width)).toThrow(`width ${width}`);
  });
});
