/** The job of a Trinity run: its configuration, the split of the GPUs, its files, and what is refused. */
import { describe, expect, test } from "vitest";
import { dryRunText } from "../../../src/cluster/ray/dry_run.ts";
import { type TrinityJobRequest, trinityJob } from "../../../src/cluster/trinity/job.ts";
import { tryCompose } from "../../../src/train/config/compose.ts";
import { getAt } from "../../../src/train/config/yaml/tree.ts";
import { readConfig } from "../../train/config/disk.ts";

const READY = [
  "rllm/backend=trinity",
  "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B",
  "trainer.default_local_dir=/shared/run",
  "training.num_minibatches=1",
  "rllm.data.train_batch_size=4",
  "trainer.n_gpus_per_node=8",
];
const TASKS = Array.from({ length: 10 }, (_, i) => ({
  id: `t${i}`,
  instruction: `${i}+1=`,
  metadata: { answer: i + 1 },
}));

/** @param more.file the text of a file of the user's */
function jobOf(
  overrides: readonly string[],
  { file, ...more }: Partial<TrinityJobRequest> & { readonly file?: string } = {},
) {
  const ofUser = file === undefined ? {} : { files: ["run.yaml"], readFile: () => file };
  const composed = tryCompose({ readConfig, overrides: [...READY, ...overrides], env: {}, ...ofUser });
  expect(composed.problems).toEqual([]);
  return trinityJob({
    ...{ composed, hasAgent: false, submission_id: "grpu-t", train: TASKS, val: TASKS.slice(0, 2) },
    ...{ service: { url: "http://10.0.0.1:1", token: "secret-of-the-run" }, readPackaged: readConfig, ...more },
  });
}
const told = (overrides: readonly string[], more?: Partial<TrinityJobRequest>) =>
  jobOf(overrides, more).problems.map(({ severity, message }) => `${severity}: ${message}`);

describe("Trinity's configuration of a run", () => {
  test("has its batches, tasksets, workflow, length and folder", () => {
    const { tree, problems } = jobOf(["rllm.trainer.total_epochs=3", "rllm.rollout.n=2", "training.num_minibatches=2"]);
    expect(problems).toEqual([]);
    const read = (path: string) => getAt(tree, path);
    expect(read("mode")).toBe("both");
    expect(read("buffer.batch_size")).toBe(2);
    expect(read("buffer.train_batch_size")).toBe(4);
    expect(read("algorithm.repeat_times")).toBe(2);
    expect(read("synchronizer.sync_interval")).toBe(2);
    expect(read("synchronizer.sync_offset")).toBe(0);
    // 10 tasks fill two batches of 4 in each of 3 epochs; a batch is two steps of Trinity's.
    expect([read("buffer.total_steps"), read("trainer.total_steps")]).toEqual([12, 12]);
    expect(read("checkpoint_root_dir")).toBe("/shared/run");
    expect(read("buffer.explorer_input.default_workflow_type")).toBe("trinity_reward.GrpuReward");
    expect(read("buffer.explorer_input.tasksets")).toMatchObject([
      { name: "train", path: "tasks/train", split: "train" },
    ]);
    expect(read("buffer.explorer_input.eval_tasksets")).toMatchObject([{ name: "val", path: "tasks/val" }]);
    expect(read("model.enable_prompt_truncation")).toBe(true);
  });

  test("of an agent runs its workflow, several rollouts at once, and nothing without validation tasks", () => {
    const { tree, job } = jobOf(["rllm.disable_thinking=true"], { hasAgent: true, val: [] });
    expect(getAt(tree, "buffer.explorer_input.default_workflow_type")).toBe("trinity_agent.GrpuAgent");
    expect(getAt(tree, "explorer.concurrent_mode")).toBe("asynchronous");
    expect(getAt(tree, "model.enable_thinking")).toBe(false);
    expect(getAt(tree, "buffer.explorer_input.eval_tasksets")).toBeUndefined();
    expect([...job.files.keys()]).toEqual([
      ...["trinity.yaml", "tasks/train/train.jsonl", "grpu_service.py", "trinity_driver.py", "trinity_reward.py"],
      "trinity_agent.py",
    ]);
    expect(job.entrypoint).toBe("python3 trinity_driver.py trinity.yaml");
  });

  test.each<[overrides: string[], interval: unknown, before: unknown, sets: number]>([
    [["rllm.trainer.test_freq=5"], 5, undefined, 1],
    [["rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=true"], 1_000_000_000, undefined, 1],
    [["rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false"], undefined, false, 0],
    [["rllm.trainer.test_freq=0", "rllm.trainer.val_before_train=false"], undefined, false, 0],
    [["rllm.trainer.test_freq=0", "rllm.trainer.val_before_train=true"], 1_000_000_000, undefined, 1],
    [["rllm.trainer.val_only=true", "rllm.trainer.test_freq=-1"], 1_000_000_000, undefined, 1],
  ])("validates as %j says", (overrides, interval, before, sets) => {
    const { tree, problems } = jobOf(overrides);
    expect(problems).toEqual([]);
    expect(getAt(tree, "explorer.eval_interval")).toBe(interval);
    if (before !== undefined) expect(getAt(tree, "explorer.eval_on_startup")).toBe(before);
    expect(getAt(tree, "buffer.explorer_input.eval_tasksets") ?? []).toHaveLength(sets);
    expect(getAt(tree, "mode")).toBe(overrides[0]!.includes("val_only") ? "bench" : "both");
  });

  test("takes the section trinity over what is converted", () => {
    const { tree, problems } = jobOf([
      "trinity.explorer.rollout_model.engine_num=2",
      "trinity.synchronizer.sync_offset=1",
      "trinity.monitor.monitor_type=wandb",
    ]);
    expect(problems).toEqual([]);
    expect(getAt(tree, "explorer.rollout_model.engine_num")).toBe(2);
    expect(getAt(tree, "synchronizer.sync_offset")).toBe(1);
    expect(getAt(tree, "monitor.monitor_type")).toBe("wandb");
  });

  test.each<[overrides: string[], fact: string]>([
    [["trinity.explorer.rollout_model.engine_num=2"], "GPUs: 1 x 8: rollouts 2 (2 engines of 1), trainer 6"],
    [
      ["trainer.nnodes=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=4"],
      "GPUs: 2 x 8: rollouts 8 (2 engines of 4), trainer 8",
    ],
    [["trinity.mode=bench"], "GPUs: 1 x 8: rollouts 4 (4 engines of 1)"],
    [["trinity.model.tinker.enable=true"], "GPUs: none of the cluster's (model.tinker), or left to Ray"],
  ])("with %j says %s", (overrides, fact) => {
    const plan = jobOf(overrides);
    expect(plan.problems).toEqual([]);
    expect(dryRunText(plan)).toContain(`${fact}\n`);
    expect(dryRunText(plan)).not.toContain("secret-of-the-run");
  });
});

