import { expect, test } from "vitest";
import { recordHeadLogprobs } from "../../../src/engine/algorithm/logprobs/head.ts";
import { recordLogprobs } from "../../../src/engine/algorithm/logprobs/logits.ts";
import { type Device, readFloats } from "../../../src/engine/compute/device.ts";
import { mulberry32 } from "../../../src/leaves/random.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { furthest } from "./golden.ts";

const CLOSE = { relative: 5e-5, absolute: 5e-6 };

interface Case {
  rows: number;
  vocabulary: number;
  logits: Float32Array;
  targets: Uint32Array;
}

function makeCase(rows: number, vocabulary: number, stride = vocabulary): Case {
  const next = mulberry32(rows * 31 + vocabulary);
  return {
    rows,
    vocabulary,
    logits: Float32Array.from({ length: rows * stride }, () => 6 * (next() - 0.5)),
    targets: Uint32Array.from({ length: rows }, (_, r) => (r === 0 ? vocabulary - 1 : Math.floor(next() * vocabulary))),
  };
}

/** The statistics by their definitions, in float64. */
function expected({ rows, vocabulary, logits, targets }: Case, { stride = vocabulary, temperature = 1 } = {}) {
  const logprobs: number[] = [];
  const entropies: number[] = [];
  const sumPiSquared: number[] = [];
  for (let r = 0; r < rows; r++) {
    const z = Array.from(logits.subarray(r * stride, r * stride + vocabulary), (x) => x / temperature);
    const most = z.reduce((a, b) => Math.max(a, b));
    const lse = most + Math.log(z.reduce((sum, x) => sum + Math.exp(x - most), 0));
    const p = z.map((x) => Math.exp(x - lse));
    logprobs.push(z[targets[r]!]! - lse);
    entropies.push(p.reduce((sum, q, j) => sum - q * (z[j]! - lse), 0));
    sumPiSquared.push(p.reduce((sum, q) => sum + q * q, 0));
  }
  return { logprobs, entropies, sumPiSquared };
}

async function statistics(device: Device, c: Case, options: { stride?: number; temperature?: number } = {}) {
  const logits = device.upload(c.logits, "logits");
  const targets = device.upload(c.targets, "targets");
  const recorded = recordLogprobs(device, {
    ...options,
    rows: c.rows,
    vocabulary: c.vocabulary,
    logits,
    targets,
  });
  const got = {
    logprobs: await readFloats(device, recorded.logprobs),
    entropies: await readFloats(device, recorded.entropies),
    sumPiSquared: await readFloats(device, recorded.sumPiSquared),
  };
  const release = () => {
    recorded.release();
    device.release(logits, targets);
  };
  return { ...got, recorded, logits, release };
}

