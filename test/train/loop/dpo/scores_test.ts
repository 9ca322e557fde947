/** The log-probs and entropies that a preference loss reads, of a backend that answers by a formula. */
import { describe, expect, test } from "vitest";
import type { Backend } from "../../../../src/engine/contract/backend.ts";
import type { EncodedPreference } from "../../../../src/train/loop/dpo/encode.ts";
import { ReferenceScores, scorePreferences } from "../../../../src/train/loop/dpo/scores.ts";

const AT = { file: "made.jsonl", line: 1 };
const row = (prompt: readonly number[], answer: readonly number[]) => ({
  ids: [...prompt, ...answer],
  mask: [...prompt.map(() => 0), ...answer.map(() => 1)],
  ...AT,
});
const pair = (i: number): EncodedPreference => ({ rows: [row([1, 2], [3 + i, 4]), row([1, 2], [5])], ...AT });

type Call = Parameters<Backend["logprobs"]>;

/** log p = -id / 10 under the policy and -id / 5 under the reference; the entropy of a token is its id. */
function formulaBackend({ measures = true }: { measures?: boolean } = {}) {
  const calls: { rows: number; policy: string; asked: number }[] = [];
  const longest: number[] = [];
  const logprobs = async ({ tokens, offsets }: Call[0], { policy, mask }: Call[1]) => {
    calls.push({ rows: offsets.length - 1, policy, asked: mask!.reduce((sum, each) => sum + each, 0) });
    longest.push(Math.max(...Array.from(offsets.subarray(1), (end, i) => end - offsets[i]!)));
    const scale = policy === "current" ? 10 : 5;
    const of = (value: (id: number) => number) => Float32Array.from(tokens, (id, t) => (mask![t] ? value(id) : 0));
    return { logprobs: of((id) => -id / scale), ...(measures && { entropy: of((id) => id) }) };
  };
  return { backend: { logprobs } as unknown as Backend, calls, longest };
}

const score = (preferences: readonly EncodedPreference[], { backend }: { backend: Backend }, loss_type = "sigmoid") =>
  scorePreferences(
    preferences,
    { backend, spec: { loss_type }, maxLength: 16, reference: new ReferenceScores() },
    new AbortController().signal,
  );

describe("the entropy of a step", () => {
  test("is the mean over the tokens of the answers, not of the prompts", async () => {
    const { metrics } = await score([pair(0), pair(2)], formulaBackend());
    expect(metrics.entropy).toBeCloseTo((3 + 4 + 5 + (5 + 4 + 5)) / 6, 6);
  });

  test("leaves out the prompts where the loss reads them too", async () => {
    const { backend, calls } = formulaBackend();
    const { metrics } = await score([pair(0)], { backend }, "orpo");
    // All but the first tokens of both rows.
    expect(calls).toEqual([{ rows: 2, policy: "current", asked: 3 + 2 }]);
    expect(metrics.entropy).toBeCloseTo((3 + 4 + 5) / 3, 6);
  });

  test("is missing where the backend measures none", async () => {
    expect((await score([pair(0)], formulaBackend({ measures: false }))).metrics).not.toHaveProperty("entropy");
  });

  test("is that of all calls where the rows take several", async () => {
    const many = Array.from({ length: 70 }, (_, i) => pair(i % 3));
    const { backend, calls } = formulaBackend();
    const { metrics } = await score(many, { backend });
    expect(calls.filter(({ policy }) => policy === "current").map(({ rows }) => rows)).toEqual([128, 12]);
    const ids = many.flatMap(({ rows }) => rows.flatMap(({ ids, mask }) => ids.filter((_, t) => mask[t] === 1)));
    expect(metrics.entropy).toBeCloseTo(ids.reduce((sum, id) => sum + id, 0) / ids.length, 4);
  });
});