test.each<[path: string, overrides: string[], value: unknown]>([
  // The order of the tasks is the run's, unless verl's own name says otherwise.
  ["buffer.explorer_input.tasksets.0.data_selector.seed", [], 0],
  ["buffer.explorer_input.tasksets.0.data_selector.seed", ["rllm.data.seed=5"], 5],
  ["buffer.explorer_input.tasksets.0.data_selector.seed", ["rllm.data.seed=5", "data.seed=7"], 7],
  // Defaults of the run, which differ from Trinity's.
  ["model.max_prompt_tokens", [], 2048],
  ["model.max_response_tokens", [], 30_720],
])("%s with %j is %j", (path, overrides, value) => {
  expect(getAt(jobOf(overrides).tree, path)).toBe(value);
});

test("a setting of a file that does nothing on Trinity is named with its line", () => {
  const { problems } = jobOf([], { file: "data:\n  shuffle: true\n  truncation: left\n" });
  expect(problems).toEqual([
    expect.objectContaining({ severity: "warning", path: "data.truncation", file: "run.yaml", line: 3 }),
  ]);
});

test.each<[overrides: string[], explores: number, trains: number, fact: string]>([
  [[], 2, 2, "steps: 2 of 4 tasks"],
  [["trinity.buffer.total_steps=5"], 5, 5, "steps: 5 of 4 tasks"],
  [["trinity.trainer.total_steps=5"], 5, 5, "steps: 5 of 4 tasks"],
  // What a run that lacked rollouts goes on with.
  [["trinity.buffer.total_steps=6", "trinity.trainer.total_steps=5"], 6, 5, "steps: 6 of 4 tasks, 5 of training"],
  [
    [
      "trinity.buffer.train_batch_size=8",
      "rllm.rollout.n=1",
      "trinity.trainer.total_steps=1",
      "trinity.buffer.total_steps=2",
    ],
    ...([2, 1, "steps: 2 of 4 tasks, 1 of training"] as const),
  ],
  [["rllm.trainer.total_batches=1"], 1, 1, "steps: 1 of 4 tasks"],
  // Rows that are no rollouts of this run fill the trainer's batches as well.
  ...["algorithm.sample_strategy=mix", "algorithm.algorithm_type=mix"].map(
    (mixed): [string[], number, number, string] => [
      [`trinity.${mixed}`, "trinity.buffer.total_steps=3", "trinity.trainer.total_steps=4"],
      ...([3, 4, "steps: 3 of 4 tasks, 4 of training"] as const),
    ],
  ),
  [["trinity.log.level=debug", "rllm.trainer.total_batches=7"], 7, 7, "steps: 7 of 4 tasks"],
])("the length of %j: %i steps explored, %i trained", (overrides, explores, trains, fact) => {
  const plan = jobOf(["rllm.trainer.total_epochs=1", ...overrides]);
  expect(plan.problems).toEqual([]);
  const read = (path: string) => getAt(plan.tree, path);
  expect([read("buffer.total_steps"), read("trainer.total_steps"), plan.facts[1]]).toEqual([explores, trains, fact]);
});

