/** Rules between settings of one kind: ReMax's greedy baseline, the teacher of a distillation, guessed tokens. */
import { describe, expect, test } from "vitest";
import { complaints } from "./disk.ts";

describe("ReMax", () => {
  const REMAX = "rllm.algorithm.adv_estimator=remax";
  const PER_STEP = ["rllm.stepwise_advantage.enable=true", "rllm.stepwise_advantage.mode=per_step"];

  test.each<[string[], RegExp]>([
    [PER_STEP, /^Cannot estimate remax with rllm\.stepwise_advantage\.mode=per_step: .* Set .*=broadcast/],
    [
      ["rllm.rollout.train.temperature=0"],
      /^Cannot estimate remax at rllm\.rollout\.train\.temperature=0: .* Set .*=1/,
    ],
  ])("refuses %j", (overrides, message) => {
    expect(complaints([REMAX, ...overrides])).toEqual([expect.stringMatching(message)]);
    expect(complaints(["rllm.algorithm.adv_estimator=rloo", ...overrides])).toEqual([]);
  });

  test("composes for every backend that plays the greedy attempt", () => {
    for (const backend of ["local", "tinker", "verl"])
      expect(complaints([`rllm/backend=${backend}`, REMAX]), backend).toEqual([]);
  });
});

describe("guessed tokens", () => {
  const told = (...overrides: string[]) =>
    complaints(["rllm/backend=local", ...overrides.map((it) => `rollout.speculative_config.${it}`)]);

  test("are refused with a shortest lookup above the longest", () => {
    expect(told("prompt_lookup_min=4", "prompt_lookup_max=3")).toEqual([
      "Cannot guess tokens: rollout.speculative_config.prompt_lookup_min=4 is above prompt_lookup_max=3. Lower it, or set one of the two to null.",
    ]);
    expect(told("prompt_lookup_min=3", "prompt_lookup_max=3")).toEqual([]);
    expect(told("prompt_lookup_min=9")).toEqual([]);
    expect(told("prompt_lookup_max=2", "method=ngram")).toEqual([]);
  });
});

describe("distillation", () => {
  const LOSS = "distillation.distillation_loss";
  const PATH = "distillation.teacher_models.teacher_model.model_path";
  const kind = (name: string) => `distillation.teacher_kind=${name}`;
  const TEACHER = `${PATH}=teacher`;
  const URL = "distillation.teacher_url=http://h:8000/v1";
  const GRADIENT = `${LOSS}.use_policy_gradient=true`;
  const NO_GRADIENT = `${LOSS}.use_policy_gradient=false`;
  const TOPK = `${LOSS}.loss_mode=forward_kl_topk`;
  const K1 = `${LOSS}.loss_mode=k1`;
  const OTHER_TOKENIZER = "distillation.shared_tokenizer=false";
  const NO_TASK = `${LOSS}.use_task_rewards=false`;
  const told = (overrides: readonly string[], enabled = true) =>
    complaints([`distillation.enabled=${enabled}`, ...overrides]);

  test.each<[string, string[]]>([
    ["a teacher in a folder, over its likeliest tokens", [TEACHER, TOPK, NO_GRADIENT]],
    ["a teacher in a folder, as advantages", [TEACHER, K1, GRADIENT, `${LOSS}.loss_max_clamp=5`]],
    ["a teacher behind an OpenAI-compatible server", [TEACHER, kind("openai"), URL, K1, GRADIENT]],
    ["one with another tokenizer", [TEACHER, OTHER_TOKENIZER, K1, GRADIENT]],
    ["the student itself", [kind("self"), K1, GRADIENT]],
    ["a KL to the teacher as a term of the loss", [TEACHER, `${LOSS}.loss_mode=k3`, NO_GRADIENT]],
    ["the teacher alone, without a critic", [TEACHER, K1, GRADIENT, NO_TASK, "critic.enable=false"]],
  ])("takes %s", (_, overrides) => {
    expect(told(overrides)).toEqual([]);
  });

  test.each<[string, string[], RegExp]>([
    ["two teachers", [kind("self"), TEACHER, K1, GRADIENT], /Cannot use the teacher teacher: .*teacher_kind=self/],
    ["no teacher", [K1, GRADIENT], /Cannot distil: no teacher is named/],
    ["a server without its address", [TEACHER, kind("openai"), K1, GRADIENT], /its address is missing/],
    ["an address that nothing asks", [TEACHER, kind("local"), URL, K1, GRADIENT], /teacher_kind=local has no address/],
    [
      "samples at another temperature than a service scores",
      [TEACHER, kind("openai"), URL, K1, GRADIENT, "rllm.rollout.train.temperature=0.7"],
      /Cannot distil samples at temperature 0\.7 from a service/,
    ],
    ["likeliest tokens as a policy gradient", [TEACHER, TOPK, GRADIENT], /Cannot take .*forward_kl_topk as a policy/],
    ["a k1 loss", [TEACHER, K1, NO_GRADIENT], /Cannot take .*loss_mode=k1 as a loss: its gradient does not depend/],
    ["a kl loss", [TEACHER, `${LOSS}.loss_mode=kl`, NO_GRADIENT], /loss_mode=kl as a loss: its gradient does not/],
    ["tokens of another vocabulary", [TEACHER, OTHER_TOKENIZER, TOPK, NO_GRADIENT], /are of another vocabulary/],
    ["another tokenizer of the student", [kind("self"), OTHER_TOKENIZER, K1, GRADIENT], /has its own tokenizer/],
    [
      "a server with a tokenizer that is not given",
      [TEACHER, kind("openai"), URL, OTHER_TOKENIZER, K1, GRADIENT],
      /it does not report its tokenizer\. Set distillation\.teacher_tokenizer/,
    ],
    [
      "a bound on advantages that are not taken",
      [TEACHER, `${LOSS}.loss_mode=k3`, NO_GRADIENT, `${LOSS}.loss_max_clamp=5`],
      /Cannot use .*loss_max_clamp=5: .* Set .*use_policy_gradient=true/,
    ],
    [
      "a bound on the teacher's tokens that are not asked for",
      [TEACHER, K1, GRADIENT, `${LOSS}.log_prob_min_clamp=-20`],
      /Cannot use .*log_prob_min_clamp=-20: .* Set .*loss_mode=forward_kl_topk/,
    ],
    [
      "a discount of no advantages",
      [TEACHER, TOPK, NO_GRADIENT, `${LOSS}.kl_discount_factor=0.5`],
      /Cannot use .*kl_discount_factor=0\.5: .* Set .*use_policy_gradient=true/,
    ],
    [
      "two references in one loss",
      [TEACHER, `${LOSS}.loss_mode=k3`, NO_GRADIENT, "rllm.algorithm.kl_beta=0.1"],
      /to the reference and to the teacher in one loss \(rllm\.algorithm\.kl_beta=0\.1\)/,
    ],
    [
      "advantages that nothing trains on",
      [TEACHER, K1, GRADIENT, NO_TASK, "rllm.algorithm.use_precomputed_advantage=true"],
      /Cannot keep the advantages that steps carry/,
    ],
    [
      "a critic without returns",
      [TEACHER, K1, GRADIENT, NO_TASK, "rllm.algorithm.adv_estimator=gae"],
      /Cannot train a critic: .*use_task_rewards=false estimates no returns/,
    ],
    [
      "likeliest tokens on a Tinker service",
      ["rllm/backend=tinker", TEACHER, TOPK, NO_GRADIENT],
      /Cannot train with .*forward_kl_topk on a Tinker service/,
    ],
  ])("refuses %s", (_, overrides, message) => {
    expect(told(overrides)).toEqual([expect.stringMatching(message)]);
    expect(told(overrides, false).filter((each) => message.test(each))).toEqual([]);
  });
});

