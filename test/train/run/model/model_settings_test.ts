/** How the settings of the local backend say that a model is held and trained. */
import { describe, expect, test } from "vitest";
import { LORA_DEFAULTS } from "../../../../src/engine/model/lora.ts";
import { memoryOptions, readLora } from "../../../../src/train/run/model/model_settings.ts";
import { plannedWork } from "../../../../src/train/run/model/plan_settings.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";
import { complaints, compose } from "../../config/disk.ts";

const configOf = (...overrides: string[]) => compose(["rllm/backend=local", ...overrides]).config;

describe("model.train_unembed", () => {
  const targets = (tied: boolean, ...overrides: string[]) =>
    readLora(configOf("model.lora_rank=4", ...overrides), { tied })?.targets;

  test("follows the model where it is null: a tied output matrix gets no adapter", () => {
    expect(targets(true)).toEqual(LORA_DEFAULTS.targets);
    expect(targets(false)).toEqual([...LORA_DEFAULTS.targets, "lm_head"]);
  });

  test("is honoured where it is set", () => {
    expect(targets(true, "model.train_unembed=true")).toContain("lm_head");
    expect(targets(false, "model.train_unembed=false")).not.toContain("lm_head");
  });
});

describe("verl's names", () => {
  test("are answered with those of this backend", () => {
    const names: readonly (readonly [string, RegExp])[] = [
      ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096", /Set training\.max_tokens_per_pass\./],
      ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", /Set training\.max_tokens_per_pass, in tokens/],
      ["actor_rollout_ref.model.enable_gradient_checkpointing=true", /Set training\.gradient_checkpointing\./],
      ["actor_rollout_ref.rollout.max_num_seqs=8", /Set rollout\.max_num_seqs\./],
      ["actor_rollout_ref.rollout.max_num_batched_tokens=8", /Set rollout\.max_num_batched_tokens\./],
      ["actor_rollout_ref.rollout.dtype=bfloat16", /Set model\.dtype/],
    ];
    for (const [override, answer] of names) expect(complaints(["rllm/backend=local", override]).join()).toMatch(answer);
  });
});

test("what the settings leave open is chosen by what fits", () => {
  const { maxTokensPerPass, gradientCheckpointing, cache } = memoryOptions(configOf());
  expect([maxTokensPerPass, gradientCheckpointing, cache]).toEqual([undefined, "auto", { dtype: "float32" }]);
  expect(memoryOptions(configOf("training.max_tokens_per_pass=128")).maxTokensPerPass).toBe(128);
  const cached = memoryOptions(configOf("rollout.max_num_seqs=4", "rollout.kv_cache_dtype=bfloat16")).cache;
  expect(cached).toEqual({ dtype: "bfloat16", maxSequences: 4 });
});

test("the work of a run is the most that its settings allow", () => {
  const shape = (...overrides: string[]) =>
    plannedWork(configOf(...overrides), { model: { config: SMALL_MODEL, typeOf: () => undefined }, isTrained: true })
      .shape;
  const lengths = ["data.max_prompt_length=10", "data.max_response_length=20", "data.train_batch_size=3"];
  const plain = shape("training.group_size=2", ...lengths);
  expect(plain).toMatchObject({ prompts: 3, groupSize: 2, promptTokens: 10, replyTokens: 20, usesReference: false });
  expect(shape(...lengths, "training.max_length=24").replyTokens).toBe(14);
  expect(shape("rllm.algorithm.kl_beta=0.1")).toMatchObject({ usesReference: true, loss: { kl: { coef: 0.1 } } });
});

test("model.fold_adapter says where an adapter lies", () => {
  const folds = ["auto", "true", "false"].map((it) => memoryOptions(configOf(`model.fold_adapter=${it}`)).foldAdapter);
  expect(folds).toEqual(["auto", true, false]);
});

test("training.gradient_checkpointing is true, false or for the backend to choose", () => {
  const of = (...overrides: string[]) => memoryOptions(configOf(...overrides)).gradientCheckpointing;
  expect(of()).toBe("auto");
  expect(of("training.gradient_checkpointing=true")).toBe(true);
  expect(of("training.gradient_checkpointing=false")).toBe(false);
});

test("rollout.max_num_batched_tokens says how long prompts are cut", () => {
  expect(memoryOptions(configOf()).maxBatchedTokens).toBeUndefined();
  expect(memoryOptions(configOf("rollout.max_num_batched_tokens=96")).maxBatchedTokens).toBe(96);
});

test("rollout.speculative_config says how tokens are guessed", () => {
  const of = (...overrides: string[]) => memoryOptions(configOf(...overrides)).speculative;
  expect(of()).toBeUndefined();
  expect(of("rollout.speculative_config.num_speculative_tokens=3")).toBeUndefined();
  const method = "rollout.speculative_config.method=ngram";
  const lookup = { promptLookupMax: undefined, promptLookupMin: undefined };
  expect(of(method)).toEqual({ method: "ngram", numSpeculativeTokens: 5, ...lookup });
  const lengths = ["rollout.speculative_config.prompt_lookup_max=4", "rollout.speculative_config.prompt_lookup_min=2"];
  const set = ["rollout.speculative_config.num_speculative_tokens=3", ...lengths];
  const given = { method: "ngram", numSpeculativeTokens: 3, promptLookupMax: 4, promptLookupMin: 2 };
  expect(of(method, ...set)).toEqual(given);
});

test("rollout.kv_cache_dtype and rollout.max_num_seqs say how the cache of sampling is held", () => {
  expect(memoryOptions(configOf()).cache).toEqual({ dtype: "float32", maxSequences: undefined });
  const overrides = ["rollout.kv_cache_dtype=bfloat16", "rollout.max_num_seqs=4"];
  expect(memoryOptions(configOf(...overrides)).cache).toEqual({ dtype: "bfloat16", maxSequences: 4 });
});

test("model.dtype and model.quantization say how the base is held", () => {
  expect(memoryOptions(configOf())).toMatchObject({ dtype: "auto", quantization: undefined });
  const config = configOf("model.dtype=bfloat16", "model.quantization=nf4");
  expect(memoryOptions(config)).toMatchObject({ dtype: "bfloat16", quantization: "nf4" });
});