test("a dry run prints no secret; the file that the job takes has them", () => {
  const plan = jobOf([
    "trinity.monitor.monitor_args={api_key: hunter1, base_url: 'https://u:hunter2@host/x'}",
    "trinity.buffer.trainer_input.experience_buffer.path='postgresql://u:hunter3@tail@h/db?password=hunter4'",
    "trinity.explorer.env_vars={MY_KEY: hunter5, HF_TOKEN: hunter6, PLAIN: seen, PROXY: 'http://u:hunter7@h'}",
  ]);
  expect(plan.problems).toEqual([]);
  const text = dryRunText(plan);
  expect(text).not.toMatch(/hunter\d|tail/);
  for (const shown of ["api_key: ", "postgresql://u:********@h/db?password=********", "PLAIN: seen", "MY_KEY: "])
    expect(text).toContain(shown);
  const file = new TextDecoder().decode(plan.job.files.get("trinity.yaml"));
  for (const number of [1, 2, 3, 4, 5, 6, 7]) expect(file).toContain(`hunter${number}`);
});

const OVER = ["trinity.explorer.over_rollout.ratio=0.3", "trinity.synchronizer.sync_style=explorer_driven"];

test("an explorer that does not wait for every task has steps enough", () => {
  const lengths = ["trinity.buffer.total_steps=4", "trinity.trainer.total_steps=3"];
  const { problems, tree } = jobOf([...OVER, ...lengths, "rllm.rollout.n=2"]);
  expect(problems).toEqual([]);
  expect(getAt(tree, "explorer.over_rollout.ratio")).toBe(0.3);
  expect(told(["trinity.explorer.over_rollout.ratio=0"])).toEqual([]);
});

const DB = "trinity.buffer.trainer_input.experience_buffer.path=/shared/rollouts.db";

test.each<[mode: string, more: string[], steps: string]>([
  [
    "explore",
    [DB, "trinity.explorer.rollout_model.engine_num=8", "trinity.trainer.total_steps=9"],
    "steps: 9 of 4 tasks",
  ],
  ["train", [DB, "trinity.buffer.total_steps=1", "trinity.trainer.total_steps=9"], "steps: 9 of 8 rollouts"],
  ["bench", ["trinity.explorer.rollout_model.engine_num=8"], "steps: none, checkpoints are evaluated"],
  ["colocate", ["trainer.n_gpus_per_node=1", "rllm.trainer.total_batches=2"], "steps: 2 of 4 tasks"],
])("mode %s takes what is its own", (mode, more, steps) => {
  const { problems, facts } = jobOf([`trinity.mode=${mode}`, "rllm.rollout.n=2", ...more]);
  expect([problems, facts[1]]).toEqual([[], steps]);
});