overDevices("statistics of logits", (device) => {
  test.each([
    [1, 4, 4, 1],
    [3, 17, 20, 0.7],
    [65, 100, 100, 1],
    [9, 1023, 1024, 2],
  ])("%i rows of %i (stride %i, temperature %f)", async (rows, vocabulary, stride, temperature) => {
    const c = makeCase(rows, vocabulary, stride);
    const want = expected(c, { stride, temperature });
    const got = await statistics(device, c, { stride, temperature });
    for (const key of ["logprobs", "entropies", "sumPiSquared"] as const)
      expect(furthest(got[key], want[key], CLOSE), key).toBeUndefined();
    got.release();
  });

  test.runIf(device.info.kind === "webgpu")("151,936 tokens of vocabulary, and rows beyond one binding", async () => {
    const c = makeCase(260, 151_936);
    const got = await statistics(device, c);
    const tail = {
      ...c,
      rows: 1,
      logits: c.logits.subarray(259 * c.vocabulary),
      targets: c.targets.subarray(259),
    };
    const want = expected(tail);
    for (const key of ["logprobs", "entropies", "sumPiSquared"] as const)
      expect(furthest(got[key].subarray(259), want[key], CLOSE), key).toBeUndefined();
    got.release();
  });

  test("the gradient equals finite differences of a log-prob + b entropy", async () => {
    const c = makeCase(2, 9, 12);
    const options = { stride: 12, temperature: 0.8 };
    const [a, b] = [
      [0.7, -1.3],
      [0.4, 0.2],
    ];
    const dlogprobs = device.upload(Float32Array.from(a), "a");
    const dentropy = device.upload(Float32Array.from(b), "b");
    const got = await statistics(device, c, options);
    got.recorded.backward({ dlogprobs, dentropy });
    const gradient = await readFloats(device, got.logits, 24);
    const at = (j: number, h: number) => {
      const moved = { ...c, logits: Float64Array.from(c.logits) as unknown as Float32Array };
      moved.logits[j]! += h;
      const { logprobs, entropies } = expected(moved, options);
      return logprobs.reduce((sum, x, r) => sum + a[r]! * x + b[r]! * entropies[r]!, 0);
    };
    const h = 1e-5;
    const want = Float64Array.from({ length: 24 }, (_, j) => (j % 12 < 9 ? (at(j, h) - at(j, -h)) / (2 * h) : 0));
    expect(furthest(gradient, want, { relative: 1e-4, absolute: 1e-5 })).toBeUndefined();
    got.release();
    device.release(dlogprobs, dentropy);
  });

  test.each([64, 128, 256])(
    "the fused head equals materialised logits, in pieces of %i columns",
    async (columnsPerPiece) => {
      const [rows, channels, vocabulary] = [37, 16, 200];
      const next = mulberry32(7);
      const floats = (length: number) => Float32Array.from({ length }, () => next() - 0.5);
      const [h, w] = [floats(rows * channels), floats(vocabulary * channels)];
      const logits = new Float32Array(rows * vocabulary);
      for (let r = 0; r < rows; r++)
        for (let v = 0; v < vocabulary; v++)
          for (let k = 0; k < channels; k++) logits[r * vocabulary + v]! += h[r * channels + k]! * w[v * channels + k]!;
      const c = { ...makeCase(rows, vocabulary), logits };
      const dlogprobs = device.upload(floats(rows), "a");
      const dentropy = device.upload(floats(rows), "b");
      const plain = await statistics(device, c);
      plain.recorded.backward({ dlogprobs, dentropy });
      const dlogits = await readFloats(device, plain.logits, rows * vocabulary);

      const [hidden, head] = [device.upload(h, "hidden"), device.upload(w, "head")];
      const targets = device.upload(c.targets, "targets");
      const fused = recordHeadLogprobs(device, {
        rows,
        channels,
        vocabulary,
        hidden,
        head,
        targets,
        columnsPerPiece,
      });
      expect(furthest(await readFloats(device, fused.logprobs), plain.logprobs, CLOSE)).toBeUndefined();
      expect(furthest(await readFloats(device, fused.entropies), plain.entropies, CLOSE)).toBeUndefined();
      expect(furthest(await readFloats(device, fused.sumPiSquared), plain.sumPiSquared, CLOSE)).toBeUndefined();
      const { dhidden, dhead } = fused.backward({ dlogprobs, dentropy });
      const wantHidden = new Float64Array(rows * channels);
      const wantHead = new Float64Array(vocabulary * channels);
      for (let r = 0; r < rows; r++)
        for (let v = 0; v < vocabulary; v++)
          for (let k = 0; k < channels; k++) {
            wantHidden[r * channels + k]! += dlogits[r * vocabulary + v]! * w[v * channels + k]!;
            wantHead[v * channels + k]! += dlogits[r * vocabulary + v]! * h[r * channels + k]!;
          }
      expect(furthest(await readFloats(device, dhidden), wantHidden, CLOSE)).toBeUndefined();
      expect(furthest(await readFloats(device, dhead), wantHead, CLOSE)).toBeUndefined();
      fused.release();
      plain.release();
      device.release(dlogprobs, dentropy, hidden, head, targets, dhidden, dhead);
    },
  );
});
