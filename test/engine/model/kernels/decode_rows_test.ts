import { describe, expect, test } from "vitest";
import { readFloats } from "../../../../src/engine/compute/device.ts";
import { decodeRows, STAGE } from "../../../../src/engine/model/kernels/decode_rows.ts";
import { noise, runOnBoth, useDevices } from "./run.ts";

interface Shape {
  readonly rows: number;
  readonly hidden: number;
  readonly inner: number;
  readonly attended: number;
  readonly qkv: number;
}

/** Rows of the embedding table. */
const TOKENS = 7;

const SMALL: Shape = { rows: 5, hidden: 12, inner: 20, attended: 8, qkv: 16 };
const shapes: readonly Shape[] = [
  { ...SMALL, rows: 0 },
  { ...SMALL, rows: 1 },
  SMALL,
  { ...SMALL, rows: 32 },
  { ...SMALL, rows: 33 },
  { rows: 40, hidden: 64, inner: 172, attended: 64, qkv: 128 },
  { rows: 3, hidden: 4, inner: 36, attended: 132, qkv: 68 },
];

function runOf(
  { rows, hidden, inner, attended, qkv }: Shape,
  [first, last, embeds]: readonly [number, number, number],
) {
  const sizes = [attended * hidden, hidden * 2 * inner, inner * hidden, hidden * qkv];
  const starts = sizes.map((_, i) => 4 + sizes.slice(0, i).reduce((sum, size) => sum + size, 0));
  const [o_at = 0, gate_up_at = 0, down_at = 0, qkv_at = 0] = starts.map((at) => at / 4);
  const [x_at, attended_at] = [3, 3 + rows * hidden];
  const normed_at = attended_at + rows * attended;
  const wide_at = normed_at + rows * hidden;
  return {
    buffers: {
      matrices: noise(4 + sizes.reduce((sum, size) => sum + size, 0), 1).map((value) => value / 4),
      vectors: noise((2 + TOKENS) * hidden + 1, 2),
      tokens: Uint32Array.from({ length: rows }, (_, row) => (row * 5) % TOKENS),
      state: noise(wide_at + rows * 2 * inner + 1, 3),
      qkv: noise(rows * qkv + 1, 4),
    },
    params: {
      rows,
      hidden,
      inner,
      attended,
      qkv,
      o_at,
      gate_up_at,
      down_at,
      qkv_at,
      norm_at: 1,
      next_norm_at: 1 + hidden,
      x_at,
      attended_at,
      normed_at,
      wide_at,
      first,
      last,
      epsilon: 1e-5,
      embeds,
      embed_at: 1 + 2 * hidden,
      first_row: 0,
    },
  };
}

describe("decodeRows", () => {
  const devices = useDevices();
  const ranges = [
    [STAGE.output, STAGE.end, 0],
    [STAGE.output, STAGE.qkv, 0],
    [STAGE.qkv, STAGE.end, 0],
    [STAGE.qkv, STAGE.end, 1],
    [STAGE.gateUp, STAGE.down, 0],
    [STAGE.output, STAGE.output, 1],
  ] as const;
  const cases = shapes.flatMap((shape) => ranges.map((range) => ({ shape, range })));

  test.for(cases)("$shape.rows rows of $shape.hidden, stages $range", async ({ shape, range }, context) => {
    // It is a kernel of eight lanes; other adapters never run it.
    if (devices.gpu.info.kind === "webgpu" && devices.gpu.info.subgroupSize !== 8) context.skip();
    const run = runOf(shape, range);
    const got = await runOnBoth(devices, decodeRows, run);
    if (shape.rows > 0) expect([got.state, got.qkv]).not.toEqual([run.buffers.state, run.buffers.qkv]);
    if (range[2] === 0) return;
    const table = run.buffers.vectors.subarray(1 + 2 * shape.hidden);
    for (let row = 0; row < shape.rows; row++) {
      const [from, token] = [run.params.x_at + row * shape.hidden, run.buffers.tokens[row]!];
      expect(got.state!.slice(from, from + shape.hidden)).toEqual(
        table.slice(token * shape.hidden).slice(0, shape.hidden),
      );
    }
  });

  test.each([3, 36])("of %i rows and then the others are those of all rows", async (cut) => {
    const device = devices.gpu;
    if (device.info.kind === "webgpu" && device.info.subgroupSize !== 8) return;
    const { buffers, params } = runOf({ ...SMALL, rows: 40 }, [STAGE.output, STAGE.end, 1]);
    const resultOf = async (runs: readonly { first_row: number; rows: number }[]) => {
      const bound = {
        matrices: device.upload(buffers.matrices, "matrices"),
        vectors: device.upload(buffers.vectors, "vectors"),
        tokens: device.upload(buffers.tokens, "tokens"),
        state: device.upload(buffers.state, "state"),
        qkv: device.upload(buffers.qkv, "qkv"),
      };
      for (const run of runs) device.dispatch(decodeRows, { buffers: bound, params: { ...params, ...run } });
      const read = [await readFloats(device, bound.state), await readFloats(device, bound.qkv)];
      for (const buffer of Object.values(bound)) device.release(buffer);
      return read;
    };
    const whole = await resultOf([{ first_row: 0, rows: 40 }]);
    const inTwo = await resultOf([
      { first_row: 0, rows: cut },
      { first_row: cut, rows: 40 - cut },
    ]);
    expect(inTwo).toEqual(whole);
  });
});
