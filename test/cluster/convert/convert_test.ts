// biome-ignore-all lint/suspicious/noTemplateCurlyInString: interpolations are what is tested
/** Conversion between verl, rLLM and Trinity-RFT beyond the worked examples. */
import { describe, expect, test } from "vitest";
import type { ConvertedSource, ConvertOptions, Note, TrainingSystem } from "../../../src/cluster/convert/contract.ts";
import { convert, readProfile } from "../../../src/cluster/convert/convert.ts";
import { diffSources, formatDiff } from "../../../src/cluster/convert/inspect/diff.ts";
import { validateFile } from "../../../src/cluster/convert/inspect/validate.ts";
import { formatNote, writeProfile } from "../../../src/cluster/convert/notes.ts";
import { readSource } from "../../../src/cluster/convert/source/read.ts";
import { rewriteYaml, writeArgs, writeYaml } from "../../../src/cluster/convert/write.ts";
import { readYaml } from "../../../src/train/config/yaml/read.ts";
import type { YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { readConfig } from "../../train/config/disk.ts";

const ACTOR = "actor_rollout_ref.actor";
const LOSS = `${ACTOR}.policy_loss.loss_mode`;
const [LOW, HIGH] = [`${ACTOR}.clip_ratio_low`, `${ACTOR}.clip_ratio_high`];
const ENGINES = new Map<string, YamlValue>([["explorer.rollout_model.engine_num", 1]]);
const args = (...lines: string[]) => readSource([{ name: "in.args", text: lines.join("\n") }], "verl");
const yaml = (text: string, system: TrainingSystem) => readSource([{ name: "in.yaml", text }], system);
const plain = (source: Pick<ConvertedSource, "values">) =>
  Object.fromEntries([...source.values].map(([path, { value }]) => [path, value]));

function run(source: ConvertedSource, to: TrainingSystem, options: ConvertOptions = {}) {
  const result = convert(source, {
    to,
    readConfig,
    profile: to === "trinity" ? ENGINES : new Map(),
    ...options,
  });
  const out = Object.fromEntries([...result.values].map(([path, { value }]) => [path, value]));
  const errors = result.problems.map(({ message }) => message);
  const checks = result.notes.filter(({ kind }) => kind === "check").map(({ message }) => message ?? "");
  const dropped = result.notes.filter(({ kind }) => kind === "dropped").map(({ from }) => from);
  return { out, errors, checks, dropped, result };
}

describe("verl to Trinity", () => {
  const cases: [name: string, set: string[], gives: Record<string, YamlValue | undefined>][] = [
    [
      "k3 is clamped in verl, so it is low_var_kl",
      [`${ACTOR}.use_kl_loss=true`, `${ACTOR}.kl_loss_type=k3`],
      { "algorithm.kl_loss_fn": "low_var_kl" },
    ],
    [
      "kl is k1, mse is k2",
      ["algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=mse"],
      { "algorithm.kl_penalty_fn": "k2" },
    ],
    [
      "no KL loss is said, as Trinity's default is k2",
      [],
      { "algorithm.kl_loss_fn": "none", "algorithm.kl_penalty_fn": undefined },
    ],
    [
      "an adaptive controller",
      ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100"],
      { "algorithm.kl_penalty_fn_args.adaptive": true, "algorithm.kl_penalty_fn_args.horizon": 100 },
    ],
    [
      "batches",
      ["data.train_batch_size=64", `${ACTOR}.ppo_mini_batch_size=16`, "actor_rollout_ref.rollout.n=4"],
      {
        "buffer.batch_size": 16,
        "buffer.train_batch_size": 64,
        "synchronizer.sync_interval": 4,
        "algorithm.repeat_times": 4,
      },
    ],
    [
      "-1 is off",
      ["trainer.save_freq=-1", "trainer.test_freq=-1", "data.val_files=/d/test.parquet"],
      {
        "trainer.save_interval": 0,
        "explorer.eval_interval": undefined,
        "buffer.explorer_input.eval_tasksets.0.path": undefined,
      },
    ],
    [
      "total steps go to both",
      ["trainer.total_training_steps=100"],
      { "buffer.total_steps": 100, "trainer.total_steps": 100 },
    ],
    [
      "folders",
      ["trainer.default_local_dir='~/out/${trainer.project_name}/${trainer.experiment_name}'"],
      { checkpoint_root_dir: "${oc.env:HOME}/out" },
    ],
    [
      "validation sampling goes to every evaluation set",
      [
        "data.val_files=[/a/test.parquet,/b/test.parquet]",
        "actor_rollout_ref.rollout.val_kwargs.temperature=0.5",
        "actor_rollout_ref.rollout.val_kwargs.n=3",
      ],
      {
        "buffer.explorer_input.eval_tasksets.0.rollout_args.temperature": 0.5,
        "buffer.explorer_input.eval_tasksets.1.repeat_times": 3,
      },
    ],
    [
      "shuffle and seed go to every set",
      ["data.train_files=/a/train.parquet", "data.shuffle=true", "data.seed=3"],
      {
        "buffer.explorer_input.tasksets.0.task_selector.selector_type": "shuffle",
        "buffer.explorer_input.tasksets.0.task_selector.seed": 3,
      },
    ],
    [
      "two folders of one name stay apart",
      ["data.train_files=[/a/x/train.parquet,/b/x/train.parquet]"],
      { "buffer.explorer_input.tasksets.0.name": "x", "buffer.explorer_input.tasksets.1.name": "x_2" },
    ],
    [
      "a file that is no split stays a file",
      ["data.train_files=/a/rows.jsonl"],
      {
        "buffer.explorer_input.tasksets.0.path": "/a/rows.jsonl",
        "buffer.explorer_input.tasksets.0.split": "train",
      },
    ],
    [
      "what is not listed goes to trainer_config",
      [`${ACTOR}.shuffle=true`, "critic.ppo_epochs=2"],
      { [`trainer.trainer_config.${ACTOR}.shuffle`]: true, "trainer.trainer_config.critic.ppo_epochs": 2 },
    ],
    ["LoRA", ["actor_rollout_ref.model.lora_rank=8"], { "model.lora_configs.0.lora_rank": 8 }],
    ["another engine", ["actor_rollout_ref.rollout.name=sglang"], { "explorer.rollout_model.engine_type": "sglang" }],
  ];
  for (const [name, set, gives] of cases) {
    test(name, () => {
      const { out, errors } = run(args("algorithm.adv_estimator=grpo", ...set), "trinity");
      expect(errors).toEqual([]);
      expect(Object.fromEntries(Object.keys(gives).map((path) => [path, out[path]]))).toEqual(gives);
    });
  }

  test("the two builders put settings in different places", () => {
    const source = args(
      "algorithm.adv_estimator=gae",
      "actor_rollout_ref.model.use_remove_padding=true",
      "trainer.critic_warmup=2",
      "critic.model.fsdp_config.param_offload=true",
      "data.train_files=/a/train.parquet",
      "data.shuffle=true",
    );
    const legacy = run(source, "trinity").out;
    const fresh = run(source, "trinity", { target: "new" }).out;
    expect(legacy["trainer.trainer_config.actor_rollout_ref.model.use_remove_padding"]).toBe(true);
    expect(fresh["trainer.use_remove_padding"]).toBe(true);
    expect(legacy["trainer.trainer_config.trainer.critic_warmup"]).toBe(2);
    expect(fresh["trainer.critic_warmup"]).toBe(2);
    expect(legacy["trainer.trainer_config.critic.model.fsdp_config.param_offload"]).toBe(true);
    expect(fresh["trainer.trainer_config.critic.fsdp.param_offload"]).toBe(true);
    expect(fresh["buffer.explorer_input.tasksets.0.data_selector.selector_type"]).toBe("shuffle");
    for (const target of ["legacy", "new"] as const) {
      const there = run(source, "trinity", { target });
      const back = run({ ...source, system: "trinity", values: asSource(there.out) }, "verl");
      expect(back.out["trainer.critic_warmup"]).toBe(2);
      expect(back.out["critic.model.fsdp_config.param_offload"]).toBe(true);
    }
  });

  const LOSSES: [set: string[], gives: Record<string, YamlValue | undefined>][] = [
    [[], { fn: undefined, low: undefined, high: undefined }],
    [[`${LOSS}=gspo`], { fn: "gspo", low: 0.2, high: 0.2 }],
    [[`${LOSS}=cispo`, `${HIGH}=0.3`], { fn: "cispo", low: 0.2, high: 0.3 }],
    [[`${LOSS}=cispo`, `${ACTOR}.clip_ratio=0.3`], { fn: "cispo", range: undefined, low: 0.2, high: 0.2 }],
    [[`${HIGH}=0.28`], { low: 0.2, high: 0.28 }],
    [[`${ACTOR}.clip_ratio_c=10`], { low: 0.2, high: 0.2 }],
    [[`${ACTOR}.clip_ratio=0.3`], { range: 0.3, low: undefined }],
  ];
  test.each(LOSSES)("arguments of a loss are complete, because they replace Trinity's: %j", (set, gives) => {
    const { out, errors } = run(args("algorithm.adv_estimator=grpo", ...set), "trinity");
    const at = "algorithm.policy_loss_fn";
    const [range, low, high] = ["", "_low", "_high"].map((side) => out[`${at}_args.clip_range${side}`]);
    expect(errors).toEqual([]);
    expect({ fn: out[at], range, low, high }).toMatchObject(gives);
  });

  test("a loss that brings its own aggregation keeps it, in verl's versions and in Trinity", () => {
    const MODE = `${ACTOR}.loss_agg_mode`;
    const rllm = yaml("rllm: {algorithm: {loss_fn: gspo}}\n", "rllm");
    expect(run(rllm, "verl").out[MODE]).toBe("seq-mean-token-mean");
    expect(run(rllm, "trinity").out["algorithm.loss_agg_mode"]).toBe("seq-mean-token-mean");
    for (const loss of ["vanilla", "sapo"])
      expect(run(yaml(`rllm: {algorithm: {loss_fn: ${loss}}}\n`, "rllm"), "verl").out[MODE]).toBeUndefined();
    const verl = (...set: string[]) => args("algorithm.adv_estimator=grpo", ...set);
    expect(run(verl(`${LOSS}=sapo`), "trinity").out["algorithm.loss_agg_mode"]).toBe("seq-mean-token-mean");
    const told = (...set: string[]) => run(verl(...set), "rllm").checks.join();
    expect(told(`${LOSS}=gspo`)).toMatch(/^verl 0\.9\.1 averages gspo by loss_agg_mode \(token-mean\); other versions/);
    expect(told(`${LOSS}=sapo`, `${MODE}=token-sum`)).toMatch(/^verl and the backends here average sapo by seq-mean/);
    expect(told(`${LOSS}=gspo`, `${MODE}=seq-mean-token-mean`)).toBe("");
    expect(told(`${LOSS}=vanilla`)).toBe("");
  });

  test("arguments that a Trinity function does not take are dropped and reported", () => {
    const set = [`${LOSS}=gspo`, `${ACTOR}.clip_ratio_c=10`, "algorithm.gamma=1", "algorithm.lam=0.95"];
    const { out, dropped } = run(args("algorithm.adv_estimator=grpo", ...set), "trinity");
    expect(dropped.sort()).toEqual([`${ACTOR}.clip_ratio_c`, "algorithm.gamma", "algorithm.lam"].sort());
    expect(Object.keys(out).filter((path) => /_fn_args\.(clip_ratio_c|gamma|lam)/.test(path))).toEqual([]);
    const ppo = run(args("algorithm.adv_estimator=gae", ...set.slice(2)), "trinity");
    expect(ppo.out["algorithm.advantage_fn_args.lam"]).toBe(0.95);
  });

  test("copied steps are reported with their meaning", () => {
    const { checks } = run(
      args(
        "algorithm.adv_estimator=grpo",
        "data.train_batch_size=64",
        `${ACTOR}.ppo_mini_batch_size=16`,
        "trainer.total_training_steps=100",
        "trainer.save_freq=20",
      ),
      "trinity",
    );
    expect(checks.join("\n")).toContain(
      "buffer.total_steps=100 is copied, and a step of Trinity explores 1/4 of the prompts",
    );
    expect(checks.join("\n")).toContain("--cadence scale writes 400");
    expect(checks.join("\n")).toContain("trainer.save_interval: copied, so 4 times as often as in verl");
  });

  test("GPUs that no number of engines leaves to train are refused; else the fewest engines that fit are chosen", () => {
    const chosen = (...set: string[]) => {
      const { out, errors } = run(
        args("algorithm.adv_estimator=grpo", "trainer.nnodes=2", "trainer.n_gpus_per_node=8", ...set),
        "trinity",
        { profile: new Map() },
      );
      return errors.length > 0 ? errors[0] : out["explorer.rollout_model.engine_num"];
    };
    const tensor = (size: number) => `actor_rollout_ref.rollout.tensor_model_parallel_size=${size}`;
    expect([
      chosen(tensor(2)),
      chosen(tensor(8)),
      chosen("trainer.nnodes=1", tensor(2), "actor_rollout_ref.rollout.n=4"),
    ]).toEqual([4, 1, 2]);
    expect(chosen(tensor(16))).toContain("none is left to train");
  });

  test("steps are copied, or scaled by sync_interval and back", () => {
    const source = args(
      "algorithm.adv_estimator=grpo",
      "data.train_batch_size=64",
      `${ACTOR}.ppo_mini_batch_size=16`,
      "trainer.save_freq=20",
      "trainer.test_freq=5",
      "trainer.total_training_steps=10",
      "data.val_files=/a/test.parquet",
    );
    const scaled = run(source, "trinity", { cadence: "scale" });
    expect([
      scaled.out["trainer.save_interval"],
      scaled.out["explorer.eval_interval"],
      scaled.out["trainer.total_steps"],
    ]).toEqual([80, 20, 40]);
    const back = run({ ...source, system: "trinity", values: asSource(scaled.out) }, "verl", {
      cadence: "scale",
    });
    expect([
      back.out["trainer.save_freq"],
      back.out["trainer.test_freq"],
      back.out["trainer.total_training_steps"],
    ]).toEqual([20, 5, 10]);
    expect(run(source, "trinity").out["trainer.save_interval"]).toBe(20);
  });

  const refused: [name: string, set: string[], rule: RegExp][] = [
    ["an estimator that Trinity lacks", ["algorithm.adv_estimator=opo"], /opo: Trinity has no such estimator/],
    [
      "a loss that Trinity lacks",
      ["algorithm.adv_estimator=grpo", `${LOSS}=geo_mean`],
      /loss_mode=geo_mean: Trinity has no such loss \(it has vanilla, gspo, sapo, cispo\)/,
    ],
    [
      "a straight-through KL",
      ["algorithm.adv_estimator=grpo", `${ACTOR}.use_kl_loss=true`, `${ACTOR}.kl_loss_type=k3+`],
      /k3\+: Trinity has no such estimator/,
    ],
    [
      "a batch that is not a multiple",
      ["algorithm.adv_estimator=grpo", "data.train_batch_size=100", `${ACTOR}.ppo_mini_batch_size=64`],
      /100 is not a multiple of .*64/,
    ],
    [
      "a batch that only the environment knows",
      ["algorithm.adv_estimator=grpo", "data.train_batch_size=${oc.env:BATCH}"],
      /data\.train_batch_size is not a number .*--env NAME=VALUE/,
    ],
    [
      "an engine that Trinity lacks",
      ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.name=trtllm"],
      /rollout\.name=trtllm: Trinity samples with vllm, sglang, external/,
    ],
    [
      "no GPU left to train",
      [
        "algorithm.adv_estimator=grpo",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
      ],
      /none is left to train \(1 x 2 = 2 GPUs: explorer 2, auxiliary 0, trainer 0\)/,
    ],
    [
      "part of a node",
      ["algorithm.adv_estimator=grpo", "trainer.nnodes=3", "trainer.n_gpus_per_node=8"],
      /needs whole nodes \(3 x 8 = 24 GPUs: explorer 1/,
    ],
    [
      "one sequence is more than a pass",
      [
        "algorithm.adv_estimator=grpo",
        "data.max_prompt_length=512",
        "data.max_response_length=512",
        `${ACTOR}.ppo_max_token_len_per_gpu=1000`,
      ],
      /1000 x 1 GPUs is less than one sequence \(1024 tokens\)/,
    ],
    [
      "a misspelt setting",
      ["algorithm.adv_estimater=grpo"],
      /algorithm\.adv_estimater among verl's settings\. Did you mean algorithm\.adv_estimator\?/,
    ],
  ];
  for (const [name, set, rule] of refused) {
    test(`refused: ${name}`, () => expect(run(args(...set), "trinity").errors.join("\n")).toMatch(rule));
  }

  test("the profile provides settings without a source, and wins", () => {
    const profile = new Map<string, YamlValue>([
      ...ENGINES,
      ["algorithm.algorithm_type", "rec"],
      ["algorithm.advantage_fn", "rec"],
      ["synchronizer.sync_offset", 0],
    ]);
    const { out, errors, checks } = run(args("algorithm.adv_estimator=opo"), "trinity", { profile });
    expect(errors).toEqual([]);
    expect([out["algorithm.advantage_fn"], out["synchronizer.sync_offset"]]).toEqual(["rec", 0]);
    expect(checks.join("\n")).not.toContain("sync_offset");
  });

  test("settings that behave differently from verl are reported", () => {
    const { result } = run(
      args(
        "algorithm.adv_estimator=grpo",
        `${ACTOR}.optim.lr_warmup_steps_ratio=0.1`,
        "data.val_files=/a/test.parquet",
        "data.train_files=/a/train.parquet",
        "trainer.test_freq=5",
        "data.train_batch_size=1024",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=8",
      ),
      "trinity",
    );
    const text = result.notes.map((note) => formatNote(note)).join("\n");
    for (const word of [
      "warm-up ratio",
      "val_kwargs.temperature",
      "data.shuffle -> ",
      "eval_interval=5 to 4",
      "use_dynamic_bsz: false here, true there",
      "sync_offset=1",
      "1 x 8 = 8 GPUs: explorer 1, auxiliary 0, trainer 7",
      "does not divide by 7",
    ]) {
      expect(text).toContain(word);
    }
  });
});

describe("Trinity to verl", () => {
  const BASE = "algorithm: {algorithm_type: grpo, repeat_times: 4}\nbuffer:\n  batch_size: 8\n";

  test("tasksets that agree become one setting", () => {
    const { out, errors, dropped } = run(
      yaml(
        `${BASE}  explorer_input:\n    tasksets:\n      - {path: /a, split: train, rollout_args: {temperature: 0.7}, format: {prompt_key: q}}\n      - {path: /b, split: x, rollout_args: {temperature: 0.7}, format: {prompt_key: q}}\n`,
        "trinity",
      ),
      "verl",
    );
    expect(errors).toEqual([]);
    expect(out["data.train_files"]).toEqual(["/a/train.parquet", "/b/x.parquet"]);
    expect(out["actor_rollout_ref.rollout.temperature"]).toBe(0.7);
    expect(out["data.prompt_key"]).toBe("q");
    expect(dropped).toEqual([]);
  });

  const TYPES: [type: string, more: string, gives: Record<string, YamlValue | undefined>, told: string[]][] = [
    [
      "gspo",
      "",
      { [LOSS]: "gspo", [LOW]: 0.0003, [HIGH]: 0.0004, [`${ACTOR}.kl_loss_type`]: "mse" },
      ["seq-mean-token-mean"],
    ],
    [
      "gspo",
      "policy_loss_fn_args: {clip_range: 0.1}, loss_agg_mode: seq-mean-token-mean",
      { [LOW]: 0.1, [HIGH]: 0.1 },
      [],
    ],
    ["sapo", "policy_loss_fn_args: {tau_pos: 2}", { [LOSS]: "sapo", [`${ACTOR}.tau_pos`]: 2, [LOW]: undefined }, []],
    ["cispo", "", { [LOSS]: "cispo", [LOW]: 1, [HIGH]: 0.28 }, []],
    [
      "dapo",
      "policy_loss_fn_args: {clip_range_low: 0.2, clip_range_high: 0.28}",
      { [LOSS]: undefined, [`${ACTOR}.use_kl_loss`]: false, [HIGH]: 0.28 },
      [],
    ],
    ["grpo", "advantage_fn: clipb", { [LOSS]: undefined }, ["clipb also leaves out tokens"]],
    ["m2po", "", { [LOSS]: undefined }, ["verl has no m2po"]],
    ["grpo", "policy_loss_fn: m2po", { [LOSS]: undefined }, ["verl has no m2po"]],
    ["multi_step_grpo", "", { [LOSS]: undefined }, ["step_wise_grpo gives every step"]],
    ["grpo_verl", "", {}, []],
  ];
  test.each(TYPES)("the algorithm %s {%s}", (type, more, gives, told) => {
    const text = `algorithm: {algorithm_type: ${type}, repeat_times: 4, ${more}}\nbuffer: {batch_size: 8}\n`;
    const { out, errors, checks, dropped } = run(yaml(text, "trinity"), "verl");
    expect([errors, dropped]).toEqual([[], []]);
    const expected = { "algorithm.adv_estimator": "grpo", ...gives };
    expect(Object.fromEntries(Object.keys(expected).map((path) => [path, out[path]]))).toEqual(expected);
    expect(checks).toHaveLength(told.length);
    for (const [i, word] of told.entries()) expect(checks[i]).toContain(word);
  });

  test("remax is an advantage function of Trinity's, and no algorithm type", () => {
    const there = run(args("algorithm.adv_estimator=remax"), "trinity");
    expect(there.errors[0]).toContain("Trinity has the advantage_fn remax, and no algorithm type");
    expect(there.out["algorithm.algorithm_type"]).toBeUndefined();
    const profile = new Map<string, YamlValue>([["algorithm.algorithm_type", "rloo"]]);
    const { out, errors } = run(args("algorithm.adv_estimator=remax"), "trinity", { profile });
    expect([errors, out["algorithm.algorithm_type"], out["algorithm.advantage_fn"]]).toEqual([[], "rloo", "remax"]);
    const back = run(
      yaml("algorithm: {algorithm_type: rloo, advantage_fn: remax}\nbuffer: {batch_size: 8}\n", "trinity"),
      "verl",
    );
    expect(back.out["algorithm.adv_estimator"]).toBe("remax");
  });

  test("lengths and subsets keep their meaning", () => {
    const text = `${BASE}  explorer_input: {taskset: {path: /a, subset_name: main, split: train}}\nmodel: {max_model_len: 9000}\n`;
    const { out, checks, dropped } = run(yaml(text, "trinity"), "verl");
    expect([out["data.train_files"], out["actor_rollout_ref.rollout.max_model_len"], dropped]).toEqual([
      "/a/main/train.parquet",
      9000,
      [],
    ]);
    expect(checks[0]).toContain("subset_name=main is taken as a folder");
    const there = run(args("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.max_model_len=9000"), "trinity");
    expect(there.out["model.max_model_len"]).toBe(9000);
  });

  test("steps that do not divide are rounded and reported: evaluations down as in Trinity, saves to the nearest", () => {
    const text = `${BASE}synchronizer: {sync_interval: 4}\nexplorer: {eval_interval: 7}\ntrainer: {save_interval: 6, total_steps: 10}\n`;
    const { out, checks } = run(yaml(text, "trinity"), "verl", { cadence: "scale" });
    expect([out["trainer.test_freq"], out["trainer.save_freq"], out["trainer.total_training_steps"]]).toEqual([
      1, 2, 3,
    ]);
    expect(checks.join("\n")).toContain(
      "save_interval=6 is not a multiple of sync_interval=4. trainer.save_freq is rounded to 2",
    );
    expect(checks.join("\n")).toContain(
      "eval_interval=7 is not a multiple of sync_interval=4. trainer.test_freq is rounded to 1",
    );
    const copied = run(yaml(text, "trinity"), "verl");
    expect(copied.out["trainer.save_freq"]).toBe(6);
    expect(copied.checks.join("\n")).toContain("explorer.eval_interval: copied, and a step of verl is 4 of Trinity's");
  });

  test("tasksets that differ are refused, with both values", () => {
    const source = yaml(
      `${BASE}  explorer_input:\n    tasksets:\n      - {path: /a, rollout_args: {temperature: 0.7}}\n      - {path: /b}\n`,
      "trinity",
    );
    expect(run(source, "verl").errors[0]).toBe(
      "Cannot convert rollout_args.temperature: verl has one actor_rollout_ref.rollout.temperature and the tasksets differ (0.7, 1). " +
        "Make them equal, or give actor_rollout_ref.rollout.temperature in the profile.",
    );
    const profile = new Map<string, YamlValue>([["actor_rollout_ref.rollout.temperature", 0.9]]);
    const { out, errors } = run(source, "verl", { profile });
    expect([errors, out["actor_rollout_ref.rollout.temperature"]]).toEqual([[], 0.9]);
  });

  const refused: [text: string, rule: RegExp][] = [
    [`${BASE}  train_batch_size: 31\n`, /train_batch_size=31 is not batch_size x repeat_times = 8 x 4 = 32/],
    ["algorithm: {algorithm_type: opmd}\n", /opmd: verl has no such estimator/],
    [`${BASE}  explorer_input: {taskset: {path: /a, storage_type: sql}}\n`, /verl reads only files/],
    [`${BASE}  batch_sise: 3\n`, /Did you mean buffer\.batch_size\?/],
  ];
  for (const [text, rule] of refused)
    test(`refused: ${rule.source}`, () => expect(run(yaml(text, "trinity"), "verl").errors.join("\n")).toMatch(rule));

  test("an inexact KL is reported", () => {
    expect(run(yaml(`${BASE}algorithm2: 1\n`.replace("algorithm2: 1\n", ""), "trinity"), "verl").checks).toEqual([]);
    const { checks, out } = run(
      yaml("algorithm: {algorithm_type: grpo, kl_loss_fn: k3}\nbuffer: {batch_size: 8}\n", "trinity"),
      "verl",
    );
    expect(out[`${ACTOR}.kl_loss_type`]).toBe("low_var_kl");
    expect(checks[0]).toContain("Trinity's k3 is not clamped");
  });
});

describe("rLLM", () => {
  test("to verl: shared settings are renamed, those of the loop are reported", () => {
    const source = yaml(
      "rllm:\n  rollout: {n: 4}\n  algorithm: {kl_beta: 0.01, eps_clip: 0.3, eps_clip_high: 0.4}\n  trainer: {total_batches: -1}\n  compact_filtering: {enable: true}\nmodel: {name: Q, lora_rank: 8}\ntraining: {learning_rate: 1e-5}\n",
      "rllm",
    );
    const { out, dropped } = run(source, "verl");
    expect(out).toMatchObject({
      "actor_rollout_ref.rollout.n": 4,
      [`${ACTOR}.kl_loss_coef`]: 0.01,
      [`${ACTOR}.use_kl_loss`]: true,
      [`${ACTOR}.clip_ratio`]: 0.3,
      [`${ACTOR}.clip_ratio_low`]: 0.3,
      [`${ACTOR}.clip_ratio_high`]: 0.4,
      "trainer.total_training_steps": null,
      "actor_rollout_ref.model.path": "Q",
      "actor_rollout_ref.model.lora_rank": 8,
      [`${ACTOR}.optim.lr`]: 1e-5,
    });
    expect(dropped).toEqual(["rllm.compact_filtering.enable"]);
  });

  test("the size of a pass and recomputation have names in verl; what is chosen by what fits has none", () => {
    const { out, dropped } = run(
      yaml(
        "training: {max_tokens_per_pass: 4096, gradient_checkpointing: true}\nrollout: {max_num_seqs: null, kv_cache_dtype: bfloat16}\n",
        "rllm",
      ),
      "verl",
    );
    expect(out).toMatchObject({
      [`${ACTOR}.ppo_max_token_len_per_gpu`]: 4096,
      [`${ACTOR}.use_dynamic_bsz`]: true,
      "actor_rollout_ref.model.enable_gradient_checkpointing": true,
    });
    expect(dropped).toEqual(["rollout.max_num_seqs", "rollout.kv_cache_dtype"]);
    expect(run(yaml("training: {gradient_checkpointing: auto}\n", "rllm"), "verl").dropped).toEqual([
      "training.gradient_checkpointing",
    ]);
  });

  test("settings of the local backend that verl has are converted, the others reported", () => {
    const source = yaml(
      "rllm: {data: {train_batch_size: 32}, algorithm: {lr_schedule: linear}}\ntraining: {beta1: 0.8, num_minibatches: 4, eps: 1e-6}\nmodel: {init: {layers: 2}}\nwarmup: {steps: 3}\ntask: {name: arithmetic}\n",
      "rllm",
    );
    const { out, dropped } = run(source, "verl");
    expect(out).toEqual({
      "data.train_batch_size": 32,
      [`${ACTOR}.optim.betas`]: [0.8, 0.95],
      [`${ACTOR}.ppo_mini_batch_size`]: 8,
      [`${ACTOR}.optim.lr_scheduler_type`]: "linear",
    });
    expect(dropped).toEqual(["training.eps", "model.init.layers", "warmup.steps", "task.name"]);
    expect(run(source, "trinity").dropped).toContain("rllm.algorithm.lr_schedule");
  });

  test("from verl and back is lossless", () => {
    const source = args(
      "algorithm.adv_estimator=grpo",
      "data.train_batch_size=64",
      `${ACTOR}.use_kl_loss=true`,
      `${ACTOR}.kl_loss_coef=0.01`,
      "trainer.logger=[console,wandb]",
      `${ACTOR}.optim.lr=1e-6`,
      "trainer.total_training_steps=5",
      `${ACTOR}.clip_ratio_high=0.28`,
    );
    const there = run(source, "rllm");
    expect(there.out).toMatchObject({
      "rllm.algorithm.kl_beta": 0.01,
      "rllm.trainer.total_batches": 5,
      "rllm.backend": "verl",
    });
    const back = run({ ...source, system: "rllm", values: asSource(there.out) }, "verl");
    expect(back.out).toEqual(plain(source));
  });

  test("to Trinity and from it, through verl's names, with the original names in the report", () => {
    const source = yaml(
      "rllm:\n  rollout: {n: 4}\n  data: {train_batch_size: 32}\n  algorithm: {adv_estimator: rloo}\n  disable_thinking: true\n",
      "rllm",
    );
    const { out, errors, result } = run(source, "trinity");
    expect(errors).toEqual([]);
    expect(out).toMatchObject({
      "algorithm.repeat_times": 4,
      "algorithm.advantage_fn": "rloo",
      "buffer.batch_size": 32,
    });
    const lines = result.notes.map((note: Note) => formatNote(note)).join("\n");
    expect(lines).toContain("renamed: rllm.rollout.n -> algorithm.repeat_times=4");
    expect(lines).toContain("dropped: rllm.disable_thinking=true: verl has no counterpart");
    const back = run({ ...source, system: "trinity", values: asSource(out) }, "rllm");
    expect(back.out).toMatchObject({
      "rllm.rollout.n": 4,
      "rllm.data.train_batch_size": 32,
      "rllm.algorithm.adv_estimator": "rloo",
    });
  });
});

describe("reading and writing", () => {
  test("a launch script is read as a shell would", () => {
    const text = `#!/bin/bash
set -x  # trace
export DATA=$HOME/data   # where
files="['$DATA/a/train.parquet', '$DATA/b/train.parquet']"
N=\${N:-8}
python3 -m verl.trainer.main_ppo --config-path=x \\
    data.train_files="$files" \\
    +data.seed=1 \\
    trainer.logger='["console","wandb"]' actor_rollout_ref.rollout.n=$N \\
    trainer.project_name="my run" \\
    trainer.experiment_name=\${RUN_NAME:-base} \\
    actor_rollout_ref.model.path=\${MODEL} $@
`;
    const source = readSource([{ name: "run.sh", text }], "verl");
    expect(source.problems).toEqual([]);
    expect(plain(source)).toEqual({
      "data.train_files": ["${oc.env:HOME}/data/a/train.parquet", "${oc.env:HOME}/data/b/train.parquet"],
      "data.seed": 1,
      "trainer.logger": ["console", "wandb"],
      "actor_rollout_ref.rollout.n": 8,
      "trainer.project_name": "my run",
      "trainer.experiment_name": "base",
      "actor_rollout_ref.model.path": "${oc.env:MODEL}",
    });
    expect(source.values.get("data.seed")?.line).toBe(8);
    expect(source.values.get("trainer.experiment_name")?.line).toBe(11);
  });

  test("a YAML and a command line together: the later wins", () => {
    const source = readSource(
      [
        { name: "a.yaml", text: "trainer:\n  save_freq: 1\n  test_freq: 2\n" },
        { name: "b.args", text: "trainer.save_freq=5\n~trainer.test_freq\n" },
      ],
      "verl",
    );
    expect(plain(source)).toEqual({ "trainer.save_freq": 5 });
  });

  test("comments go with their settings", () => {
    const source = yaml(
      "# head of the file\n\n# about the model\nactor_rollout_ref:\n  model:\n    # which model\n    path: Q  # small\nalgorithm:\n  adv_estimator: grpo  # no critic\n",
      "verl",
    );
    const { result } = run(source, "trinity");
    const text = writeYaml(result.values, { system: "trinity", source });
    expect(text).toContain("# head of the file");
    expect(text).toMatch(/# about the model\n\s+# which model\n\s+model_path: Q # small/);
    expect(text).toContain("# no critic");
  });

  test("a YAML that is rewritten keeps everything else", () => {
    const text = "# head\ntrainer:\n  save_freq: 1 # often\n\n  # validation\n  test_freq: 2\n";
    expect(
      rewriteYaml(text, [
        ["trainer.save_freq", 5],
        ["trainer.total_epochs", 3],
      ]),
    ).toBe("# head\ntrainer:\n  save_freq: 5 # often\n\n  # validation\n  test_freq: 2\n  total_epochs: 3\n");
  });

  test("command lines read back unchanged", () => {
    const values: Record<string, YamlValue> = {
      "a.b": "x, y",
      "a.c": "true",
      "a.d": ["p q", "1", 2, null],
      "a.e": 1e-6,
      "a.f": "it's",
      "a.k": "1.5.",
      "a.l": "007",
      "a.m": "x\\",
      "a.n": Number.POSITIVE_INFINITY,
      "a.o": { "k:1": "b=c" },
      "a.g": "${oc.env:HOME}/x",
      "a.h": "",
      "a.i": { k: "v" },
      "a.j": "100%",
    };
    const text = writeArgs(new Map(Object.entries(values).map(([path, value]) => [path, { value, from: [] }])));
    expect(plain(readSource([{ name: "x.args", text }], "verl"))).toEqual(values);
    expect(text).toContain("a.g=$HOME/x");
  });

  test("numbers are written so that PyYAML reads numbers", () => {
    const { result } = run(args("algorithm.adv_estimator=grpo", `${ACTOR}.optim.lr=1e-6`), "trinity");
    expect(writeYaml(result.values, { system: "trinity", source: args() })).toContain("lr: 1.0e-06");
  });

  test("the report is the profile of the way back", () => {
    const source = args(
      "algorithm.adv_estimator=grpo",
      "data.truncation=left",
      "data.return_raw_chat=true",
      "trainer.logger=[console,wandb]",
    );
    const there = run(source, "trinity");
    const report = writeProfile(there.result.notes, { from: "verl", to: "trinity" });
    const profile = readProfile(readYaml(report, "r").tree, "verl");
    const back = run({ ...source, system: "trinity", values: asSource(there.out) }, "verl", { profile });
    const defaults = {
      "data.train_batch_size": 1024,
      [`${ACTOR}.ppo_mini_batch_size`]: 256,
      [`${ACTOR}.use_kl_loss`]: false,
    };
    expect(back.out).toEqual({ ...plain(source), ...defaults });
  });
});

describe("diff and validate", () => {
  test("with defaults pinned, the converted file means the same", () => {
    const lines = [
      "algorithm.adv_estimator=grpo",
      "data.train_batch_size=64",
      `${ACTOR}.ppo_mini_batch_size=16`,
      "trainer.save_freq=5",
      "data.train_files=/a/train.parquet",
      "data.val_files=/a/test.parquet",
      "trainer.test_freq=8",
      "trainer.n_gpus_per_node=8",
      "trainer.nnodes=1",
    ];
    const verl = args(...lines);
    const there = run(verl, "trinity", { pin: true });
    expect(there.errors).toEqual([]);
    expect(there.out).toMatchObject({
      "buffer.total_epochs": 30,
      "trainer.use_dynamic_bsz": false,
      "buffer.explorer_input.tasksets.0.task_selector.selector_type": "shuffle",
      "buffer.explorer_input.eval_tasksets.0.rollout_args.temperature": 0,
      "monitor.monitor_type": "wandb",
    });
    const trinity: ConvertedSource = { system: "trinity", values: asSource(there.out), problems: [] };
    expect(diffSources(verl, trinity, readConfig).differences).toEqual([]);
    const plainly = run(verl, "trinity");
    expect(
      plainly.result.notes.filter(({ kind }) => kind === "default differs").map((note) => formatNote(note)),
    ).toContain("default differs: trainer.total_epochs -> buffer.total_epochs: 30 here, 1 there");
  });

  test("rLLM's defaults differ from verl's, and pinning writes them", () => {
    const source = yaml("rllm: {trainer: {project_name: p}}\n", "rllm");
    expect(run(source, "verl").out).toEqual({ "trainer.project_name": "p" });
    expect(run(source, "verl", { pin: true }).out).toMatchObject({
      "actor_rollout_ref.rollout.n": 8,
      "algorithm.adv_estimator": "grpo",
      "data.train_batch_size": 64,
      "data.max_response_length": 30720,
      "trainer.total_epochs": 10,
    });
    const pinned = run(args("trainer.project_name=p"), "rllm", { pin: true }).out;
    expect(pinned).toMatchObject({
      "rllm.rollout.n": 1,
      "rllm.algorithm.adv_estimator": "gae",
      "rllm.trainer.test_freq": -1,
    });
  });

  test("a default of Trinity that acts is written for verl: k2 in the loss, the critic's model", () => {
    const { out } = run(
      yaml("algorithm: {algorithm_type: ppo}\nmodel: {model_path: M}\nbuffer: {batch_size: 8}\n", "trinity"),
      "verl",
    );
    expect(out).toMatchObject({
      [`${ACTOR}.use_kl_loss`]: true,
      [`${ACTOR}.kl_loss_type`]: "mse",
      "critic.model.path": "M",
    });
    expect(
      run(yaml("algorithm: {algorithm_type: dapo, advantage_fn: grpo}\nbuffer: {batch_size: 8}\n", "trinity"), "verl")
        .out[`${ACTOR}.use_kl_loss`],
    ).toBe(false);
  });

  test("settings that Trinity fills in are not read from trainer_config", () => {
    const text =
      "algorithm: {algorithm_type: grpo}\nbuffer: {batch_size: 8}\ntrainer: {trainer_config: {actor_rollout_ref: {actor: {ppo_mini_batch_size: 99}}}}\n";
    const { out, dropped } = run(yaml(text, "trinity"), "verl");
    expect([out[`${ACTOR}.ppo_mini_batch_size`], dropped]).toEqual([
      8,
      [`trainer.trainer_config.${ACTOR}.ppo_mini_batch_size`],
    ]);
    const { problems } = validateFile({ name: "t.yaml", text }, { readConfig, system: "trinity" });
    expect(problems.map(({ message }) => message).join("\n")).toContain(
      "ppo_mini_batch_size has no effect: Trinity fills it in itself",
    );
  });

  test("differences are listed under verl's names with both names, defaults included", () => {
    const verl = args("algorithm.adv_estimator=grpo", "data.max_prompt_length=512", "trainer.total_epochs=1");
    const trinity = yaml(
      "algorithm: {algorithm_type: grpo, kl_loss_fn: none}\nbuffer: {batch_size: 256}\nsynchronizer: {sync_interval: 4}\nmodel: {max_prompt_tokens: 1024}\nexplorer: {runner_per_model: 4}\n",
      "trinity",
    );
    const text = formatDiff(diffSources(verl, trinity, readConfig), { a: "a", b: "b" });
    expect(text).toContain("data.max_prompt_length: 512 -> 1024   [model.max_prompt_tokens]\n");
    expect(text).toContain("actor_rollout_ref.actor.use_dynamic_bsz: false (default) -> true (default)\n");
    expect(text).toContain("only in b: explorer.runner_per_model\n");
    expect(text).not.toContain("total_epochs");
  });

  test("a Trinity file is checked without a conversion", () => {
    const text =
      "mode: bot\ncluster: {node_num: 1, gpu_per_node: 2}\nexplorer:\n  rollout_model: {engine_num: 2}\nbuffer:\n  batch_size: '8'\n  explorer_input:\n    taskset: {path: /a}\n    tasksets: [{pth: /a}]\n";
    const { system, problems } = validateFile({ name: "t.yaml", text }, { readConfig });
    expect(system).toBe("trinity");
    const errors = problems
      .filter(({ severity }) => severity === "error")
      .map(({ line, message }) => `${line ?? ""} ${message}`);
    expect(errors).toHaveLength(5);
    expect(errors.join("\n")).toMatch(/1 Cannot set mode: .*Did you mean both\?/);
    expect(errors.join("\n")).toContain('6 Cannot set buffer.batch_size: it takes int >= 1 ("8"). Remove the quotes');
    expect(errors.join("\n")).toContain("Cannot explore both taskset and tasksets");
    expect(errors.join("\n")).toContain("none is left to train");
  });
});

function asSource(values: Record<string, YamlValue>): ConvertedSource["values"] {
  return new Map(Object.entries(values).map(([path, value]) => [path, { value, file: "x" }]));
}
