/**
 * The transformer's kernels at the size of a small model's training step (T = 4096 tokens in sequences of 170, C 64,
 * H 8, KV 4, D 8, F 172, V 512), each checked against its reference on a smaller batch first. Rates count the bytes that
 * a kernel must move at least, against the copy bandwidth of the same run.
 */
import { CpuDevice } from "../src/engine/compute/cpu.ts";
import type { Buffer, Data, Device } from "../src/engine/compute/device.ts";
import type { BindingKinds, Constants, Kernel, ParamTypes, Values } from "../src/engine/compute/kernel.ts";
import { measureCeilings } from "../src/engine/compute/measure.ts";
import { adamw, squareSum } from "../src/engine/model/kernels/adamw.ts";
import { WHOLE_SEQUENCE } from "../src/engine/model/kernels/attention.ts";
import { chooseAttention } from "../src/engine/model/kernels/attention_choice.ts";
import { PAGE_TOKENS } from "../src/engine/model/kernels/cache_storage.ts";
import { addScaled, transpose } from "../src/engine/model/kernels/elementwise.ts";
import { embedding, embeddingBackward, groupByToken } from "../src/engine/model/kernels/embedding.ts";
import { logprob, logprobBackward } from "../src/engine/model/kernels/logprob.ts";
import { plainRows, rmsNorm, rmsNormBackward, rmsNormWeightPartials } from "../src/engine/model/kernels/norm.ts";
import { rope, ropeTable } from "../src/engine/model/kernels/rope.ts";
import { sample } from "../src/engine/model/kernels/sample.ts";
import { swiglu, swigluBackward } from "../src/engine/model/kernels/swiglu.ts";
import { ropeFrequencies } from "../src/engine/model/rope.ts";
import { check, heading, openBenchDevice, report, time } from "./harness.ts";

const [C, H, KV, D, F, V] = [64, 8, 4, 8, 172, 512];
const PARAMETERS = 260_032;
const SEQUENCE = 170;
/** Dispatches per timed submit. */
const DISPATCHES = 10;

interface Case {
  readonly name: string;
  /** What the time is divided by: tokens, or rows of a decoding step. */
  readonly units: number;
  readonly kernel: Kernel;
  readonly buffers: Readonly<Record<string, Data>>;
  readonly params: Values<ParamTypes>;
  readonly constants?: Constants;
}

/** A case with its kernel's own types checked, kept without them. */
function bench<B extends BindingKinds, P extends ParamTypes>(
  name: string,
  units: number,
  kernel: Kernel<B, P>,
  run: {
    readonly buffers: { readonly [K in keyof B]: Data };
    readonly params: Values<P>;
    readonly constants?: Constants;
  },
): Case {
  return { name, units, kernel: kernel as unknown as Kernel, ...run } as Case;
}

function floats(length: number, scale = 1): Float32Array {
  return Float32Array.from({ length }, (_, i) => (((i * 7919 + 13) % 1009) / 504 - 1) * scale);
}

function ids(length: number, below: number): Uint32Array {
  return Uint32Array.from({ length }, (_, i) => (i * 7919 + 5) % below);
}

function attentionCases(device: Device, T: number): Case[] {
  const kernels = chooseAttention(device.info, { heads: H, keyHeads: KV, headWidth: D });
  const stride = (H + 2 * KV) * D;
  const strides = { q_stride: stride, q_offset: 0, k_stride: stride, k_offset: H * D };
  const params = {
    tokens: T,
    heads: H,
    key_heads: KV,
    window: WHOLE_SEQUENCE,
    first: 0,
    ...strides,
    v_stride: stride,
    v_offset: (H + KV) * D,
    scale: 1 / Math.sqrt(D),
  };
  const sequenceStart = Uint32Array.from({ length: T }, (_, t) => t - (t % SEQUENCE));
  const sequenceEnd = sequenceStart.map((start) => Math.min(start + SEQUENCE, T));
  const qkv = floats(T * stride);
  const [q, k, v] = [qkv, qkv, qkv];
  const out = floats(T * H * D);
  // Log-sum-exps far above the scores keep every weight small; the time does not depend on the values.
  const statistics = new Float32Array(T * H * 2).fill(8);
  const grads = new Float32Array(T * stride);
  const { constants, backwardKeysConstants } = kernels;
  return [
    bench("attention", T, kernels.forward, {
      buffers: { q, k, v, sequenceStart, out, statistics },
      params,
      constants,
    }),
    bench("attention, gradient of q", T, kernels.backwardQueries, {
      buffers: { q, k, v, out, outGrad: out, sequenceStart, statistics, qGrad: grads },
      params: { ...params, grad_stride: stride, grad_offset: 0 },
      constants,
    }),
    bench("attention, gradient of k, v", T, kernels.backwardKeys, {
      buffers: { q, k, v, outGrad: out, sequenceEnd, statistics, keyValueGrad: grads },
      params: {
        ...params,
        dk_stride: stride,
        dk_offset: H * D,
        dv_stride: stride,
        dv_offset: (H + KV) * D,
      },
      constants: backwardKeysConstants,
    }),
    bench("rope", T, rope, {
      buffers: {
        positions: sequenceStart.map((start, t) => t - start),
        table: ropeTable(SEQUENCE, ropeFrequencies({ headDim: D, ropeTheta: 10_000 })),
        x: qkv,
      },
      params: {
        rows: T * (H + KV),
        width: D,
        per_token: H + KV,
        stride,
        offset: 0,
        shift: 0,
        sign: 1,
      },
    }),
  ];
}

