/** The command line of verl's trainer: only what differs, in Hydra's grammar, and what cannot act there. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { verlOverrides } from "../../../src/cluster/verl/overrides.ts";
import { isTyped } from "../../../src/cluster/verl/own_settings.ts";
import { VERL_RUN_VERSIONS, verlVersion } from "../../../src/cluster/verl/versions.ts";
import { composeConfig, tryCompose } from "../../../src/train/config/compose.ts";
import { readConfig } from "../../train/config/disk.ts";
import { compose, FILES, READY } from "./runs.ts";

const overridesOf = (version: string, more: readonly string[] = [], files = {}) =>
  verlOverrides({ ...compose(version, [...READY, ...more]), files: { ...FILES, ...files } });
const linesOf = (...args: Parameters<typeof overridesOf>) => overridesOf(...args).overrides;
const problemsOf = (...args: Parameters<typeof overridesOf>) =>
  overridesOf(...args).problems.map(({ path, severity }) => `${severity} ${path}`);

const COMMON = [
  "actor_rollout_ref.actor.kl_loss_coef=0",
  "actor_rollout_ref.rollout.name=vllm",
  "actor_rollout_ref.rollout.n=8",
  "actor_rollout_ref.rollout.val_kwargs.temperature=1",
  "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
  "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B",
  "data.max_prompt_length=2048",
  "data.max_response_length=1024",
  "data.train_batch_size=64",
  "algorithm.adv_estimator=grpo",
  "trainer.total_epochs=10",
  "trainer.project_name=rllm-training",
  "trainer.experiment_name=default",
  "trainer.logger=['console','file']",
  "trainer.save_freq=20",
  "trainer.test_freq=5",
  "trainer.default_local_dir=/shared/run",
  "data.train_files=train.jsonl",
  "data.val_files=val.jsonl",
  "reward.custom_reward_function.path=verl_reward.py",
  "data.filter_overlong_prompts=true",
  "data.seed=0",
  "actor_rollout_ref.actor.ppo_mini_batch_size=64",
  "actor_rollout_ref.actor.use_dynamic_bsz=true",
];

describe("overrides", () => {
  test("of the shortest file are what differs from verl's defaults", () => {
    expect([...linesOf("0.8.0")].sort()).toEqual(
      [...COMMON, "actor_rollout_ref.rollout.calculate_log_probs=true"].sort(),
    );
    const refill = "trainer.v1.sampler.sync_refill_failed_groups=true";
    expect([...linesOf("0.9.1")].sort()).toEqual([...COMMON, refill].sort());
    expect(linesOf("0.9.0")).toEqual(linesOf("0.9.1"));
  });

  const MODE = "actor_rollout_ref.actor.loss_agg_mode";
  const LOSS = "rllm.algorithm.loss_fn";

  test.each(VERL_RUN_VERSIONS)(
    "on verl %s have the aggregation that gspo has here where it would be another",
    (version) => {
      const isSent = (loss: string) => linesOf(version, [`${LOSS}=${loss}`]).includes(`${MODE}=seq-mean-token-mean`);
      expect(isSent("gspo")).toBe(version === "0.9.1");
      for (const loss of ["sapo", "geo_mean", "vanilla"]) expect(isSent(loss), loss).toBe(false);
      const typed = [`${LOSS}=gspo`, "rllm.algorithm.loss_agg_mode=seq-mean-token-mean"];
      expect(linesOf(version, typed)).toContain(`${MODE}=seq-mean-token-mean`);
      expect(problemsOf(version, typed)).toEqual([]);
    },
  );

  test.each([
    ["0.8.0", "gspo", /acts on KL and entropy terms alone: the loss gspo .*\(verl 0\.8\.0\)/],
    ["0.9.0", "gspo", /acts on KL and entropy terms alone: the loss gspo .*\(verl 0\.9\.0\)/],
    ["0.9.1", "gspo", /^verl 0\.9\.1 averages gspo by .*=token-sum; verl 0\.8\.0, 0\.9\.0, its main branch/],
    ["0.9.1", "sapo", /acts on KL and entropy terms alone: the loss sapo .*\(verl 0\.9\.1\)/],
  ])("on verl %s warn of another mode with %s", (version, loss, message) => {
    const { problems } = overridesOf(version, [`${LOSS}=${loss}`, "rllm.algorithm.loss_agg_mode=token-sum"]);
    expect(problems).toEqual([
      expect.objectContaining({ severity: "warning", message: expect.stringMatching(message) }),
    ]);
  });

  test("leave out a value that verl's own defaults give, interpolations resolved", () => {
    const length = "actor_rollout_ref.rollout.response_length";
    expect(linesOf("0.9.1", ["rllm.data.max_response_length=500"])).not.toContainEqual(expect.stringContaining(length));
    expect(linesOf("0.9.1", [`${length}=100`])).toContain(`${length}=100`);
    expect(linesOf("0.9.1", ["trainer.nnodes=1"])).not.toContain("trainer.nnodes=1");
    expect(linesOf("0.9.1", ["trainer.nnodes=2"])).toContain("trainer.nnodes=2");
  });

  test("add keys that verl's tree lacks with +, whole where they lie in a value that is null", () => {
    const engine = "actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_seqs";
    expect(linesOf("0.9.1", [`+${engine}=64`])).toContain(`+${engine}=64`);
    expect(linesOf("0.9.1", ["+data.my_own=a b"])).toContain("+data.my_own=a b");
    const optimizer = "actor_rollout_ref.actor.optim.override_optimizer_config";
    expect(linesOf("0.9.1", [`${optimizer}={eps:1e-6}`])).toContain(`${optimizer}={eps:1.0e-06}`);
    expect(linesOf("0.9.1", ["rllm.disable_thinking=true"])).toContain(
      "+data.apply_chat_template_kwargs.enable_thinking=false",
    );
  });

  test("name the engine of another tree and keep what the user wrote of the pinned settings", () => {
    expect(linesOf("0.9.1", ["model_engine=megatron"])[0]).toBe("model_engine=megatron");
    expect(linesOf("0.9.1", ["actor_rollout_ref.rollout.agent.num_workers=4"])).toContain(
      "actor_rollout_ref.rollout.agent.num_workers=4",
    );
    expect(linesOf("0.9.1", ["trainer.v1.sampler.sync_refill_failed_groups=false"])).not.toContainEqual(
      expect.stringContaining("refill"),
    );
  });

  test("take the seed of the run's order where verl's is not set", () => {
    expect(linesOf("0.9.1", ["rllm.data.seed=7"])).toContain("data.seed=7");
    expect(linesOf("0.9.1", ["rllm.data.seed=7", "data.seed=3"])).toContain("data.seed=3");
  });

  test("keep what a file says of seeds, prompts and groups that fail", () => {
    const file =
      "rllm: { backend: verl }\ndata: { seed: 7, filter_overlong_prompts: false }\ntrainer: { v1: { sampler: { sync_refill_failed_groups: false } } }\n";
    const more = { files: ["run.yaml"], readFile: () => file, overrides: ["verl=0.9.1", ...READY], env: {} };
    const composed = tryCompose({ readConfig, ...more });
    const { overrides } = verlOverrides({ composed, version: verlVersion("0.9.1"), readConfig, files: FILES });
    expect(overrides).toContain("data.seed=7");
    expect(overrides.join()).not.toMatch(/filter_overlong_prompts|refill/);
  });

  test("of an agent name its loop, and leave prompts to it", () => {
    const lines = linesOf("0.9.1", [], { agents: "agent.yaml" });
    expect(lines).toContain("actor_rollout_ref.rollout.agent.agent_loop_config_path=agent.yaml");
    expect(lines.join()).not.toContain("filter_overlong_prompts");
  });

  test("without validation tasks validate nothing", () => {
    const lines = linesOf("0.9.1", ["rllm.trainer.val_before_train=true"], { val: undefined });
    expect(lines).toEqual(
      expect.arrayContaining([
        "data.val_files=train.jsonl",
        "data.val_max_samples=1",
        "trainer.val_before_train=false",
      ]),
    );
    expect(lines.join()).not.toContain("test_freq");
  });

  test("hold no setting of ours, and those of the local backend under verl's names", () => {
    const ours = ["data.prompt_type=messages", "model.tokenizer=/t", "training.seed=3", "ray.address=http://a:1"];
    expect(linesOf("0.9.1", ours)).toEqual(linesOf("0.9.1"));
    expect(linesOf("0.9.1", ["training.learning_rate=1e-5"])).toContain("actor_rollout_ref.actor.optim.lr=1.0e-05");
    expect(linesOf("0.9.1").filter((line) => /^\+*(rllm|rollout|async_training|training|ray)\./.test(line))).toEqual(
      [],
    );
  });
});

describe("gdpo", () => {
  const GDPO = ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[accuracy,format]"];
  const WEIGHTS = "algorithm.gdpo_reward_weights=[1,0.5]";

  test.each([
    ["0.8.0", []],
    ["0.9.0", ["trainer.use_v1=false"]],
    ["0.9.1", ["trainer.use_v1=false"]],
  ])("sends the names of the components and their weights to verl %s", (version, more) => {
    const { overrides, problems } = overridesOf(version, [...GDPO, WEIGHTS, ...more]);
    expect(problems).toEqual([]);
    expect(overrides).toEqual(
      expect.arrayContaining([
        "algorithm.adv_estimator=gdpo",
        "+algorithm.gdpo_reward_keys=['accuracy','format']",
        "+algorithm.gdpo_reward_weights=[1,0.5]",
      ]),
    );
  });

  test("is refused where verl's trainer gives its estimator no components", () => {
    for (const version of ["0.9.0", "0.9.1"]) expect(problemsOf(version, GDPO)).toEqual(["error trainer.use_v1"]);
    expect(linesOf("0.9.1").filter((line) => line.includes("gdpo"))).toEqual([]);
  });

  test("refuses components that have the name of a column of verl's", () => {
    const taken = ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[accuracy,score]"];
    expect(problemsOf("0.8.0", taken)).toEqual(["error algorithm.gdpo_reward_keys"]);
  });

  test.each([
    [[GDPO[0]!], "names no rewards", "error"],
    [[...GDPO, "algorithm.gdpo_reward_weights=[1]"], "a finite number for each of the 2 rewards", "error"],
    [[GDPO[1]!], "has no effect: rllm.algorithm.adv_estimator is grpo", "warning"],
  ])("%j is a problem of the configuration", (overrides, message, severity) => {
    const { problems, warnings } = compose("0.8.0", [...READY, ...overrides]).composed;
    expect([...problems, ...warnings]).toContainEqual(
      expect.objectContaining({ severity, message: expect.stringContaining(message) }),
    );
  });
});

describe("problems", () => {
  test("are none of a usual run", () => {
    for (const version of VERL_RUN_VERSIONS) expect(overridesOf(version).problems).toEqual([]);
  });

  const AGENT = { agents: "agent.yaml" };
  test.each<[version: string, override: string, path: string, says: string, files?: object]>([
    ["0.9.1", "rllm.rejection_sample.enable=true", "", "algorithm.filter_groups.enable=true"],
    ["0.9.1", "rllm.compact_filtering.enable=true", "", "verl's own trainer makes the step"],
    ["0.9.1", "rllm.stepwise_advantage.enable=true", "", "verl's own trainer makes the step"],
    ["0.9.1", "rllm.algorithm.traj_group_adv_estimator_map={a:rloo}", "", "Use one algorithm.adv_estimator"],
    ["0.9.1", "rllm.async_training.enable=true", "", "trainer.v1.trainer_mode=separate_async"],
    ["0.8.0", "actor_rollout_ref.actor.policy_loss.loss_mode=dro", "", "verl 0.8.0 has vanilla, gspo"],
    ["0.9.1", "custom_reward_function.path=a.py", "", "rewards come from this run's own reward function"],
    ["0.9.1", "reward.custom_reward_function.name=f", "", "rewards come from this run's own reward function"],
    ["0.9.1", "reward_model.reward_manager=dapo", "", "verl 0.9.1 ignores it. Set reward.reward_manager.name"],
    ["0.9.1", "sandbox_fusion.url=http://a", "", "Set reward.sandbox_fusion.url"],
    ["0.8.0", "reward.reward_manager.name=remote", "", "it refuses asynchronous reward functions"],
    ["0.9.1", "reward.reward_manager.name=rate_limited", "", "turns a reward that fails into 0"],
    ["0.9.1", "trainer.default_local_dir=here", "", "a relative folder is deleted with the job"],
    ["0.9.1", "trainer.resume_mode=resume_path", "trainer.resume_from_path", "ends in global_step_N"],
    ["0.9.1", "actor_rollout_ref.model.path=./model", "", "not on the cluster's machines"],
    ["0.9.1", "rllm.mask_truncated_samples=true", "", "on verl without an agent"],
    ["0.9.1", "rllm.agent.overlong_filter=true", "", "on verl without an agent"],
    ["0.9.1", "rllm.rejection_sample.filter_uniform_groups=true", "", "algorithm.filter_groups.enable=true"],
    ["0.9.1", "rllm.rejection_sample.multiplier=2", "", "rllm.rejection_sample.multiplier=2 on verl: verl's own"],
    ["0.9.1", "rllm.algorithm.use_precomputed_advantage=true", "", "verl's own trainer makes the step"],
    ["0.9.1", "rllm.algorithm.traj_grouping_hook=a.py:f", "", "Set it to null."],
    ["0.9.1", "rllm.algorithm.estimator_args={a:1}", "", '={"a":1} on verl'],
    ["0.9.1", "algorithm.adv_estimator=mine", "", "verl 0.9.1 has grpo, reinforce_plus_plus_baseline"],
    ["0.9.1", "reward_model.num_workers=3", "", "verl 0.9.1 ignores it. Set reward.num_workers."],
    ["0.9.1", "reward_model.model.path=/a", "", "Set reward.reward_model.model_path."],
    ["0.9.1", "reward_model.enable=true", "", "Set reward.reward_model.enable."],
    [
      "0.8.0",
      "reward_model.reward_manager=remote",
      "",
      "reward_manager=remote: it refuses asynchronous reward functions",
    ],
    ["0.9.1", "trainer.default_local_dir=a/s3://b", "", "a relative folder is deleted with the job"],
    ["0.9.1", "actor_rollout_ref.model.path=../model", "", "not on the cluster's machines"],
    ["0.9.1", "rllm.algorithm.router_replay=R3", "", "the routing does not travel", AGENT],
  ])("verl %s with %s", (version, override, path, says, files = {}) => {
    const found = overridesOf(version, [override], files).problems.find(
      (problem) => problem.path === (path || override.replace(/^\++/, "").split("=")[0]),
    );
    expect(found?.severity).toBe("error");
    expect(found?.message).toContain(says);
  });

  test.each(["here/global_step_3", "/a/global_step_3/actor", "/a/global_step_x"])(
    "refuse to resume from %s",
    (from) => {
      const resume = ["trainer.resume_mode=resume_path", `trainer.resume_from_path=${from}`];
      expect(problemsOf("0.9.1", resume)).toEqual(["error trainer.resume_from_path"]);
      expect(problemsOf("0.9.1", ["trainer.resume_mode=auto", resume[1]!])).toEqual([]);
    },
  );

  test.each<[overrides: string[], files?: object]>([
    [["trainer.default_local_dir=s3://bucket/run"]],
    [["trainer.default_local_dir=here", "rllm.trainer.save_freq=0"]],
    [["trainer.resume_mode=resume_path", "trainer.resume_from_path=hdfs://a/global_step_12"]],
    [["actor_rollout_ref.model.path=/models/a"]],
    [["actor_rollout_ref.model.path=a/./b"]],
    [["rllm.rollout.val.top_p=0.5", "rllm.rollout.train.temperature=0.5", "rllm.rollout.val.max_tokens=1024"]],
    [["rllm.algorithm.router_replay=R3"]],
    [["rllm.algorithm.router_replay=R2"], AGENT],
    [["rllm.rollout.val.max_tokens=9"], AGENT],
    [["reward.reward_manager.name=naive"]],
    [["reward.num_workers=3"]],
    [["custom_reward_function.path=null"]],
    [["rllm.algorithm.estimator_args={}"]],
  ])("are none of %j", (overrides, files = {}) => {
    expect(problemsOf("0.9.1", overrides, files)).toEqual([]);
  });

  test("name where a setting was written, and nothing for one that nobody wrote", () => {
    const overrides = READY.filter((each) => !each.startsWith("trainer."));
    const file = "rllm: { backend: verl }\nreward_model: { num_workers: 3 }\n";
    const composed = tryCompose({ readConfig, files: ["run.yaml"], readFile: () => file, overrides, env: {} });
    const { problems } = verlOverrides({ composed, version: verlVersion("0.9.1"), readConfig, files: FILES });
    const places = Object.fromEntries(
      problems.map(({ path, ...rest }) => [path, [rest.file, rest.line, "file" in rest]]),
    );
    expect(places["reward_model.num_workers"]).toEqual(["run.yaml", 2, true]);
    expect(places["trainer.default_local_dir"]).toEqual([undefined, undefined, false]);
  });

  test("tell what was written from what nobody wrote", () => {
    const { composed } = compose("0.9.1", [...READY, "reward.num_workers=3"]);
    const typed = ["reward.num_workers", "reward.reward_manager.name", "no.such.setting"];
    expect(typed.map((path) => isTyped(composed, path))).toEqual([true, false, false]);
  });

  test("allow what they refuse elsewhere", () => {
    expect(problemsOf("0.8.0", ["reward_model.reward_manager=dapo"])).toEqual([]);
    const own = ["custom_reward_function.path=a.py", "reward_model.enable=true", "reward_model.reward_manager=remote"];
    expect(
      problemsOf(
        "0.9.1",
        own.map((each) => `+my.${each}`),
      ),
    ).toEqual([]);
    expect(
      problemsOf("0.8.0", ["+my.reward_model.reward_manager=remote", "+reward_model.reward_manager_2=remote"]),
    ).toEqual([]);
    expect(problemsOf("0.9.1", ["trainer.default_local_dir=here", "rllm.trainer.save_freq=-1"])).toEqual([]);
    expect(
      problemsOf("0.9.1", ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/a/global_step_3"]),
    ).toEqual([]);
    expect(problemsOf("0.9.1", ["rllm.mask_truncated_samples=true"], AGENT)).toEqual([]);
    expect(problemsOf("0.9.1", ["actor_rollout_ref.actor.policy_loss.loss_mode=dro"])).toEqual([]);
  });

  test("warn of passes that do not hold a row", () => {
    const path = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu";
    expect(problemsOf("0.9.1", [`${path}=3071`])).toEqual([`warning ${path}`]);
    expect(problemsOf("0.9.1", [`${path}=3072`])).toEqual([]);
    expect(problemsOf("0.9.1", [`${path}=1`, "actor_rollout_ref.actor.use_dynamic_bsz=false"])).toEqual([]);
    const halves = (tokens: number) => [
      `${path}=${tokens}`,
      "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
    ];
    expect(problemsOf("0.9.1", halves(1536))).toEqual([]);
    expect(problemsOf("0.9.1", halves(1535))).toEqual([`warning ${path}`]);
    expect(overridesOf("0.9.1", [`${path}=100`]).problems[0]!.message).toContain(
      `A pass of ${path}=100 tokens does not hold the longest row of 3072 (`,
    );
  });

  test("warn of a limit that validation does not have", () => {
    expect(problemsOf("0.9.1", ["rllm.rollout.val.max_tokens=9"])).toEqual(["warning rllm.rollout.val.max_tokens"]);
  });

  test("name settings that the chosen version lacks, and the hooks of the run", () => {
    const { composed, readConfig } = compose("0.9.1", [...READY, "trainer.v1.trainer_mode=colocate_async"]);
    const request = { composed, readConfig, files: FILES, version: verlVersion("0.8.0"), hooks: ["the stage reward"] };
    expect(verlOverrides(request).problems.map(({ message }) => message)).toEqual([
      "Cannot set trainer.v1.trainer_mode: verl 0.8.0 has no such setting. Remove it, or choose another version of verl.",
      expect.stringMatching(/^Cannot use the stage reward: it acts in the training step/),
    ]);
    expect(problemsOf("0.9.0", ["actor_rollout_ref.rollout.router_config_path=a"])).toEqual([
      "error actor_rollout_ref.rollout.router_config_path",
    ]);
  });
});

test("versions go by their name, its beginning, or newest", () => {
  expect(["0.8", "0.9", "0.9.0", "newest"].map((name) => verlVersion(name).name)).toEqual([
    "0.8.0",
    "0.9.1",
    "0.9.0",
    "0.9.1",
  ]);
  for (const name of ["0.7.0", "0.9.10", "1", ""])
    expect(() => verlVersion(name)).toThrow(
      `Cannot make a run for verl ${name}: the known versions are 0.8.0, 0.9.0, 0.9.1.`,
    );
});

test("the lines of the page make a run for verl of the file of another backend", () => {
  const page = readFileSync(new URL("../../../docs/verl.md", import.meta.url), "utf8");
  const lines = /^```yaml\n([\s\S]*?)^```$/m.exec(page)![1]!;
  const file = `${lines}model: { name: Qwen/Qwen3-0.6B }\nrllm: { data: { max_response_length: 1024 } }\n`;
  const composed = composeConfig({ readConfig, files: ["run.yaml"], readFile: () => file, env: {} });
  const version = verlVersion("0.9.1");
  const { overrides, problems } = verlOverrides({ composed, version, readConfig, files: FILES });
  expect(problems).toEqual([]);
  expect(overrides).toContain("actor_rollout_ref.model.path=Qwen/Qwen3-0.6B");
  expect(overrides).toContain("trainer.default_local_dir=/shared/runs/sums");
});