describe("inflight sampling clients", () => {
  const INFLIGHT = ["rllm/backend=tinker", "tinker_sampling_client_kind=inflight"];
  const ASYNC = ["rllm.async_training.enable=true", "rllm.workflow.raise_on_error=false"];

  test("are for asynchronous training on one server", () => {
    expect(complaints([...INFLIGHT, ...ASYNC])).toEqual([]);
    expect(complaints(INFLIGHT)).toEqual([expect.stringMatching(/no request is on its way .* Set .*enable=true/)]);
    expect(complaints([...INFLIGHT, ...ASYNC, "tinker_base_url='http://a,http://b'"])).toEqual([
      expect.stringMatching(/further servers sample saved weights.* Name one server/),
    ]);
    expect(complaints(["rllm/backend=tinker", "tinker_sampling_client_kind=snapshot"])).toEqual([]);
  });
});

describe("stable_reinforce", () => {
  const STABLE = "rllm.algorithm.loss_fn=stable_reinforce";
  const TINKER = "rllm/backend=tinker";

  test("is a loss of this machine and of a service, also as that of a role", () => {
    expect(complaints([TINKER, STABLE])).toEqual([]);
    expect(complaints([STABLE])).toEqual([]);
    expect(complaints(["rllm/backend=verl", STABLE])).toEqual([
      expect.stringMatching(
        /^Cannot train with rllm\.algorithm\.loss_fn=stable_reinforce here: .* Set rllm\/backend=local/,
      ),
    ]);
    const role = (entry: string) => [
      `rllm.algorithm.traj_group_adv_estimator_map={solver:${entry}}`,
      "tinker_wire=json",
    ];
    for (const entry of ["[rloo,stable_reinforce]", "{loss_fn:stable_reinforce}"])
      expect(complaints([TINKER, ...role(entry)]), entry).toEqual([expect.stringContaining("tinker_wire=protobuf")]);
    expect(complaints([TINKER, ...role("rloo")])).toEqual([]);
  });

  test.each<[string, RegExp]>([
    ["tinker_wire=json", /tinker_wire=json: .* Set tinker_wire=protobuf\.$/],
    ["rllm.rollout.train.top_p=0.9", /top_p=0\.9: .* Set it to 1\.$/],
    ["rllm.rollout.train.top_k=5", /top_k=5: .* Set it to -1\.$/],
    ["rllm.rollout.train.temperature=0", /temperature=0: .* Set it to 1\.$/],
    ["rllm.algorithm.kl_beta=0.1", /kl_beta=0\.1: .*kl_coeff/],
  ])("does not go with %s", (override, message) => {
    expect(complaints([TINKER, STABLE, override])).toEqual([expect.stringMatching(message)]);
    expect(complaints([TINKER, override])).toEqual([]);
    if (!override.startsWith("tinker_"))
      expect(complaints([STABLE, override])).toEqual([expect.stringMatching(message)]);
  });
});