function rowCases(T: number): Case[] {
  const rows = plainRows(T, C);
  const [x, y, weight, inverseRms] = [floats(T * C), floats(T * C, 0.5), floats(C), floats(T)];
  const gateUp = floats(T * 2 * F);
  const active = floats(T * F);
  const shape = { rows: T, width: F };
  const flat = { rows: 1, width: T * C, x_stride: 0, x_offset: 0, y_stride: 0, y_offset: 0 };
  return [
    bench("rmsNorm", T, rmsNorm, {
      buffers: { x, weight, y, inverseRms },
      params: { ...rows, epsilon: 1e-5 },
    }),
    bench("rmsNorm, gradient of x", T, rmsNormBackward, {
      buffers: { x, weight, inverseRms, yGrad: y, xGrad: floats(T * C) },
      params: { ...rows, accumulate: 1 },
    }),
    bench("rmsNorm, gradient of weight", T, rmsNormWeightPartials, {
      buffers: { x, inverseRms, yGrad: y, partials: floats(64 * C) },
      params: { ...rows, partials_stride: C, partials_offset: 0 },
    }),
    bench("swiglu", T, swiglu, { buffers: { gateUp, out: active }, params: shape }),
    bench("swiglu, gradient", T, swigluBackward, {
      buffers: { gateUp, outGrad: active, gateUpGrad: floats(T * 2 * F) },
      params: shape,
    }),
    bench("addScaled", T, addScaled, { buffers: { x, y }, params: { ...flat, scale: 1, accumulate: 1 } }),
    bench("transpose of [C, 2F]", T, transpose, {
      buffers: { x: floats(2 * F * C), y: floats(2 * F * C) },
      params: { rows: C, columns: 2 * F, x_offset: 0, x_stride: 2 * F, y_offset: 0, y_stride: C },
    }),
  ];
}

function vocabularyCases(T: number): Case[] {
  const tokens = ids(T, V);
  const groups = groupByToken(tokens);
  const table = floats(V * C);
  const window = { width: C, first_row: 0, row_count: V };
  const logits = floats(T * V, 3);
  const params = { rows: T, first_row: 0, vocabulary: V, stride: V, inverse_temperature: 1 };
  const perRow = () => new Float32Array(T).fill(6);
  return [
    bench("embedding", T, embedding, {
      buffers: { tokens, table, out: floats(T * C) },
      params: { tokens: T, ...window },
    }),
    bench("embedding, gradient", T, embeddingBackward, {
      buffers: { ...groups, outGrad: floats(T * C), tableGrad: table },
      params: { rows: groups.rows.length, ...window },
    }),
    bench("logprob, entropy", T, logprob, {
      buffers: { logits, targets: tokens, logprobs: perRow(), entropies: perRow(), logSumExps: perRow() },
      params,
    }),
    bench("logprob, gradient", T, logprobBackward, {
      buffers: {
        logits,
        targets: tokens,
        logSumExps: perRow(),
        entropies: perRow(),
        logprobGrads: floats(T),
        entropyGrads: floats(T),
      },
      params,
    }),
  ];
}

function optimiserCases(T: number, count: number): Case[] {
  const variance = floats(count).map(Math.abs);
  return [
    bench("adamw", T, adamw, {
      buffers: {
        gradient: floats(count, 0.01),
        clip: Float32Array.of(1, 1, 0, 0),
        parameter: floats(count),
        mean: floats(count, 0.01),
        variance,
      },
      params: {
        first: 0,
        count,
        learning_rate: 1e-3,
        mean_rate: 0.1,
        variance_rate: 0.001,
        epsilon: 1e-8,
        weight_decay: 0.01,
        correction1: 0.5,
        correction2: 0.5,
      },
    }),
    bench("square sum", T, squareSum, {
      buffers: { x: floats(count), partials: floats(64) },
      params: { count, partials_offset: 0 },
    }),
  ];
}