test.each<[overrides: string[], says: string]>([
  [["trainer.n_gpus_per_node=1"], "error: Cannot split the GPUs: none is left to train (1 x 1 = 1 GPUs: explorer 1"],
  [
    ["trainer.nnodes=2", "trinity.explorer.rollout_model.engine_num=3"],
    "error: Cannot split the GPUs: a trainer on several nodes needs whole nodes",
  ],
  [
    ["trinity.mode=bench", "trinity.explorer.rollout_model.engine_num=9"],
    "error: Cannot split the GPUs: mode=bench only samples",
  ],
  [["trinity.mode=colocate"], "error: Cannot split the GPUs: mode=colocate shares one GPU"],
  [["trinity.mode=serve"], "error: Cannot run Trinity with trinity.mode=serve: a run here has an end"],
  [["trinity.mode=explore"], "error: Cannot run Trinity with trinity.mode=explore: nothing would keep the rollouts."],
  [["trinity.mode=train"], "error: Cannot run Trinity with trinity.mode=train: there are no rollouts to train on."],
  [
    ["trainer.default_local_dir=ckpt"],
    "error: Cannot train in trainer.default_local_dir=ckpt: Trinity keeps checkpoints",
  ],
  [["actor_rollout_ref.model.path=./m"], "error: Cannot train actor_rollout_ref.model.path=./m: this folder is not on"],
  [["rllm.data.train_batch_size=11"], "error: Cannot train on 10 tasks with data.train_batch_size=11"],
  [["trinity.explorer.rolout_model.engine_num=2"], "Did you mean trinity.explorer.rollout_model.engine_num?"],
  [
    ["trinity.explorer.rollout_model.engine_num=two"],
    "error: Cannot set trinity.explorer.rollout_model.engine_num: it takes int",
  ],
  [
    ["trinity.buffer.explorer_input.default_workflow_type=x"],
    "error: Cannot set trinity.buffer.explorer_input.default_workflow_type: tasks, rewards and agents are this run's own.",
  ],
  ...["WARNING", "error", "CRITICAL"].map((level): [string[], string] => [
    [`trinity.log.level=${level}`],
    "error: Cannot set trinity.log.level: metrics, failures and errors are read from lines of the level INFO.",
  ]),
  [["trinity.log.save_dir=/logs"], "error: Cannot set trinity.log.save_dir: Trinity writes its logs beside"],
  [
    ["trinity.stages=[{stage_name: a, mode: train}]"],
    "error: Cannot set trinity.stages.0.mode: the job runs one stage",
  ],
  [["trinity.buffer.total_epochs=3"], "error: Cannot set trinity.buffer.total_epochs: the run's length is given in"],
  [
    ["trinity.mode=colocate", "trinity.buffer.total_steps=3", "trinity.trainer.total_steps=4"],
    "error: Cannot set trinity.trainer.total_steps=4",
  ],
  [["trinity.buffer.total_steps=null"], "error: Cannot set trinity.buffer.total_steps=null: a run here has an end."],
  [
    ["rllm.rollout.n=2", "trinity.buffer.total_steps=3", "trinity.trainer.total_steps=4"],
    "error: Cannot set trinity.trainer.total_steps=4: its steps train on 32 rollouts, and trinity.buffer.total_steps=3 makes 24.",
  ],
  [
    ["trinity.buffer.train_batch_size=8", "rllm.rollout.n=1", "rllm.trainer.total_batches=2"],
    "error: Cannot set trinity.trainer.total_steps=2: its steps train on 16 rollouts, and trinity.buffer.total_steps=2 makes 8.",
  ],
  [
    ["trinity.explorer.over_rollout.ratio=0.25"],
    "error: Cannot set trinity.explorer.over_rollout.ratio=0.25 with trinity.synchronizer.sync_style=fixed: Trinity refuses",
  ],
  [
    ["trinity.explorer.over_rollout.return_partial_tasks=true"],
    "error: Cannot set trinity.explorer.over_rollout.return_partial_tasks=true with trinity.synchronizer.sync_style=fixed",
  ],
  [
    ["trinity.explorer.over_rollout.ratio=1", "trinity.synchronizer.sync_style=explorer_driven"],
    "error: Cannot set trinity.explorer.over_rollout.ratio=1: it is the share of a batch's tasks",
  ],
  [
    [...OVER, "rllm.rollout.n=2", "trinity.buffer.total_steps=4"],
    "error: Cannot set trinity.trainer.total_steps=4: its steps train on 32 rollouts, and trinity.buffer.total_steps=4 makes at least 24.",
  ],
  [["custom_reward_function.path=r.py"], "error: Cannot set custom_reward_function.path: rewards come from"],
  [["algorithm.adv_estimator=opo"], "error: Cannot convert algorithm.adv_estimator=opo: Trinity has no such estimator"],
  [
    ["actor_rollout_ref.actor.optim.optimizer=SGD"],
    "error: Cannot set actor_rollout_ref.actor.optim.optimizer on Trinity",
  ],
  [["data.truncation=left"], "warning: data.truncation has no effect on Trinity: Trinity truncates on the right"],
  [
    ["trinity.explorer.rollout_model.engine_type=external"],
    "error: Cannot sample with trinity.explorer.rollout_model.engine_type=external",
  ],
  [
    ["trinity.model.tinker.enable=true", "algorithm.adv_estimator=gae"],
    "error: Cannot train with algorithm.adv_estimator=gae on trinity.model.tinker: it has no critic.",
  ],
])("%j: %s", (overrides, says) => {
  expect(told(overrides).join("\n")).toContain(says);
});

test("an agent on an engine that takes only text, and a hook of the step, are refused", () => {
  expect(told(["actor_rollout_ref.rollout.name=sglang"])).toEqual([]);
  expect(told(["actor_rollout_ref.rollout.name=sglang"], { hasAgent: true })).toEqual([
    expect.stringContaining("error: Cannot run an agent on actor_rollout_ref.rollout.name=sglang"),
  ]);
  expect(told([], { hooks: ["my_stage"] })).toEqual([expect.stringContaining("error: Cannot use my_stage")]);
  expect(told(["trinity.mode=bench"], { val: [] }).join()).toContain("there are no validation tasks");
});
