/** Which tokens a selection takes, and how the parts of a loss lie on the device, in figures. */
import { describe, expect, test } from "vitest";
import { planLoss } from "../../../src/engine/algorithm/loss/definition.ts";
import { lossEntropy } from "../../../src/engine/algorithm/loss/entropy_kernel.ts";
import { findLoss } from "../../../src/engine/algorithm/loss/losses.ts";
import { hashToken, selectedCount, selectTokens } from "../../../src/engine/algorithm/loss/selection.ts";
import { layOutWorkspace, windowsOf } from "../../../src/engine/algorithm/loss/workspace.ts";

describe("selected tokens", () => {
  const streams = (
    advantages: number[],
    { old, logprobs = [-1, -2, -3, -4] }: { old?: number[]; logprobs?: number[] } = {},
  ) =>
    ({
      ...{ logprobs, mask: Uint32Array.of(1, 1, 1, 1), old, row: () => 0 },
      advantage: (t: number) => advantages[t]!,
    }) as never;
  const chosen = (selection: object, s = streams([2, 1, -1, -2])) => {
    const isChosen = selectTokens(
      { ratio: 0.5, lower: 0, upper: 99, seed: 1, low: 0, high: 9, ...selection } as never,
      s,
      4,
    );
    return [0, 1, 2, 3].filter(isChosen);
  };

  test("are the largest covariances, the first of equal ones, and one at least", () => {
    // Covariances 3, 0.5, 0.5, 3.
    expect(chosen({ kind: "largest" })).toEqual([0, 3]);
    expect(chosen({ kind: "largest", ratio: 0.25 })).toEqual([0]);
    expect(chosen({ kind: "largest", ratio: 0 })).toEqual([0]);
    expect(chosen({ kind: "largest", ratio: 0.75 })).toEqual([0, 1, 3]);
    expect([selectedCount({ ratio: 0.5 } as never, 5), selectedCount({ ratio: 0.1 } as never, 5)]).toEqual([2, 1]);
  });

  test("lie strictly between the bounds, and are not clipped already", () => {
    const all = { kind: "random-between", ratio: 1 };
    expect(chosen(all)).toEqual([0, 1, 2, 3]);
    expect(chosen({ ...all, lower: 1 })).toEqual([0, 3]);
    expect(chosen({ ...all, upper: 1 })).toEqual([1, 2]);
    const zero = streams([1, 0, 0, -1], { logprobs: [-1, -2, -2, -3] });
    expect(chosen(all, zero)).toEqual([0, 3]);
    expect(chosen({ ...all, lower: -9, upper: 0 }, zero)).toEqual([]);
    // Ratios of e: clipped upwards, where the advantage is positive.
    const moved = streams([2, 1, -1, -2], { old: [-2, -3, -4, -5] });
    expect(chosen({ ...all, high: 1.2 }, moved)).toEqual([2, 3]);
    expect(chosen({ ...all, low: 3, high: 4 }, moved)).toEqual([0, 1]);
  });

  test("are drawn by PCG's hash of token and seed", () => {
    const order = [0, 1, 2, 3].sort((t, u) => hashToken(u, 1) - hashToken(t, 1));
    expect(chosen({ kind: "random-between", ratio: 0.25 })).toEqual(order.slice(0, 1));
    expect(new Set([0, 1, 2, 3].map((seed) => hashToken(5, seed))).size).toBe(4);
  });
});

test("the workspace of a loss holds its parts one after the other, in slices of 64", () => {
  expect(layOutWorkspace(10, 0, 64)).toMatchObject({ rowStride: 64, windows: 1, partialsAt: 256 });
  expect(layOutWorkspace(129, 65, 64)).toEqual({
    ...{ rowStride: 128, partialsAt: 512, windows: 3 },
    ...{ entropyAt: 512 + 3 * 2048, thresholdAt: 512 + 3 * 2048 + 192, length: 512 + 3 * 2048 + 192 + 64 },
  });
  expect(windowsOf(130, 64)).toEqual([
    { first: 0, tokens: 64 },
    { first: 64, tokens: 64 },
    { first: 128, tokens: 2 },
  ]);
});

