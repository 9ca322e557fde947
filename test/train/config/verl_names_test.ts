/** Settings of the local backend on verl: the name and the value that verl reads, on every engine. */
import { describe, expect, test } from "vitest";
import { convert } from "../../../src/cluster/convert/convert.ts";
import { VERL_OF_BACKENDS } from "../../../src/train/config/fields/verl_names.ts";
import { allVerlLeaves, VERL_ENGINES, verlLeaves } from "../../../src/train/config/fields/verl_tree.ts";
import { getAt, type YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { attempt, compose, readConfig } from "./disk.ts";

const ACTOR = "actor_rollout_ref.actor";
const MODEL = "actor_rollout_ref.model";
const ROLLOUT = "actor_rollout_ref.rollout";
const MINI = `${ACTOR}.ppo_mini_batch_size`;
const verl = (...set: string[]) => attempt(["rllm/backend=verl", ...set]);
const valuesOf = (paths: readonly string[], ...set: string[]) => paths.map((path) => getAt(verl(...set).config, path));

/** Of each name: what is typed, where verl has it, what verl gets, and the portable name that follows. */
const NAMES: [set: string, verl: string, value: YamlValue, portable?: string][] = [
  ["model.name=org/m", `${MODEL}.path`, "org/m"],
  ["model.lora_rank=8", `${MODEL}.lora_rank`, 8],
  ["model.lora_alpha=7.5", `${MODEL}.lora_alpha`, 7.5],
  ["training.learning_rate=3e-5", `${ACTOR}.optim.lr`, 3e-5],
  ["training.weight_decay=0.25", `${ACTOR}.optim.weight_decay`, 0.25],
  ["training.grad_clip_norm=0.5", `${ACTOR}.optim.clip_grad`, 0.5],
  ["training.group_size=3", `${ROLLOUT}.n`, 3, "rllm.rollout.n"],
  ["validation.group_size=5", `${ROLLOUT}.val_kwargs.n`, 5, "rllm.rollout.n_val"],
  ["training.lr_schedule=cosine", `${ACTOR}.optim.lr_scheduler_type`, "cosine", "rllm.algorithm.lr_schedule"],
  ["training.warmup_steps_ratio=0.1", `${ACTOR}.optim.lr_warmup_steps_ratio`, 0.1, "rllm.algorithm.warmup_steps_ratio"],
  ["training.max_tokens_per_pass=999", `${ACTOR}.ppo_max_token_len_per_gpu`, 999],
  ["training.gradient_checkpointing=false", `${MODEL}.enable_gradient_checkpointing`, false],
  ["rollout.max_num_seqs=17", `${ROLLOUT}.max_num_seqs`, 17],
  ["rollout.max_num_batched_tokens=4096", `${ROLLOUT}.max_num_batched_tokens`, 4096],
  ["training.resume_mode=disable", "trainer.resume_mode", "disable"],
  ["training.resume_from_path=runs/a", "trainer.resume_from_path", "runs/a"],
];

describe("a name of the local backend on verl", () => {
  test("is in the table once, and every row is tried", () => {
    const rows = VERL_OF_BACKENDS.map(({ native, verl: path }) => `${native} ${path}`);
    expect(rows.toSorted()).toEqual(NAMES.map(([set, path]) => `${set.split("=")[0]} ${path}`).toSorted());
  });

  test.each<[set: string, verl: string, value: YamlValue, portable?: string]>(NAMES)(
    "%s reaches %s, without a warning",
    (set, path, value, portable) => {
      const { config, problems, warnings, origins } = verl(set);
      expect(problems).toEqual([]);
      expect(warnings).toEqual([]);
      expect(getAt(config, path)).toEqual(value);
      expect(origins.get(path)).toMatchObject({
        from: set.split("=")[0],
        text: `${set.split("=")[0]} (override ${set})`,
      });
      if (portable !== undefined) expect(getAt(config, portable)).toEqual(value);
      expect(getAt(verl().config, path)).not.toEqual(value);
    },
  );

  test("is absent unless it is set, keeps its type, and may be null, which leaves verl's default", () => {
    const [plain, usual] = [verl().config, allVerlLeaves(readConfig)];
    for (const [set, path] of NAMES) {
      const native = set.split("=")[0]!;
      expect([native, getAt(plain, native)]).toEqual([native, undefined]);
      const { config, problems } = verl(`${native}=null`);
      expect([problems, getAt(config, path)]).toEqual([[], getAt(plain, path)]);
    }
    expect(usual.get(`${MODEL}.path`)?.value).toBe(getAt(plain, `${MODEL}.path`));
    expect(verl("training.learning_rate=-1").problems.map(({ message }) => message)).toEqual([
      "Cannot set training.learning_rate: it takes float >= 0, or null (-1).",
    ]);
    expect(verl("training.lr_schedule=cosin").problems[0]?.message).toContain("Did you mean cosine?");
  });

  test("reaches the schedule and the largest norm under the name that the engine's optimiser has", () => {
    const schedules: Readonly<Record<string, string>> = {
      ...{ dp: "lr_scheduler_type", veomni: "lr_scheduler_type" },
      ...{ megatron: "lr_decay_style", mindspeed: "lr_decay_style", torchtitan: "decay_type" },
    };
    for (const [version, engines] of Object.entries(VERL_ENGINES)) {
      for (const engine of engines) {
        const paths = [`${ACTOR}.optim.${schedules[engine]}`, `${ACTOR}.optim.clip_grad`];
        const set = ["training.lr_schedule=linear", "training.grad_clip_norm=0.5"];
        const chosen = [`verl=${version}`, `model_engine=${engine}`];
        expect([engine, valuesOf(paths, ...chosen, ...set)]).toEqual([engine, ["linear", 0.5]]);
        const tree = verlLeaves(readConfig, version, engine);
        for (const [, path] of NAMES)
          if (!path.endsWith("lr_scheduler_type")) expect([engine, path, tree.has(path)]).toEqual([engine, path, true]);
      }
    }
  });

  test("wins over a portable default where it is verl's own default", () => {
    expect(valuesOf([`${ROLLOUT}.n`, "rllm.rollout.n"], "training.group_size=1")).toEqual([1, 1]);
    expect(getAt(verl("training.group_size=1").config, `${ROLLOUT}.n`)).not.toBe(getAt(verl().config, `${ROLLOUT}.n`));
  });

  test("of no clipping is not a largest norm of 0, which would stop verl's FSDP engine from learning", () => {
    const path = `${ACTOR}.optim.clip_grad`;
    expect(valuesOf([path], "training.grad_clip_norm=0")).toEqual([Number.POSITIVE_INFINITY]);
    const values = new Map([["training.grad_clip_norm", { value: 0, file: "x" }]]);
    const converted = convert({ system: "rllm", values, problems: [] }, { to: "verl", readConfig });
    expect(converted.values.get(path)?.value).toBe(Number.POSITIVE_INFINITY);
  });

  test.each([
    ["'true'", true],
    ["true", true],
    ["false", false],
  ])("of checkpointing by choice: %s", (typed, value) => {
    expect(valuesOf([`${MODEL}.enable_gradient_checkpointing`], `training.gradient_checkpointing=${typed}`)).toEqual([
      value,
    ]);
  });

  test("of checkpointing where memory needs it leaves verl's own choice", () => {
    const path = `${MODEL}.enable_gradient_checkpointing`;
    for (const own of [true, false])
      expect(valuesOf([path], `${path}=${own}`, "training.gradient_checkpointing=auto")).toEqual([own]);
  });
});

describe("a name of the local backend beside verl's", () => {
  const [ours, theirs] = ["training.weight_decay", `${ACTOR}.optim.weight_decay`];
  const file = (path: string, value: number) => ({
    "run.yaml": `${path}: ${value}\n`.replace(/\.(\w+):/, ": {$1:").replace("\n", "}\n"),
  });
  const told = (set: string[], texts: Record<string, string> = {}) => {
    const { config, warnings } = compose(["rllm/backend=verl", ...set], { texts });
    return [getAt(config, theirs), ...warnings.map(({ message }) => message)];
  };

  test.each<[what: string, set: string[], texts: Record<string, string>, result: unknown[]]>([
    [
      "at one level, verl's wins",
      [`${ours}=0.1`, `${theirs}=0.2`],
      {},
      [0.2, `${ours} conflicts with ${theirs}; using ${theirs}=0.2, not 0.1`],
    ],
    ["at one level, they agree", [`${ours}=0.2`, `${theirs}=0.2`], {}, [0.2]],
    [
      "typed above a file's",
      [`${ours}=0.1`],
      { "a.yaml": "actor_rollout_ref: {actor: {optim: {weight_decay: 0.2}}}" },
      [0.1],
    ],
    [
      "in a file, below what is typed",
      [`${theirs}=0.2`],
      file(ours, 0.1),
      [0.2, `${ours} conflicts with ${theirs}; using ${theirs}=0.2, not 0.1`],
    ],
  ])("%s", (_, set, texts, result) => {
    expect(told(set, texts)).toEqual(result);
  });

  test("and beside the portable name is called by the name that was typed", () => {
    const warnings = (...set: string[]) => verl(...set).warnings.map(({ message, path }) => [path, message]);
    expect(warnings("training.group_size=4", "rllm.rollout.n=8")).toEqual([
      ["training.group_size", "training.group_size conflicts with rllm.rollout.n; using rllm.rollout.n=8, not 4"],
    ]);
    const texts = { "a.yaml": "rllm: {rollout: {n: 8}}\n" };
    const above = compose(["rllm/backend=verl", "training.group_size=4"], { texts });
    expect(getAt(above.config, "rllm.rollout.n")).toBe(4);
    expect(above.warnings.map(({ message }) => message)).toEqual([
      "training.group_size conflicts with rllm.rollout.n; using training.group_size=4, not 8",
    ]);
  });
});

describe("the mini-batches of a step", () => {
  const batch = "rllm.data.train_batch_size=10";
  test.each([
    ["training.num_minibatches=1", 10],
    ["training.num_minibatches=4", 3],
    ["training.num_minibatches=5", 2],
  ])("%s of 10 prompts are mini-batches of %i", (set, size) => {
    expect(valuesOf([MINI], batch, set)).toEqual([size]);
  });

  test("leave verl's size where that is typed, or where nothing counts them", () => {
    expect(valuesOf([MINI], batch, "training.num_minibatches=5", `${MINI}=7`)).toEqual([7]);
    expect(valuesOf([MINI], batch)).toEqual(valuesOf([MINI]));
    expect(valuesOf([MINI], batch, "training.num_minibatches=null")).toEqual(valuesOf([MINI]));
  });
});
