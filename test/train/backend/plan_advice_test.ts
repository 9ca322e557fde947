/** Which settings are advised, with what fits decided by a rule of the test in place of a rehearsal. */
import { beforeEach, describe, expect, test, vi } from "vitest";
import { TYPICAL_GPU } from "../../../src/engine/compute/counting.ts";
import type { LanguageModelOptions } from "../../../src/engine/model/language_model.ts";
import { adviceFor } from "../../../src/train/backend/local/plan/advice.ts";
import { fitsAtLeast } from "../../../src/train/backend/local/plan/choices.ts";
import type { PlanRequest } from "../../../src/train/backend/local/plan/rehearsal.ts";
import { DEFAULT_SHAPE } from "../../../src/train/backend/local/plan/run_shape.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

vi.mock("../../../src/train/backend/local/plan/choices.ts", () => ({ fitsAtLeast: vi.fn() }));
beforeEach(() => {
  vi.mocked(fitsAtLeast).mockReset();
});

type Rule = (options: LanguageModelOptions, shape: PlanRequest["shape"]) => boolean;

function advise(options: LanguageModelOptions, fits: Rule, more: Partial<PlanRequest> = {}): Promise<string[]> {
  vi.mocked(fitsAtLeast).mockImplementation(async (request) => fits(request.options, request.shape));
  const model = { config: SMALL_MODEL, typeOf: () => "F32" as const };
  return adviceFor({ model, options, shape: DEFAULT_SHAPE, info: TYPICAL_GPU, budget: 1, ...more });
}

const replies =
  (most: number): Rule =>
  (_, { replyTokens }) =>
    replyTokens <= most;
const onlyRank: Rule = ({ lora, quantization, cache }, { replyTokens }) =>
  lora?.rank === 8 && !quantization && !cache && replyTokens === 512;
const withReplies = (replyTokens: number) => ({ shape: { ...DEFAULT_SHAPE, replyTokens } });

describe("of what helps alone, all is advised", () => {
  test.each<[what: string, LanguageModelOptions, Rule, string[], Partial<PlanRequest>?]>([
    ["an adapter", {}, ({ lora }) => lora?.rank === 16, ["model.lora_rank=16"]],
    [
      "an adapter where nothing trains",
      {},
      ({ lora }) => !!lora,
      [],
      { shape: { ...DEFAULT_SHAPE, isTrained: false } },
    ],
    ["4 bits", { lora: {} }, ({ quantization }) => quantization === "nf4", ["model.quantization=nf4"]],
    ["4 bits already", { lora: {}, quantization: "nf4" }, (_, { replyTokens }) => replyTokens < 0, []],
    [
      "8 bits halved",
      { lora: {}, quantization: "int8" },
      ({ quantization }) => quantization === "nf4",
      ["model.quantization=nf4"],
    ],
    [
      "no folded copy",
      { lora: {}, foldAdapter: true },
      ({ foldAdapter }) => foldAdapter === "auto",
      ["model.fold_adapter=auto"],
    ],
    [
      "no folded copy where there is none",
      { lora: {}, foldAdapter: false, quantization: "nf4" },
      ({ foldAdapter }) => foldAdapter === "auto",
      [],
    ],
    [
      "recomputation",
      { gradientCheckpointing: false },
      ({ gradientCheckpointing }) => gradientCheckpointing === "auto",
      ["training.gradient_checkpointing=auto"],
    ],
    [
      "recomputation that is on",
      { gradientCheckpointing: true },
      ({ gradientCheckpointing }) => gradientCheckpointing === "auto",
      [],
    ],
    [
      "smaller passes",
      { maxTokensPerPass: 9 },
      (it) => it.maxTokensPerPass === undefined,
      ["training.max_tokens_per_pass=null"],
    ],
    [
      "smaller passes with recomputation",
      { maxTokensPerPass: 9, gradientCheckpointing: false },
      (it) => it.maxTokensPerPass === undefined && it.gradientCheckpointing === "auto",
      ["training.gradient_checkpointing=auto training.max_tokens_per_pass=null"],
    ],
    ["a narrow cache", {}, ({ cache }) => cache?.dtype === "bfloat16", ["rollout.kv_cache_dtype=bfloat16"]],
    [
      "a narrow cache of as many sequences",
      { cache: { maxSequences: 3 } },
      ({ cache }) => cache?.dtype === "bfloat16" && cache.maxSequences === 3,
      ["rollout.kv_cache_dtype=bfloat16"],
    ],
    ["a narrow cache already", { cache: { dtype: "bfloat16" } }, () => false, []],
    ["shorter replies", {}, replies(256), ["data.max_response_length=256", "data.max_response_length=128"]],
    ["much shorter replies", {}, replies(255), ["data.max_response_length=128"]],
    ["replies of 64 tokens", {}, replies(64), ["data.max_response_length=64"], withReplies(256)],
    ["replies of 63 tokens", {}, replies(64), [], withReplies(255)],
    ["a smaller rank", { lora: { rank: 9 } }, ({ lora }) => lora?.rank === 8, ["model.lora_rank=8"]],
    ["a smaller rank than the default", { lora: {} }, ({ lora }) => lora?.rank === 8, ["model.lora_rank=8"]],
    ["a rank of 8 already", { lora: { rank: 8 } }, onlyRank, []],
    ["a rank of 9", { lora: { rank: 9 } }, onlyRank, ["model.lora_rank=8"]],
  ])("%s", async (_, options, fits, advice, more) => {
    expect(await advise(options, fits, more)).toEqual(advice);
  });
});

describe("of what helps together, the least is advised", () => {
  const both: Rule = ({ lora, quantization }) => !!lora && quantization === "nf4";

  test("as one set of settings", async () => {
    expect(await advise({}, both)).toEqual(["model.lora_rank=16 model.quantization=nf4"]);
    const three: Rule = (options, shape) => both(options, shape) && shape.replyTokens <= 128;
    expect(await advise({}, three)).toEqual(["model.lora_rank=16 model.quantization=nf4 data.max_response_length=128"]);
  });

  test("with one value for a setting", async () => {
    expect(await advise({}, ({ lora }) => !!lora && (lora.rank ?? 99) <= 8)).toEqual(["model.lora_rank=8"]);
  });

  test("without settings that are fixed", async () => {
    expect(await advise({}, both, { fixedSettings: ["model.quantization"] })).toEqual([]);
    expect(await advise({}, both, { fixedSettings: ["model.lora"] })).toHaveLength(1);
    expect(await advise({}, both, { fixedSettings: "all" })).toEqual([]);
    const passes = { maxTokensPerPass: 9, gradientCheckpointing: false };
    const chosen: Rule = ({ maxTokensPerPass }) => maxTokensPerPass === undefined;
    expect(await advise(passes, chosen, { fixedSettings: ["training.max_tokens_per_pass"] })).toEqual([]);
  });
});