function decodingCases(device: Device, rows: number): Case[] {
  const { decode, decodeConstants } = chooseAttention(device.info, {
    heads: H,
    keyHeads: KV,
    headWidth: D,
  });
  const row_pages = 16;
  const seeds = Uint32Array.from({ length: rows }, (_, i) => i);
  const positions = new Uint32Array(rows).fill(100);
  const draw = (temperature: number, topP: number, topK: number) =>
    bench(`sample (t ${temperature}, top-p ${topP}, top-k ${topK})`, rows, sample, {
      buffers: {
        logits: floats(rows * V, 3),
        seeds,
        positions,
        settings: Float32Array.from({ length: rows * 4 }, (_, i) => [temperature, topP, topK, 0][i % 4]!),
        next: new Uint32Array(rows),
        tokens: new Uint32Array(rows),
        logprobs: new Float32Array(rows),
      },
      params: { rows, first_row: 0, vocabulary: V, stride: V, shift: 0, history_stride: 1 },
    });
  return [
    bench("attention, 1 query, 101 keys", rows, decode.float32, {
      buffers: {
        q: floats(rows * H * D),
        keys: floats(rows * row_pages * PAGE_TOKENS * KV * D),
        values: floats(rows * row_pages * PAGE_TOKENS * KV * D),
        pages: Uint32Array.from({ length: rows * row_pages }, (_, i) => i),
        positions,
        out: floats(rows * H * D),
      },
      params: {
        rows,
        heads: H,
        key_heads: KV,
        q_stride: H * D,
        q_offset: 0,
        row_pages,
        shift: 0,
        window: WHOLE_SEQUENCE,
        scale: 0.35,
      },
      constants: decodeConstants,
    }),
    draw(0, 1, 0),
    draw(1, 1, 0),
    draw(1, 0.9, 0),
    draw(1, 0.9, 50),
  ];
}

function allCases(device: Device, sizes: { tokens: number; rows: number; parameters: number }): Case[] {
  return [
    ...attentionCases(device, sizes.tokens),
    ...rowCases(sizes.tokens),
    ...vocabularyCases(sizes.tokens),
    ...optimiserCases(sizes.tokens, sizes.parameters),
    ...decodingCases(device, sizes.rows),
  ];
}

/** Uploads a case; arrays that are the same object share a buffer where the kernel only reads them. */
function upload(device: Device, { kernel, buffers }: Case): Record<string, Buffer> {
  const shared = new Map<Data, Buffer>();
  return Object.fromEntries(
    Object.entries(buffers).map(([name, data]) => {
      if (kernel.bindings[name]!.startsWith("write")) return [name, device.upload(data, name)];
      if (!shared.has(data)) shared.set(data, device.upload(data, name));
      return [name, shared.get(data)!];
    }),
  );
}

async function results(device: Device, one: Case): Promise<Data[]> {
  const buffers = upload(device, one);
  device.dispatch(one.kernel, { buffers, params: one.params, constants: one.constants });
  const written = Object.entries(one.kernel.bindings).filter(([, kind]) => kind.startsWith("write"));
  const read = await device.read(
    written.map(([name, kind]) => ({ buffer: buffers[name]!, type: kind.slice(6) as "f32" })),
  );
  device.release(...new Set(Object.values(buffers)));
  return read;
}

async function checkCase(device: Device, one: Case): Promise<void> {
  const [got, wanted] = [await results(device, one), await results(new CpuDevice(), one)];
  const { absolute, relative } = one.kernel.tolerance;
  const isClose = (x: number, y: number) => Math.abs(x - y) <= absolute + relative * Math.abs(y);
  check(
    wanted.every((buffer, b) => buffer.every((value, i) => isClose(got[b]![i]!, value))),
    one.name,
  );
}

/** Bytes that a run must move at least: each distinct array once. */
function leastBytes({ buffers }: Case): number {
  return [...new Set(Object.values(buffers))].reduce((sum, data) => sum + data.byteLength, 0);
}

async function measure(device: Device, one: Case, copied: number): Promise<void> {
  const buffers = upload(device, one);
  const { kernel, params, constants, units, name } = one;
  const dispatches = device.info.kind === "cpu" ? 1 : DISPATCHES;
  const timing = await time(async () => {
    for (let i = 0; i < dispatches; i++) device.dispatch(kernel, { buffers, params, constants });
    await device.submit();
  });
  device.release(...new Set(Object.values(buffers)));
  report({
    what: name,
    detail: `${((timing.median * 1e6) / dispatches / units).toFixed(2)} us each`,
    rate: (leastBytes(one) * dispatches) / timing.median / 1e9,
    unit: "GB/s",
    timing,
    against: { name: "copy", rate: copied / 1e9 },
  });
}

export async function run(): Promise<void> {
  const device = await openBenchDevice();
  for (const one of allCases(device, { tokens: 200, rows: 9, parameters: 1028 })) await checkCase(device, one);
  const { copyBytesPerSecond: copied } = await measureCeilings(device);
  const times = device.info.kind === "cpu" ? "" : `; ${DISPATCHES} runs a time`;
  heading(`Kernels on ${device.info.description}, copy ${(copied / 1e9).toFixed(1)} GB/s${times}`);
  const full = { tokens: 4096, rows: 64, parameters: PARAMETERS };
  for (const one of allCases(device, full)) await measure(device, one, copied);
  device.destroy();
}
