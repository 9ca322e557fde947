// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** What a user writes, one mistake at a time: the setting that is named, and what is said of it. */
import { describe, expect, test } from "vitest";
import { getAt } from "../../../src/train/config/yaml/tree.ts";
import { attempt, complaints, compose } from "./disk.ts";

const MASKED = "this is a masked secret (********). Write the value, or ${oc.env:NAME}.";
const TOKEN = "rllm.sdk.proxy.admin_token";
const ACTOR = "actor_rollout_ref.actor";

test.each<[set: string[], message: string]>([
  [[`${TOKEN}=********`], `Cannot set ${TOKEN}: ${MASKED}`],
  [[`${TOKEN}=pre********`], `Cannot set ${TOKEN}: ${MASKED}`],
  [["rllm.trainer.project_name=********"], `Cannot set rllm.trainer.project_name: ${MASKED}`],
  [["task.agent='http://u:********@h/run'"], `Cannot set task.agent: ${MASKED}`],
  [[`${TOKEN}=[hunter2]`], `Cannot set ${TOKEN}: it takes text.`],
  [
    ["rllm.rollout={n: 4, nope: 1}"],
    "Cannot set rllm.rollout.nope: there is no such setting. Did you mean rllm.rollout.n?",
  ],
  [
    ["rllm.rollout={}"],
    "Cannot set rllm.rollout: it is a section, not a setting ({}). Set for instance rllm.rollout.n.",
  ],
  [
    ["rllm.rollout=null"],
    "Cannot set rllm.rollout: it is a section, not a setting (null). Set for instance rllm.rollout.n.",
  ],
  [["~rllm.rollout.n=3"], "Cannot delete rllm.rollout.n: its value is not 3 (8)."],
  [["~nope"], "Cannot delete nope: it is not set."],
  [["~task.args"], "Cannot delete task.args: the code reads it by name. Set it to another value."],
  [
    ["rllm.trainer.logger.x=jsonl"],
    "Cannot set rllm.trainer.logger.x: the list has 1 item. Write rllm.trainer.logger=[...].",
  ],
  [
    ["rllm.trainer.logger=[console,jsonl]", "rllm.trainer.logger.2=jsonl"],
    "Cannot set rllm.trainer.logger.2: the list has 2 items. Write rllm.trainer.logger=[...].",
  ],
  [
    ["trainer.total_training_steps=3"],
    "Cannot set trainer.total_training_steps: the local backend has no such setting. Set rllm.trainer.total_batches, the portable name.",
  ],
  ...["clip_ratio", "clip_ratio_low"].map((name): [string[], string] => [
    [`${ACTOR}.${name}=0.1`],
    `Cannot set ${ACTOR}.${name}: the local backend has no such setting. Set rllm.algorithm.eps_clip, the portable name.`,
  ]),
  [
    [`${ACTOR}.use_dynamic_bsz=true`],
    `Cannot set ${ACTOR}.use_dynamic_bsz: the local backend has no such setting. Set training.max_tokens_per_pass: passes are always filled by tokens.`,
  ],
  [
    ["rllm/backend=tinker", "actor_rollout_ref.rollout.gpu_memory_utilization=0.5"],
    "Cannot set actor_rollout_ref.rollout.gpu_memory_utilization: there is no such setting. List them with: grpu config show",
  ],
  [
    ["rllm/backend=tinker", `${ACTOR}.optim.lr=1e-4`],
    `Cannot set ${ACTOR}.optim.lr: the tinker backend has no such setting. Set training.learning_rate.`,
  ],
  [
    ["rllm/backend=tinker", "actor_rollout_ref.rollout.max_num_seqs=4"],
    "Cannot set actor_rollout_ref.rollout.max_num_seqs: there is no such setting. List them with: grpu config show",
  ],
  [
    ["rllm/backend=verl", "reward_manager.name=x"],
    "Cannot set reward_manager.name: this version of verl has it elsewhere. Set reward.reward_manager.name.",
  ],
  [
    ["rllm/backend=verl", "actor_rollout_ref.rollout.n=0"],
    "Cannot set actor_rollout_ref.rollout.n: it takes int >= 1, or null (0).",
  ],
])("%j is refused", (set, message) => {
  expect(complaints(set)).toEqual([message]);
  expect(message).not.toContain("hunter2");
});

