/**
 * Contexts of several chunks of keys on GPUs: where few rows decode, a workgroup takes each chunk; where many do, one takes all. Either
 * way, and in scoring, a row's log-probs have the same bits.
 */
import { expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import type { SampleRequest } from "../../../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../../../src/engine/model/config.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { changed } from "../../../fixtures/changed_device.ts";
import { gpuDevice } from "../../../fixtures/devices.ts";
import { pack } from "../../../fixtures/golden_model.ts";
import { uniform } from "../../../fixtures/numbers.ts";

const CONFIG: ModelConfig = {
  architecture: "gemma3_text",
  vocabSize: 199,
  hiddenSize: 64,
  intermediateSize: 64,
  layers: 2,
  heads: 6,
  kvHeads: 2,
  headDim: 16,
  contextLength: 1400,
  rmsNormEps: 1e-6,
  ropeTheta: 10_000,
  tied: true,
  qkNorm: true,
  qkvBias: false,
  slidingWindow: 300,
  layerTypes: ["sliding_attention", "full_attention"],
  eosTokenIds: [],
};
const TEMPERATURE = 0.7;

/** A GPU's kernels, and those of a decoding step's attention that were dispatched. */
function watched(device: Device) {
  const kernels = new Set<string>();
  const dispatch: Device["dispatch"] = (kernel, options) => {
    if (kernel.name.startsWith("decode/attention_")) kernels.add(kernel.name);
    device.dispatch(kernel, options);
  };
  return { kernels, device: changed(device, { dispatch, info: { ...device.info, family: "tiled" } }) };
}

test.skipIf(!gpuDevice).each(["float32", "bfloat16"] as const)(
  "a long context has the same bits by chunks and whole, with a cache of %s",
  { timeout: 240_000 },
  async (dtype) => {
    const { kernels, device } = watched(gpuDevice!);
    const model = LanguageModel.create(device, CONFIG, { seed: 4, cache: { dtype } });
    const next = uniform(7);
    const request = (length: number, max_tokens: number): SampleRequest => ({
      prompt_ids: Array.from({ length }, () => Math.floor(next() * CONFIG.vocabSize)),
      seed: length,
      params: { temperature: TEMPERATURE, top_p: 1, top_k: -1, max_tokens, stop_token_ids: [] },
    });
    const sample = async (requests: readonly SampleRequest[]) => {
      kernels.clear();
      const drawn = await model.sample(requests, { weightVersion: 0 });
      return { drawn, kernels: [...kernels].sort() };
    };
    const long = [request(1200, 30), request(250, 20), request(761, 20)];
    const [chunks, step] = ["chunks", "tiled"].map(
      (kind) => `decode/attention_step_${kind}${dtype === "float32" ? "" : "_bfloat16"}`,
    );

    const few = await sample(long);
    expect(few.kernels).toEqual(["decode/attention_merge", chunks]);
    const crowd = Array.from({ length: 70 }, (_, i) => request(1 + (i % 5), 30));
    const many = await sample([...crowd, ...long]);
    expect(many.kernels).toContain(step);
    expect(many.drawn.slice(crowd.length)).toEqual(few.drawn);
    for (const [i, row] of long.entries()) {
      const alone = await sample([row]);
      expect(alone.drawn[0]).toEqual(few.drawn[i]);
      // A short context takes one dispatch.
      expect(alone.kernels).toEqual(i === 0 ? ["decode/attention_merge", chunks] : [step]);
    }
    // Pieces of a prompt end within chunks.
    const options = { seed: 4, cache: { dtype }, maxBatchedTokens: 112 };
    const inPieces = LanguageModel.create(device, CONFIG, options);
    expect(await inPieces.sample(long, { weightVersion: 0 })).toEqual(few.drawn);
    inPieces.release();
    if (dtype === "float32") {
      const rows = pack(long.map(({ prompt_ids }, i) => [...prompt_ids, ...few.drawn[i]!.tokens]));
      const { logprobs } = await model.logprobs(rows, { policy: "current", temperature: TEMPERATURE });
      for (const [i, { prompt_ids }] of long.entries()) {
        const scored = logprobs.slice(rows.offsets[i]! + prompt_ids.length, rows.offsets[i + 1]);
        expect([...scored]).toEqual([...few.drawn[i]!.logprobs]);
      }
    }
    model.release();
  },
);
