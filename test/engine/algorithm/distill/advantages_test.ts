import { describe, expect, test } from "vitest";
import { distillationAdvantages } from "../../../../src/engine/algorithm/distill/advantages.ts";

/** Two rows: a prompt token and three sampled ones, the second of which the mask excludes; one sampled token. */
const BATCH = {
  offsets: Uint32Array.of(0, 4, 6),
  mask: Uint32Array.of(0, 1, 0, 1, 0, 1),
  logprobs: [0, -1, -9, -2, 0, -0.5],
  teacherLogprobs: [0, -3, -1, -1.5, 0, -0.5],
};

describe("advantages of on-policy distillation", () => {
  test.each<[string, Parameters<typeof distillationAdvantages>[1], number[]]>([
    ["are log p_teacher - log p_student at trained tokens", {}, [0, -2, 0, 0.5, 0, 0]],
    ["are scaled by the coefficient", { coef: 0.5 }, [0, -1, 0, 0.25, 0, 0]],
    ["are bounded on both sides", { clamp: 0.4 }, [0, -0.4, 0, 0.4, 0, 0]],
    // The cookbook's discounted_future_sum over all tokens of a row: the excluded one lies between the two.
    ["add those of the row's later tokens", { discount: 0.5 }, [0, -2 + 0.25 * 0.5, 0, 0.5, 0, 0]],
    ["take another estimate: k2", { kl: "k2" }, [0, -2, 0, -0.125, 0, 0]],
    ["are bounded before the coefficient", { clamp: 1, coef: 3 }, [0, -3, 0, 1.5, 0, 0]],
  ])("%s", (_, options, expected) => {
    const found = [...distillationAdvantages(BATCH, options)];
    for (const [t, value] of expected.entries()) expect(found[t]).toBeCloseTo(value, 6);
  });

  test("a token that the teacher excludes is refused, and bounded where asked for", () => {
    const teacherLogprobs = [0, Number.NEGATIVE_INFINITY, 0, -1.5, 0, -0.5];
    expect(() => distillationAdvantages({ ...BATCH, teacherLogprobs })).toThrow(
      /token 1 must be finite.*-Infinity of the teacher/,
    );
    expect(distillationAdvantages({ ...BATCH, teacherLogprobs }, { clamp: 5 })[1]).toBe(-5);
  });
});
