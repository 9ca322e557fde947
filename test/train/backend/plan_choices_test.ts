/** The choices of a plan in figures, with a rehearsal of the test's own in place of the model's. */
import { beforeEach, describe, expect, test, vi } from "vitest";
import { TYPICAL_GPU } from "../../../src/engine/compute/counting.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import { chooseCache, choosePass, fitsAtLeast } from "../../../src/train/backend/local/plan/choices.ts";
import { type PlanRequest, Rehearsal } from "../../../src/train/backend/local/plan/rehearsal.ts";
import { DEFAULT_SHAPE } from "../../../src/train/backend/local/plan/run_shape.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

vi.mock("../../../src/train/backend/local/plan/rehearsal.ts", () => ({ Rehearsal: { open: vi.fn() } }));

/** Bytes that are held, and those of a token in a pass that keeps its activations and one that computes them again. */
const [HELD, KEEPS, RECOMPUTES] = [100, 10, 4];
/** Of a sequence that is sampled. */
const [CACHE, BESIDE] = [10, 2];
// Sequences of 10 tokens, a batch of 80.
const SHAPE = { ...DEFAULT_SHAPE, prompts: 4, groupSize: 2, promptTokens: 6, replyTokens: 4 };

interface Rules {
  recomputes?: number;
  /** Sizes above it cannot be computed at all. */
  most?: number;
  sampled?: number;
}
let rules: Rules = {};

function rehearsal({ options }: Pick<PlanRequest, "options">) {
  const work = async (tokens: number) => {
    if (tokens > (rules.most ?? Infinity)) throw new ConfigError("one buffer is too large");
    const each = options.gradientCheckpointing === true ? (rules.recomputes ?? RECOMPUTES) : KEEPS;
    return { bytes: HELD + each * tokens, byLabel: new Map() };
  };
  const sample = async (count: number) => {
    const byLabel = new Map([
      ["key cache", CACHE * count],
      ["hidden", HELD + (rules.sampled ?? BESIDE) * count],
    ]);
    return { bytes: [...byLabel.values()].reduce((sum, bytes) => sum + bytes, 0), byLabel };
  };
  return { longest: 10, held: { bytes: HELD, byLabel: new Map() }, train: work, score: work, sample };
}

const request = (budget: number, more: Partial<PlanRequest> = {}): PlanRequest => ({
  ...{ model: { config: SMALL_MODEL, typeOf: () => "F32" as const }, options: {}, shape: SHAPE },
  ...{ info: TYPICAL_GPU, budget },
  ...more,
});

beforeEach(() => {
  rules = {};
  vi.mocked(Rehearsal.open).mockReset();
  vi.mocked(Rehearsal.open).mockImplementation(async (setup) => rehearsal(setup) as never);
});

describe("the tokens of a pass", () => {
  const untrained = { shape: { ...SHAPE, isTrained: false } };
  test.each<[what: string, number, Partial<PlanRequest>, Rules, [tokens: number, recomputes: boolean, fits?: boolean]]>(
    [
      ["are 8192 with room", 1e6, {}, {}, [8192, false]],
      ["are those of a batch", HELD + 800, {}, {}, [80, false]],
      ["reach a batch by recomputation", HELD + 799, {}, {}, [80, true]],
      ["keep activations where recomputation gains nothing", HELD + 799, {}, { recomputes: KEEPS }, [70, false]],
      ["that only score need no recomputation", HELD + 799, untrained, {}, [70, false]],
      [
        "go beyond a batch where recomputation is asked for",
        1e6,
        { options: { gradientCheckpointing: true } },
        {},
        [8192, true],
      ],
      ["are fewer where it is refused", HELD + 799, { options: { gradientCheckpointing: false } }, {}, [70, false]],
      ["are one sequence where nothing fits", HELD + 39, {}, {}, [10, true, false]],
      ["are one sequence at least", HELD + 40, {}, {}, [10, true]],
      ["are as given", HELD + 330, { options: { maxTokensPerPass: 33 } }, {}, [33, false]],
      ["are as given, by recomputation", HELD + 329, { options: { maxTokensPerPass: 33 } }, {}, [33, true]],
      ["are as given, planned as a batch", HELD + 800, { options: { maxTokensPerPass: 500 } }, {}, [500, false]],
      ["are as given, planned as a sequence", HELD + 100, { options: { maxTokensPerPass: 5 } }, {}, [5, false]],
      [
        "have half of what is free beside sampling",
        HELD + 1600,
        { shape: { ...SHAPE, overlaps: true } },
        {},
        [80, false],
      ],
      ["have less than half", HELD + 1599, { shape: { ...SHAPE, overlaps: true } }, {}, [80, true]],
      ["are as many as one buffer holds", 1e6, {}, { most: 55 }, [50, false]],
      ["do not fit what is held already", HELD - 1, {}, {}, [10, true, false]],
    ],
  )("%s", async (_, budget, more, own, [tokens, gradientCheckpointing, fits = true]) => {
    rules = own;
    expect(await choosePass(request(budget, more))).toMatchObject({ tokens, gradientCheckpointing, fits });
  });

  test("keep the device busy from a batch or 2048 on, and from one sequence at least", async () => {
    const enough = async (shape: Partial<typeof SHAPE>) =>
      (await choosePass(request(1e6, { shape: { ...SHAPE, ...shape } }))).enough;
    expect([await enough({}), await enough({ prompts: 400 }), await enough({ prompts: 0 })]).toEqual([80, 2048, 10]);
  });

  test("are tried with passes of any size", async () => {
    await choosePass(request(1e6, { options: { maxTokensPerPass: 9000, gradientCheckpointing: false } }));
    await choosePass(request(1e6));
    const given = vi.mocked(Rehearsal.open).mock.calls.map(([{ options }]) => options.maxTokensPerPass);
    expect(given).toEqual([9000, 8192]);
  });

  test("are not chosen by a defect", async () => {
    vi.mocked(Rehearsal.open).mockImplementation(
      async (setup) => ({ ...rehearsal(setup), train: () => Promise.reject(new TypeError("a defect")) }) as never,
    );
    await expect(choosePass(request(1e6))).rejects.toThrow("a defect");
  });
});