describe("what is taken", () => {
  test.each<[set: string[], path: string, value: unknown]>([
    [["rllm.trainer.project_name='a ******** b'"], "rllm.trainer.project_name", "a ******** b"],
    [["pipeline.stages.0='wrapper(generate)'"], "pipeline.stages.0", "wrapper(generate)"],
    [["+task.args.x=1", "~task.args.x=1"], "task.args", {}],
    [["task.args={a: {b: 1}}", "task.args.a.c=2"], "task.args", { a: { b: 1, c: 2 } }],
    [["log_episodes=true"], "rllm.episode_logging.log_episodes", true],
    [["++rllm.rollout.n=3"], "rllm.rollout.n", 3],
    [["rllm.rollout.n=3", "rllm.rollout.n=4"], "rllm.rollout.n", 4],
  ])("%j gives %s", (set, path, value) => {
    expect(getAt(compose(set).config, path)).toEqual(value);
  });

  test("under an old name, with a warning that has its line", () => {
    const text = "trainer:\n  log_episodes: true\n  episode_log_dir: y\n";
    const { config, warnings, origins } = compose([], { texts: { "a.yaml": text } });
    expect(warnings.map(({ line, message }) => `${line} ${message}`)).toEqual([
      "2 trainer.log_episodes is now rllm.episode_logging.log_episodes. The old name still works.",
      "3 trainer.episode_log_dir is now rllm.episode_logging.episode_log_dir. The old name still works.",
    ]);
    expect(getAt(config, "rllm.episode_logging.episode_log_dir")).toBe("y");
    expect(origins.get("rllm.episode_logging.episode_log_dir")).toMatchObject({ file: "a.yaml", line: 3 });
    expect(compose(["log_episodes=true"]).warnings.map(({ message }) => message)).toEqual([
      "log_episodes is now rllm.episode_logging.log_episodes. The old name still works.",
    ]);
  });

  test("an empty section of a file says nothing, and a value in its place is refused with its line", () => {
    expect(attempt([], { texts: { "a.yaml": "rllm:\n  rollout:\n  algorithm: {}\n" } }).problems).toEqual([]);
    const { problems } = attempt([], { texts: { "a.yaml": "rllm:\n  rollout: 5\n  trainer: [1]\n" } });
    expect(problems.map(({ line, message }) => `${line} ${message}`)).toEqual([
      "2 Cannot set rllm.rollout: it is a section, not a setting (5). Set for instance rllm.rollout.n.",
      "3 Cannot set rllm.trainer: it is a section, not a setting ([1]). Set for instance rllm.trainer.total_epochs.",
    ]);
  });

  test("an interpolation whose value does not fit is refused at each setting that gets it", () => {
    expect(complaints(["rllm.rollout.n='${rllm.trainer.project_name}'"])).toEqual([
      'Cannot set rllm.rollout.n: it takes int >= 1 ("rllm-training").',
      'Cannot set training.group_size: it takes int >= 1, or null ("rllm-training").',
    ]);
    expect(getAt(compose(["rllm.rollout.n='${rllm.trainer.test_freq}'"]).config, "training.group_size")).toBe(5);
  });
});

describe("a backend", () => {
  const registered = { "rllm.backend": ["mine"] };
  test("that a module registered has the settings of the local one, under its own name", () => {
    const { config, backend, origins } = compose(["rllm/backend=mine"], { registered });
    expect([backend, getAt(config, "rllm.backend")]).toEqual(["local", "mine"]);
    expect(origins.get("rllm.backend")?.text).toBe("override rllm/backend=mine");
    expect(complaints(["rllm/backend=mine"])[0]).toContain("Cannot choose rllm/backend=mine");
    expect(complaints(["rllm/backend=other"], { registered })[0]).toContain("Cannot choose rllm/backend=other");
  });

  test("that a file chooses twice in the same way is chosen", () => {
    const texts = { "a.yaml": "defaults: [{rllm/backend: verl}]\nrllm: {backend: verl}\n" };
    const { backend, problems, origins } = attempt([], { texts });
    expect([backend, problems]).toEqual(["verl", []]);
    expect(origins.get("rllm.backend")).toMatchObject({ file: "a.yaml", line: 2 });
    expect(complaints(["rllm/backend=verl", "rllm.backend=verl"])).toEqual([]);
  });

  test("that a file refuses twice is refused at the line of its value", () => {
    const texts = { "a.yaml": "# a run\nrllm:\n  backend: verk\n" };
    expect(attempt([], { texts }).problems).toMatchObject([{ file: "a.yaml", line: 3, path: "rllm/backend" }]);
    const listed = { "a.yaml": "defaults:\n  - rllm/backend: verk\n" };
    expect(attempt([], { texts: listed }).problems).toMatchObject([{ file: "a.yaml", line: 1, path: "rllm/backend" }]);
  });
});

test("a reward model's engine needs a name only where there is a reward model", () => {
  const missing = (...set: string[]) =>
    complaints(["rllm/backend=verl", "verl=0.9.1", ...set], { allowMissing: false })
      .filter((message) => message.includes("is mandatory"))
      .map((message) => message.split(" ")[2]);
  expect(missing()).toEqual(["actor_rollout_ref.rollout.name"]);
  expect(missing("reward.reward_model.enable=true")).toEqual([
    "actor_rollout_ref.rollout.name",
    "reward.reward_model.rollout.name",
  ]);
});

test("weights of an asynchronous run on verl travel by the engine that is typed, else NCCL", () => {
  const engine = "actor_rollout_ref.rollout.checkpoint_engine.backend";
  const used = (...set: string[]) => {
    const more = ["rllm.async_training.enable=true", "rllm.workflow.raise_on_error=false", ...set];
    return getAt(attempt(["rllm/backend=verl", ...more]).config, engine);
  };
  expect([used(), used(`${engine}=naive`), used(`${engine}=nixl`)]).toEqual(["nccl", "nccl", "nixl"]);
  expect(used(`${engine}=nixl`, "rllm.async_training.enable=false")).toBe("naive");
});
