/** Figures of the Tinker backend's own arithmetic: weights of tokens, metrics, rows as data and back. */
import { describe, expect, test } from "vitest";
import type { LossSpec, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { atTokens, chunked, datumsOf, type TrainingDatum } from "../../../src/train/backend/tinker/datums.ts";
import { serviceLoss, slopesAsWeights } from "../../../src/train/backend/tinker/service_loss.ts";
import { trainingMetrics } from "../../../src/train/backend/tinker/training_metrics.ts";
import { checkedOutput, joinOutputMetrics } from "../../../src/train/backend/tinker/training_output.ts";
import { perRow } from "../../fixtures/advantages.ts";

/** Rows of 3, 1 and 2 tokens. */
const BATCH: TrainBatch = {
  offsets: Uint32Array.of(0, 3, 4, 6),
  tokens: Uint32Array.of(5, 6, 70_000, 8, 9, 10),
  mask: Uint32Array.of(0, 1, 1, 0, 0, 1),
  advantages: perRow(3, 8, -6),
  oldLogprobs: Float32Array.of(0, -1, -2, 0, 0, -3),
  rolloutLogprobs: Float32Array.of(0, -1.5, -2, 0, 0, -4),
};
const spec = (more: Partial<LossSpec> = {}): LossSpec => ({
  name: "ppo",
  loss_agg_mode: "token-mean",
  settings: { clip_low_threshold: 0.8, clip_high_threshold: 1.2 },
  entropy_coeff: 0,
  temperature: 1,
  ...more,
});

describe("a loss in the service's terms", () => {
  test.each<[string, Partial<LossSpec>, Partial<TrainBatch>, number[]]>([
    ["a mean over tokens", {}, {}, [0, 1, 1, 0, 0, -2]],
    ["a sum over tokens", { loss_agg_mode: "token-sum" }, {}, [0, 3, 3, 0, 0, -6]],
    ["the sampler's correction", {}, { rolloutIsWeights: Float32Array.of(9, 0.5, 2, 9, 9, 0) }, [0, 0.5, 2, 0, 0, -0]],
  ])("has %s in its advantages, and 0 at tokens that are not trained", (_, loss, batch, expected) => {
    const { lossFn, config, inputs } = serviceLoss({ ...BATCH, ...batch }, spec(loss))!;
    expect([...inputs.advantages!]).toEqual(expected);
    expect({ lossFn, config, logprobs: inputs.logprobs }).toEqual({
      lossFn: "ppo",
      config: { clip_low_threshold: 0.8, clip_high_threshold: 1.2 },
      logprobs: BATCH.oldLogprobs,
    });
  });

  test.each<[string, LossSpec, string | undefined]>([
    ["importance_sampling", spec({ name: "importance_sampling", settings: {} }), "importance_sampling"],
    ["tinker.cispo", spec({ name: "tinker.cispo" }), "cispo"],
    ["tinker.gspo", spec({ name: "tinker.gspo" }), "gspo"],
    ["verl's gspo", spec({ name: "gspo", settings: {} }), undefined],
    ["verl's cispo", spec({ name: "cispo", settings: {} }), undefined],
    ["vanilla", spec({ name: "vanilla", settings: {} }), undefined],
    ["a KL term", spec({ kl: { type: "kl", coef: 0.1 } }), undefined],
  ])("%s", (_, loss, lossFn) => {
    expect(serviceLoss(BATCH, loss)?.lossFn).toBe(lossFn);
  });

  test("by sequence counts the trained tokens in its ratio", () => {
    const { config, inputs } = serviceLoss(BATCH, spec({ name: "tinker.gspo" }))!;
    expect(Object.keys(inputs)).toEqual(["logprobs", "advantages", "sequence_ratio_mask"]);
    expect([...inputs.sequence_ratio_mask!]).toEqual([...BATCH.mask]);
    expect(config).toEqual({ clip_low_threshold: 0.8, clip_high_threshold: 1.2 });
  });

  test("without old log-probs is a cross-entropy", () => {
    const { lossFn, config, inputs } = serviceLoss({ ...BATCH, oldLogprobs: undefined }, spec())!;
    expect({ lossFn, config, names: Object.keys(inputs) }).toEqual({
      lossFn: "cross_entropy",
      config: {},
      names: ["weights"],
    });
    expect([...inputs.weights!]).toEqual([0, 1, 1, 0, 0, -2]);
  });

  test("slopes become weights of the other sign, and 0 stays 0", () => {
    const loss = { loss: 0, metrics: {}, dlogprobs: Float64Array.of(0.5, 0, -2) };
    expect([...slopesAsWeights(loss)]).toEqual([-0.5, 0, 2]);
  });
});

describe("metrics", () => {
  const of = (batch: TrainBatch) =>
    trainingMetrics(batch, {
      loss: { loss: 0.5, metrics: { "actor/ppo_kl": 0.25 } },
      logprobs: Float32Array.of(0, -1, -4, 0, 0, -3),
      metrics: { "loss:sum": 7 },
    });
  const loss = { "actor/loss": 0.5, "actor/pg_loss": 0.5, "actor/ppo_kl": 0.25, "train/loss/sum": 7 };

  // q - p is -0.5, 2 and -1 at the trained tokens.
  test("compare the sampler with the trainer at the trained tokens", () => {
    const { "optim/kl_sample_train_v1": v1, "optim/kl_sample_train_v2": v2, ...others } = of(BATCH);
    expect(v1).toBeCloseTo(0.5 / 3, 12);
    expect(v2).toBeCloseTo(5.25 / 6, 12);
    expect(others).toEqual({ ...loss, "optim/entropy": 2.5 });
  });

  test("are those of the loss without the sampler's log-probs", () => {
    const { rolloutLogprobs, ...rest } = BATCH;
    expect(of(rest)).toEqual(loss);
  });

  test("of several requests are joined by their reduction", () => {
    const rows = (count: number) => Array<Float32Array>(count).fill(Float32Array.of(0));
    const joined = joinOutputMetrics([
      { logprobs: rows(1), metrics: { "a:sum": 1, "a:mean": 4, "a:min": 2, "a:max": 2, "a:other": 5 } },
      { logprobs: rows(3), metrics: { "a:sum": 2, "a:mean": 8, "a:min": -1, "a:max": 9, "a:other": 6 } },
      { logprobs: rows(4), metrics: { "a:sum": 4, "a:mean": 0, "a:min": 3, "a:max": 3, "b:sum": 1 } },
    ]);
    expect(joined).toEqual({ "a:sum": 7, "a:mean": 3.5, "a:min": -1, "a:max": 9, "a:other": 5, "b:sum": 1 });
  });
});

describe("rows as data", () => {
  test("every token but the last is an input, every one but the first a target; a row of one token is left out", () => {
    const data = datumsOf(BATCH, { inputs: { weights: Float32Array.of(0, 1, 2, 3, 4, 5) } });
    expect(data).toEqual([
      {
        tokens: Int32Array.of(5, 6),
        inputs: { target_tokens: BigInt64Array.of(6n, 70_000n), weights: Float32Array.of(1, 2) },
      },
      {
        tokens: Int32Array.of(9),
        inputs: { target_tokens: BigInt64Array.of(10n), weights: Float32Array.of(5) },
      },
    ]);
    expect([...atTokens([Float32Array.of(-1, -2), Float32Array.of(-5)], BATCH)]).toEqual([0, -1, -2, 0, 0, -5]);
  });

  // A datum of L tokens counts as 16 + 4 L, and 32 + 8 L for its targets.
  test.each([
    [2, 1e6, [2, 2, 1]],
    [9, 120, [2, 2, 1]],
    [9, 119, [1, 1, 1, 1, 1]],
    [9, 1, [1, 1, 1, 1, 1]],
    [9, 1e6, [5]],
  ])("requests of at most %d data and %d bytes", (most, mostBytes, sizes) => {
    const datum: TrainingDatum = { tokens: Int32Array.of(1), inputs: { target_tokens: BigInt64Array.of(2n) } };
    const flags = {
      fwdbwd_max_chunk_len: most,
      fwdbwd_max_chunk_bytes_count: mostBytes,
      sample_max_concurrent_requests: 1,
    };
    expect([...chunked(Array<TrainingDatum>(5).fill(datum), flags)].map(({ length }) => length)).toEqual(sizes);
    expect([...chunked([], flags)]).toEqual([]);
  });

  test.each([
    ["a row too few", [Float32Array.of(0, 0)]],
    ["a row of another length", [Float32Array.of(0, 0), Float32Array.of(0, 0)]],
  ])("log-probs of %s are refused", (_, logprobs) => {
    const data = datumsOf(BATCH, { inputs: {} });
    expect(() => checkedOutput({ logprobs, metrics: {} }, data)).toThrow(/for a request of 2 rows/);
  });
});