describe("the sequences that are sampled together", () => {
  const choose = (budget: number, more: Partial<PlanRequest> = {}) =>
    chooseCache(rehearsal({ options: {} }) as never, request(budget, more));

  test.each<[what: string, number, object]>([
    ["are all with room", 1000, { slots: 8, rows: 8, cacheBytes: 1000 - HELD - 16, fits: true }],
    ["are those that fit", HELD + 36, { slots: 3, rows: 3, cacheBytes: 30, fits: true }],
    [
      "are twice as many short ones with room for their activations",
      HELD + 42,
      { slots: 3, rows: 6, cacheBytes: 30, fits: true },
    ],
    ["are no more without that room", HELD + 41, { slots: 3, rows: 3, cacheBytes: 35, fits: true }],
    ["are one at least", HELD + 12, { slots: 1, rows: 1, cacheBytes: 10, fits: true }],
    ["are one where not even that fits", HELD + 11, { slots: 1, rows: 1, cacheBytes: 9, fits: false }],
  ])("%s", async (_, budget, choice) => {
    expect(await choose(budget)).toEqual(choice);
  });

  test("have whole bytes of half of what is free beside training", async () => {
    const overlapping = { shape: { ...SHAPE, overlaps: true } };
    expect(await choose(HELD + 73, overlapping)).toMatchObject({ slots: 3, cacheBytes: 30 });
  });

  test("do not fit what is held already", async () => {
    rules = { sampled: -20 };
    expect(await choose(HELD - 1)).toMatchObject({ fits: false });
  });
});

describe("the least work", () => {
  test.each<[what: string, number, Partial<PlanRequest>, Rules, boolean]>([
    ["is a sequence with recomputation", HELD + 40, {}, {}, true],
    ["does not fit a byte less", HELD + 39, {}, {}, false],
    ["keeps activations where that is asked for", HELD + 99, { options: { gradientCheckpointing: false } }, {}, false],
    ["fits that", HELD + 100, { options: { gradientCheckpointing: false } }, {}, true],
    ["is a pass of the given size", HELD + 79, { options: { maxTokensPerPass: 20 } }, {}, false],
    ["fits that size", HELD + 80, { options: { maxTokensPerPass: 20 } }, {}, true],
    ["samples one sequence", HELD + 60, {}, { sampled: 51 }, false],
    ["fits that sequence", HELD + 61, {}, { sampled: 51 }, true],
    ["has half of what is free beside sampling", HELD + 79, { shape: { ...SHAPE, overlaps: true } }, {}, false],
    ["fits that half", HELD + 80, { shape: { ...SHAPE, overlaps: true } }, {}, true],
  ])("%s", async (_, budget, more, own, fits) => {
    rules = own;
    expect(await fitsAtLeast(request(budget, more))).toBe(fits);
  });

  test("is rehearsed with what the plan chooses where memory is short", async () => {
    const opened = async (options: PlanRequest["options"]) => {
      await fitsAtLeast(request(1000, { options }));
      const { gradientCheckpointing, foldAdapter } = vi.mocked(Rehearsal.open).mock.lastCall![0].options;
      return [gradientCheckpointing, foldAdapter];
    };
    expect(await opened({})).toEqual([true, false]);
    expect(await opened({ gradientCheckpointing: "auto", foldAdapter: "auto" })).toEqual([true, false]);
    expect(await opened({ gradientCheckpointing: false, foldAdapter: true })).toEqual([false, true]);
  });
});