test("the loss is DPO's, of the log-ratios of both answers", async () => {
  const { loss, dlogprobs } = await score([pair(0)], formulaBackend());
  // Policy minus reference: id / 10 per token.
  const margin = 0.1 * ((3 + 4) / 10 - 5 / 10);
  expect(loss).toBeCloseTo(Math.log1p(Math.exp(-margin)), 6);
  const slope = 0.1 / (1 + Math.exp(margin));
  for (const [t, expected] of [0, 0, -slope, -slope, 0, 0, slope].entries())
    expect(dlogprobs[t]).toBeCloseTo(expected, 6);
});

test("the loss over rows that take several calls is the mean of the losses of each pair", async () => {
  const many = Array.from({ length: 70 }, (_, i) => pair(i));
  const { backend, calls } = formulaBackend();
  const { loss, dlogprobs, metrics } = await score(many, { backend });
  expect(calls.map(({ rows }) => rows)).toEqual([128, 12, 128, 12]);
  const alone = [];
  for (const each of many) alone.push(await score([each], { backend }));
  const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  expect(loss).toBeCloseTo(mean(alone.map((one) => one.loss)), 6);
  expect(metrics["rewards/margins"]).toBeCloseTo(mean(alone.map((one) => one.metrics["rewards/margins"]!)), 5);
  const slopes = alone.flatMap((one) => [...one.dlogprobs]);
  expect(dlogprobs).toHaveLength(slopes.length);
  for (const [t, slope] of slopes.entries()) expect(dlogprobs[t]).toBeCloseTo(slope / many.length, 8);
});

test.each([
  ["is NaN", Number.NaN, /preference loss sigmoid: .*Lower the learning rate.*\(made\.jsonl:4\)/],
  ["makes an infinite loss of ORPO", 0, /preference loss orpo: .*Remove the row.*\(made\.jsonl:4\)/],
])("a log-prob that %s is refused with the file and line of its row", async (_, logprob, message) => {
  const at = (line: number) => ({ ...pair(0), rows: pair(0).rows.map((each) => ({ ...each, line })) });
  const { backend } = formulaBackend();
  const broken: Pick<Backend, "logprobs"> = {
    logprobs: async (batch, options) => {
      const scores = await backend.logprobs(batch, options);
      // The rejected answer of the second pair.
      if (options.policy === "current") scores.logprobs.fill(logprob, batch.offsets[3], batch.offsets[4]);
      return scores;
    },
  };
  const loss_type = Number.isNaN(logprob) ? "sigmoid" : "orpo";
  await expect(score([at(3), at(4)], { backend: broken as Backend }, loss_type)).rejects.toThrow(message);
});

test.each<[maxLength: number, kl: number]>([
  // Log-ratios of the other row's answer behind each prompt: 0.5 for [5], 0.7 for [3, 4].
  [16, (0.5 + 0.7) / 2],
  [3, (0.5 + 0.7) / 2],
  // The second answer is cut to [3] where the prompt is one token, the first one is cut off.
  [2, (0 + 0.3) / 2],
])("kto's baseline over rows of at most %i tokens is %d", async (maxLength, kl) => {
  const labelled = (label: boolean, of: EncodedPreference["rows"][number]) => ({ rows: [of], label, ...AT });
  const rows = [labelled(true, row([1, 2], [3, 4])), labelled(false, row([1], [5]))];
  const { longest, ...given } = formulaBackend();
  const { metrics } = await scorePreferences(
    rows,
    { ...given, spec: { loss_type: "kto" }, maxLength, reference: new ReferenceScores() },
    new AbortController().signal,
  );
  expect(metrics.kl).toBeCloseTo(kl, 6);
  // The last two calls are those of the baseline.
  expect(Math.max(...longest.slice(-2))).toBe(Math.min(maxLength, 4 - 1));
});

test("the reference is asked once for each row", async () => {
  const { backend, calls } = formulaBackend();
  const reference = new ReferenceScores();
  const [one, other] = [pair(0), pair(1)];
  for (const preferences of [[one], [one, other], [other]])
    await scorePreferences(
      preferences,
      { backend, spec: { loss_type: "sigmoid" }, maxLength: 16, reference },
      new AbortController().signal,
    );
  expect(calls.filter(({ policy }) => policy === "reference").map(({ rows }) => rows)).toEqual([2, 2]);
});
