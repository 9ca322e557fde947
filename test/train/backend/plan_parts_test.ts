/** The work that a plan rehearses, and how it names what lies in memory, in figures. */
import { describe, expect, test } from "vitest";
import { sampledTogether } from "../../../src/train/backend/local/plan/choices.ts";
import { adviceText, doesNotFit, gibibytes } from "../../../src/train/backend/local/plan/fit.ts";
import { partBytes, partsOf } from "../../../src/train/backend/local/plan/parts.ts";
import { planTotals } from "../../../src/train/backend/local/plan/plan.ts";
import type { PlanRequest } from "../../../src/train/backend/local/plan/rehearsal.ts";
import {
  batchTokens,
  DEFAULT_SHAPE,
  fullBatch,
  fullRequests,
  longestRunSequence,
  type RunShape,
} from "../../../src/train/backend/local/plan/run_shape.ts";

const SHAPE: RunShape = { ...DEFAULT_SHAPE, prompts: 3, groupSize: 2, promptTokens: 5, replyTokens: 4 };

describe("the work of a run", () => {
  test("is as long as prompt and reply, within the model's context", () => {
    expect(longestRunSequence(SHAPE, 100)).toBe(9);
    expect(longestRunSequence(SHAPE, 7)).toBe(7);
    expect(longestRunSequence({ ...SHAPE, promptTokens: 1, replyTokens: 0 }, 100)).toBe(2);
    expect(batchTokens(SHAPE, 9)).toBe(54);
  });

  test("is a batch of longest sequences, trained on behind their prompts", () => {
    const { loss } = SHAPE;
    const batch = fullBatch(11, { longest: 4, loss, context: 3 });
    expect([...batch.offsets]).toEqual([0, 4, 8, 11]);
    expect([...batch.mask]).toEqual([0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1]);
    expect(batch.advantages).toEqual({ level: "row", values: new Float32Array(3) });
    for (const array of [batch.tokens, batch.oldLogprobs, batch.rolloutIsWeights]) expect(array).toHaveLength(11);
    expect(batch).not.toHaveProperty("refLogprobs");
    const kl = fullBatch(2, { longest: 2, loss: { ...loss, kl: { type: "k1", coef: 1 } } });
    expect([...kl.mask]).toEqual([0, 1]);
    expect(kl.refLogprobs).toHaveLength(2);
    expect([...fullBatch(8, { longest: 4, loss }).offsets]).toEqual([0, 4, 8]);
    expect([...fullBatch(4, { longest: 4, loss, context: 9 }).mask]).toEqual([0, 0, 0, 1]);
  });

  test("is a request for each sequence, with a prompt of its group alone", () => {
    const requests = fullRequests(5, { shape: SHAPE, longest: 9, vocabSize: 2 });
    expect(requests.map(({ prompt_ids }) => prompt_ids)).toEqual([
      [0, 0, 0, 0, 0],
      [0, 0, 0, 0, 0],
      [1, 0, 0, 0, 0],
      [1, 0, 0, 0, 0],
      [0, 1, 0, 0, 0],
    ]);
    expect(requests.map(({ seed }) => seed)).toEqual([0, 1, 2, 3, 4]);
    expect(requests[0]!.params.max_tokens).toBe(4);
    expect([requests[0]!.ends!([1]), requests[0]!.ends!([1, 1])]).toEqual([false, true]);
    const short = fullRequests(1, { shape: SHAPE, longest: 3, vocabSize: 9 })[0]!;
    expect([short.prompt_ids.length, short.params.max_tokens]).toEqual([2, 1]);
    const empty = fullRequests(1, { shape: { ...SHAPE, promptTokens: 0 }, longest: 4, vocabSize: 9 })[0]!;
    expect([empty.prompt_ids.length, empty.params.max_tokens]).toEqual([1, 3]);
  });

  test("samples a batch at a time, or what validation and the cache say", () => {
    const together = (shape: Partial<RunShape>, options: PlanRequest["options"] = {}) =>
      sampledTogether({ shape: { ...SHAPE, ...shape }, options } as PlanRequest);
    expect(together({})).toBe(6);
    expect(together({ sampled: 40 })).toBe(40);
    expect(together({ sampled: 4000 })).toBe(256);
    expect(together({ sampled: 0 })).toBe(1);
    expect(together({}, { cache: { maxSequences: 4 } })).toBe(4);
    expect(together({}, { cache: { maxSequences: 400 } })).toBe(6);
  });
});

test.each([
  ["weights", "weights"],
  ["weights", "rope angles"],
  ["folded_weights", "folded weights of q"],
  ["reference_weights", "reference weights"],
  ["published_weights", "copied weights"],
  ["published_weights", "frozen weights"],
  ["adapter", "adapter values"],
  ["gradients", "gradients"],
  ["moments", "first moments"],
  ["moments", "second moments"],
  ["kv_cache", "key cache"],
  ["logits", "logits"],
  ["activations", "attention of logits"],
  ["activations", "unpacked weights"],
])("to %s belongs %s", (part, label) => {
  expect(partsOf({ bytes: 3, byLabel: new Map([[label, 3]]) })).toEqual({ [part]: 3 });
});

test("parts add up by name, in the order in which people read them", () => {
  const labels = { logits: 1, hidden: 2, "adapter a": 4, "adapter b": 8, scratch: 16 };
  const parts = partsOf({ bytes: 31, byLabel: new Map(Object.entries(labels)) });
  expect(Object.entries(parts)).toEqual([
    ["adapter", 12],
    ["logits", 1],
    ["activations", 18],
  ]);
  expect(partBytes(parts, "adapter", "weights", "activations")).toBe(30);
});

describe("what does not fit", () => {
  const GIB = 2 ** 30;
  const phase = (name: string, parts: Record<string, number>) => ({
    name,
    parts,
    peakBytes: Object.values(parts).reduce((sum, bytes) => sum + bytes, 0),
  });
  const plan = {
    budget: GIB,
    phases: [
      phase("load", { weights: GIB }),
      phase("sampling", { weights: GIB, kv_cache: 2 * GIB }),
      phase("training", { weights: GIB, reference_weights: GIB / 2, logits: 2 ** 25, activations: 1.5 * GIB }),
    ],
  } as never;

  test("names the largest phase, its three largest parts, and what to set", () => {
    const { message, ...error } = doesNotFit(plan, ["a=1", "b=2 c=3"]);
    expect(message).toBe(
      "Cannot fit the run into the memory budget of 1.00 GiB: training needs at least 3.03 GiB (activations 1.50 GiB, weights 1.00 GiB, reference weights 0.50 GiB). Set a=1, or b=2 c=3 (memory_budget_bytes).",
    );
    expect(error).toMatchObject({ label: "training", bytes: 3 * GIB + 2 ** 25 });
    expect(adviceText([])).toBe("Take a smaller model, or a device with more memory.");
  });

  test("is written in MiB below an eighth of a GiB", () => {
    expect([2 ** 27 - 1, 2 ** 27, 5_500_000, 1].map(gibibytes)).toEqual([
      "128 MiB",
      "0.13 GiB",
      "5.25 MiB",
      "9.54e-7 MiB",
    ]);
  });

  test("sums the last phase for tables, with the cache of sampling", () => {
    expect(planTotals(plan)).toEqual({ weights: 1.5 * GIB, adapter: 0, optimizer: 0, kv: 2 * GIB });
  });
});