describe("the reference of the fused pass", () => {
  // A row table of 64 rows, then the sums of 256 workgroups, then the threshold.
  const [PARTIALS, THRESHOLD] = [256, 256 + 2048];
  const run = (
    tokens: number,
    { loss = "gpg", ...constants }: { loss?: string; [constant: string]: unknown },
    { dlogprobs = new Float32Array(tokens), mask = [] as number[] } = {},
  ) => {
    const workspace = new Float32Array(THRESHOLD + 64);
    new Uint32Array(workspace.buffer)[THRESHOLD] = 7;
    const ones = new Uint32Array(tokens).fill(1);
    ones.set(mask);
    const given = { logprobs: new Float32Array(tokens).fill(-2), slot1: new Float32Array(tokens).fill(1) };
    const others = { slot2: new Float32Array(tokens).fill(-3), slot3: new Float32Array(tokens) };
    planLoss(findLoss(loss), {}).form.kernel!.reference(
      { ...given, ...others, mask: ones, row_of_token: new Uint32Array(tokens), workspace, dlogprobs } as never,
      { tokens, row_stride: 64, partials_at: PARTIALS, threshold_at: THRESHOLD, weight: 1, beta: 8 } as never,
      { KL: 0, WEIGHTED_SLOPE: 1, OLD: 0, ADVANTAGE: 1, SELECT: 0, MASKED: 1, ...constants } as never,
    );
    const losses = Array.from({ length: 256 }, (_, group) => workspace[PARTIALS + 8 * group]!);
    return { losses, dlogprobs: [...dlogprobs] };
  };

  test.each([
    [256, [512, 0, 0]],
    [257, [512, 2, 0]],
    [600, [512, 512, 176]],
    [65_536, [512, 512, 512]],
    // From here on a thread takes two rounds.
    [65_537, [1024, 1024, 1024]],
  ])("keeps the sums of %i tokens apart like the workgroups", (tokens, losses) => {
    const all = run(tokens, {}).losses;
    expect(all.slice(0, 3)).toEqual(losses);
    expect(all.reduce((sum, loss) => sum + loss, 0)).toBe(2 * tokens);
  });

  test("leaves masked tokens out where there is a mask", () => {
    const mask = [1, 0, 1];
    expect(run(3, {}, { mask })).toMatchObject({ dlogprobs: [-1, 0, -1] });
    expect(run(3, {}, { mask }).losses[0]).toBe(4);
    expect(run(3, { MASKED: 0 }, { mask }).losses[0]).toBe(6);
  });

  test("selects the tokens whose keys reach the threshold, and none without keys", () => {
    // kl_cov: -e^d at d = 1, and beta = 8 more where selected.
    const keys = new Float32Array(Uint32Array.of(6, 7, 8).buffer);
    const cov = { loss: "kl_cov", OLD: 2 };
    const slope = Math.fround(-Math.E);
    expect(run(3, { ...cov, SELECT: 4 }, { dlogprobs: keys }).dlogprobs).toEqual([
      slope,
      Math.fround(8 - Math.E),
      Math.fround(8 - Math.E),
    ]);
    expect(run(3, cov).dlogprobs).toEqual([slope, slope, slope]);
  });

  test("takes no advantage as 0", () => {
    expect(run(2, { ADVANTAGE: 0 }).dlogprobs.map((x) => x + 0)).toEqual([0, 0]);
  });
});

test("the reference of the entropy bonus adds 256 tokens in turn to each of 64 workgroups", () => {
  const tokens = 256 * 64 + 1;
  const [workspace, dentropy] = [new Float32Array(64 + 64), new Float32Array(tokens)];
  workspace.set([0.5, 0.25]);
  const mask = new Uint32Array(tokens).fill(1);
  mask[1] = 0;
  const row_of_token = new Uint32Array(tokens).fill(1);
  const run = (ROW_WEIGHTED: number) => {
    lossEntropy.reference(
      { entropy: new Float32Array(tokens).fill(2), mask, row_of_token, workspace, dentropy } as never,
      { tokens, partials_at: 64, weight: 1, coef: 3 } as never,
      { ROW_WEIGHTED } as never,
    );
    return [...workspace.subarray(64, 66), workspace[127], ...dentropy.subarray(0, 3)];
  };
  // The last token returns to the first workgroup, which lacks the masked one.
  expect(run(0)).toEqual([512, 512, 512, -3, 0, -3]);
  expect(run(1)).toEqual([128, 128, 128, -0.75, 0, -0.75]);
});
