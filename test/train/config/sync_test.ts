/** rLLM's synchronisation with verl: its table, precedence, warnings and special rules, case by case. */
import { describe, expect, test } from "vitest";
import { VERL_CLIP, VERL_SHARED, VERL_STEPS } from "../../../src/train/config/sync/tables.ts";
import { getAt, type YamlValue } from "../../../src/train/config/yaml/tree.ts";
import { attempt, compose } from "./disk.ts";
import { PUBLISHED_ROWS } from "./override_sets.ts";

const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";

interface Case {
  readonly name: string;
  readonly set: readonly string[];
  readonly gives: Readonly<Record<string, YamlValue>>;
  /** Fragments of the warnings, in order; none by default. */
  readonly warns?: readonly string[];
  /** Settings that this version refuses on verl, which the synchronisation mirrors all the same. */
  readonly refused?: readonly string[];
}

const deprecated = (native: string, rllm: string, value: YamlValue) =>
  `Verl-native shared config ${native} is deprecated (set to ${value}); use ${rllm}=${value} instead`;
const conflict = (native: string, rllm: string, value: YamlValue, other: YamlValue) =>
  `${native} conflicts with ${rllm}; using ${rllm}=${value}, not ${other}`;

const CASES: readonly Case[] = [
  {
    name: "1: an rllm value on the command line goes to verl, silently",
    set: ["rllm.algorithm.adv_estimator=rloo"],
    gives: { "algorithm.adv_estimator": "rloo", "rllm.algorithm.adv_estimator": "rloo" },
  },
  {
    name: "2: a verl value on the command line goes to rllm, with a deprecation",
    set: ["algorithm.adv_estimator=rloo"],
    gives: { "algorithm.adv_estimator": "rloo", "rllm.algorithm.adv_estimator": "rloo" },
    warns: [deprecated("algorithm.adv_estimator", "rllm.algorithm.adv_estimator", "rloo")],
  },
  {
    name: "3: both, and they differ: rllm wins, the warning names both paths and values",
    set: ["algorithm.adv_estimator=grpo", "rllm.algorithm.adv_estimator=rloo"],
    gives: { "algorithm.adv_estimator": "rloo", "rllm.algorithm.adv_estimator": "rloo" },
    warns: [conflict("algorithm.adv_estimator", "rllm.algorithm.adv_estimator", "rloo", "grpo")],
  },
  {
    name: "4: both, and they agree: no conflict",
    set: ["algorithm.adv_estimator=rloo", "rllm.algorithm.adv_estimator=rloo"],
    gives: { "algorithm.adv_estimator": "rloo" },
    warns: [deprecated("algorithm.adv_estimator", "rllm.algorithm.adv_estimator", "rloo")],
  },
  {
    name: "5: nothing set: rllm's non-null default wins over verl's",
    set: [],
    gives: {
      "algorithm.adv_estimator": "grpo",
      "data.train_batch_size": 64,
      "trainer.test_freq": 5,
      [`${ROLLOUT}.n`]: 8,
    },
  },
  {
    name: "6: nothing set: where rllm is null, verl's default stands and rllm stays null",
    set: [],
    gives: {
      [`${ACTOR}.policy_loss.loss_mode`]: "vanilla",
      "rllm.algorithm.loss_fn": null,
      [`${ACTOR}.loss_agg_mode`]: "token-mean",
      "rllm.algorithm.loss_agg_mode": null,
    },
  },
  {
    name: "7: an explicit rllm null wins too",
    set: [
      "rllm.algorithm.rollout_correction.bypass_mode=null",
      `${ACTOR}.loss_agg_mode=token-mean`,
      "rllm.algorithm.loss_agg_mode=null",
    ],
    gives: { "algorithm.rollout_correction.bypass_mode": null, [`${ACTOR}.loss_agg_mode`]: null },
    warns: [conflict(`${ACTOR}.loss_agg_mode`, "rllm.algorithm.loss_agg_mode", "null", "token-mean")],
  },
  {
    name: "8: a prefix of + or ++ is explicit as well",
    set: ["++algorithm.adv_estimator=rloo"],
    gives: { "rllm.algorithm.adv_estimator": "rloo" },
    warns: [deprecated("algorithm.adv_estimator", "rllm.algorithm.adv_estimator", "rloo")],
  },
  {
    name: "9: the backend's pinned bypass_mode reaches verl",
    set: [],
    gives: {
      "algorithm.rollout_correction.bypass_mode": false,
      "rllm.algorithm.rollout_correction.bypass_mode": false,
    },
  },
  {
    name: "10: names differ in the table: tis_mode and tis_cap",
    set: ["rllm.algorithm.rollout_correction.tis_mode=token", "rllm.algorithm.rollout_correction.tis_cap=3"],
    gives: {
      "algorithm.rollout_correction.rollout_is": "token",
      "algorithm.rollout_correction.rollout_is_threshold": 3,
    },
  },
  {
    name: "10b: what stands in a section is typed as well (in rLLM only the section's own name counts)",
    set: ["rllm.rollout={n: 5, train: {top_p: null}}", `${ROLLOUT}.n=3`],
    gives: { [`${ROLLOUT}.n`]: 5, "rllm.rollout.n": 5, [`${ROLLOUT}.top_p`]: null },
    warns: [conflict(`${ROLLOUT}.n`, "rllm.rollout.n", 5, 3)],
  },
  {
    name: "11: kl_beta alone turns the KL loss on",
    set: ["rllm.algorithm.kl_beta=0.01"],
    gives: { [`${ACTOR}.kl_loss_coef`]: 0.01, [`${ACTOR}.use_kl_loss`]: true },
  },
  {
    name: "12: kl_beta of 0 turns it off",
    set: [],
    gives: { [`${ACTOR}.kl_loss_coef`]: 0, [`${ACTOR}.use_kl_loss`]: false },
  },
  {
    name: "13: verl's coefficient backfills kl_beta and turns it on, with a deprecation",
    set: [`${ACTOR}.kl_loss_coef=0.01`],
    gives: { "rllm.algorithm.kl_beta": 0.01, [`${ACTOR}.use_kl_loss`]: true },
    warns: [deprecated(`${ACTOR}.kl_loss_coef`, "rllm.algorithm.kl_beta", 0.01)],
  },
  {
    name: "14: an explicit use_kl_loss is kept",
    set: ["rllm.algorithm.kl_beta=0.01", `${ACTOR}.use_kl_loss=false`],
    gives: { [`${ACTOR}.use_kl_loss`]: false, [`${ACTOR}.kl_loss_coef`]: 0.01 },
  },
  {
    name: "15: eps_clip is both lower bounds and the upper one",
    set: ["rllm.algorithm.eps_clip=0.3"],
    gives: {
      [`${ACTOR}.clip_ratio`]: 0.3,
      [`${ACTOR}.clip_ratio_low`]: 0.3,
      [`${ACTOR}.clip_ratio_high`]: 0.3,
    },
  },
  {
    name: "16: eps_clip_high is the upper bound alone",
    set: ["rllm.algorithm.eps_clip=0.3", "rllm.algorithm.eps_clip_high=0.4"],
    gives: {
      [`${ACTOR}.clip_ratio`]: 0.3,
      [`${ACTOR}.clip_ratio_low`]: 0.3,
      [`${ACTOR}.clip_ratio_high`]: 0.4,
    },
  },
  {
    name: "17: the yaml's eps_clip is mirrored when nothing is set",
    set: [],
    gives: {
      [`${ACTOR}.clip_ratio`]: 0.2,
      [`${ACTOR}.clip_ratio_low`]: 0.2,
      [`${ACTOR}.clip_ratio_high`]: 0.2,
    },
  },
  {
    name: "18: clip_ratio_low backfills eps_clip; clip_ratio is left alone",
    set: [`${ACTOR}.clip_ratio_low=0.1`],
    gives: {
      "rllm.algorithm.eps_clip": 0.1,
      [`${ACTOR}.clip_ratio`]: 0.2,
      [`${ACTOR}.clip_ratio_high`]: 0.1,
    },
    warns: [deprecated(`${ACTOR}.clip_ratio_low`, "rllm.algorithm.eps_clip", 0.1)],
  },
  {
    name: "19: clip_ratio backfills eps_clip; that clip_ratio_low stays is told",
    set: [`${ACTOR}.clip_ratio=0.1`],
    gives: {
      "rllm.algorithm.eps_clip": 0.1,
      [`${ACTOR}.clip_ratio_low`]: 0.2,
      [`${ACTOR}.clip_ratio_high`]: 0.1,
    },
    warns: [
      deprecated(`${ACTOR}.clip_ratio`, "rllm.algorithm.eps_clip", 0.1),
      `${ACTOR}.clip_ratio=0.1 does not move ${ACTOR}.clip_ratio_low, which stays 0.2`,
    ],
  },
  {
    name: "20: of verl's two, clip_ratio_low goes first",
    set: [`${ACTOR}.clip_ratio=0.1`, `${ACTOR}.clip_ratio_low=0.15`],
    gives: {
      "rllm.algorithm.eps_clip": 0.15,
      [`${ACTOR}.clip_ratio`]: 0.1,
      [`${ACTOR}.clip_ratio_low`]: 0.15,
    },
    warns: [
      deprecated(`${ACTOR}.clip_ratio`, "rllm.algorithm.eps_clip", 0.1),
      deprecated(`${ACTOR}.clip_ratio_low`, "rllm.algorithm.eps_clip", 0.15),
    ],
  },
  {
    name: "21: eps_clip beats both, a conflict each",
    set: ["rllm.algorithm.eps_clip=0.3", `${ACTOR}.clip_ratio=0.1`, `${ACTOR}.clip_ratio_low=0.15`],
    gives: { [`${ACTOR}.clip_ratio`]: 0.3, [`${ACTOR}.clip_ratio_low`]: 0.3 },
    warns: [
      conflict(`${ACTOR}.clip_ratio`, "rllm.algorithm.eps_clip", 0.3, 0.1),
      conflict(`${ACTOR}.clip_ratio_low`, "rllm.algorithm.eps_clip", 0.3, 0.15),
    ],
  },
  {
    name: "22: clip_ratio_high backfills eps_clip_high",
    set: [`${ACTOR}.clip_ratio_high=0.28`],
    gives: {
      "rllm.algorithm.eps_clip_high": 0.28,
      [`${ACTOR}.clip_ratio_high`]: 0.28,
      [`${ACTOR}.clip_ratio_low`]: 0.2,
    },
    warns: [deprecated(`${ACTOR}.clip_ratio_high`, "rllm.algorithm.eps_clip_high", 0.28)],
  },
  {
    name: "23: total steps: -1 here is null there, written always",
    set: [],
    gives: { "trainer.total_training_steps": null, "rllm.trainer.total_batches": -1 },
  },
  {
    name: "24: total steps from either side",
    set: ["rllm.trainer.total_batches=100"],
    gives: { "trainer.total_training_steps": 100 },
  },
  {
    name: "24b: total steps from verl, with a deprecation",
    set: ["trainer.total_training_steps=100"],
    gives: { "rllm.trainer.total_batches": 100, "trainer.total_training_steps": 100 },
    warns: [deprecated("trainer.total_training_steps", "rllm.trainer.total_batches", 100)],
  },
  {
    name: "24c: 0 steps and null are the same, so no conflict; what was typed stays",
    set: ["rllm.trainer.total_batches=0", "trainer.total_training_steps=null"],
    gives: { "trainer.total_training_steps": null, "rllm.trainer.total_batches": 0 },
    warns: [deprecated("trainer.total_training_steps", "rllm.trainer.total_batches", "null")],
  },
  {
    name: "24d: no limit from rLLM's side",
    set: ["rllm.trainer.total_batches=0"],
    gives: { "trainer.total_training_steps": null, "rllm.trainer.total_batches": 0 },
  },
  ...[0, -1].map((steps) => ({
    name: `24e: ${steps} from verl's side stays as it is on both`,
    set: [`trainer.total_training_steps=${steps}`],
    gives: { "trainer.total_training_steps": steps, "rllm.trainer.total_batches": steps },
    warns: [deprecated("trainer.total_training_steps", "rllm.trainer.total_batches", steps)],
  })),
  {
    name: "24f: 0 on both sides is a conflict, as verl's own form of rLLM's 0 is null",
    set: ["rllm.trainer.total_batches=0", "trainer.total_training_steps=0"],
    gives: { "trainer.total_training_steps": null, "rllm.trainer.total_batches": 0 },
    warns: ["trainer.total_training_steps conflicts with rllm.trainer.total_batches"],
  },
  {
    name: "25: the learning-rate schedule has the optimiser's own name",
    set: ["rllm.algorithm.lr_schedule=cosine", "rllm.algorithm.warmup_steps=10"],
    gives: { [`${ACTOR}.optim.lr_scheduler_type`]: "cosine", [`${ACTOR}.optim.lr_warmup_steps`]: 10 },
  },
  {
    name: "25b: verl's schedule backfills ours",
    set: [`${ACTOR}.optim.lr_scheduler_type=cosine`],
    gives: { "rllm.algorithm.lr_schedule": "cosine" },
    warns: [deprecated(`${ACTOR}.optim.lr_scheduler_type`, "rllm.algorithm.lr_schedule", "cosine")],
  },
  {
    name: "26: taking the best token is temperature 0 on both sides",
    set: [`${ROLLOUT}.val_kwargs.do_sample=false`],
    gives: {
      [`${ROLLOUT}.val_kwargs.temperature`]: 0,
      "rllm.rollout.val.temperature": 0,
      "rllm.rollout.train.temperature": 1,
    },
  },
  {
    name: "26b: in training as well, and a lost temperature gets a warning",
    set: [`${ROLLOUT}.do_sample=false`, "rllm.rollout.train.temperature=0.7"],
    gives: { [`${ROLLOUT}.temperature`]: 0, "rllm.rollout.train.temperature": 0 },
    warns: [
      `rllm.rollout.train.temperature=0.7 has no effect because ${ROLLOUT}.do_sample=false. Using temperature 0.`,
    ],
  },
  ...["megatron", "veomni"].map((engine) => ({
    name: `27: R3 replay turns recording on, and the mode reaches where ${engine} reads it`,
    set: ["rllm.algorithm.router_replay=R3", `model_engine=${engine}`],
    gives: {
      [`${ROLLOUT}.enable_rollout_routing_replay`]: true,
      [`${ACTOR}.router_replay.mode`]: "R3",
      [`${ACTOR}.${engine}.router_replay.mode`]: "R3",
    },
  })),
  {
    name: "27b: a version without the older place gets none",
    set: ["rllm.algorithm.router_replay=R2", "verl=0.9.1", "model_engine=veomni"],
    gives: { [`${ACTOR}.router_replay`]: undefined as never, [`${ACTOR}.veomni.router_replay.mode`]: "R2" },
  },
  {
    name: "27c: an engine's own mode that was typed stays",
    set: ["rllm.algorithm.router_replay=R2", "model_engine=megatron", `${ACTOR}.megatron.router_replay.mode=R3`],
    gives: { [`${ACTOR}.megatron.router_replay.mode`]: "R3" },
  },
  {
    name: "28: asynchronous training takes the engines apart",
    set: [
      "rllm.async_training.enable=true",
      "rllm.workflow.raise_on_error=false",
      "rllm.async_training.mini_batch_size=16",
    ],
    gives: {
      "actor_rollout_ref.hybrid_engine": false,
      [`${ROLLOUT}.checkpoint_engine.backend`]: "nccl",
      [`${ACTOR}.ppo_mini_batch_size`]: 16,
      "async_training.partial_rollout": false,
    },
    // As rLLM's trainer has it; verl's own does not.
    refused: ["rllm.async_training.enable", "rllm.async_training.mini_batch_size"],
  },
  {
    name: "29: synchronous training puts them together again",
    set: [`${ROLLOUT}.checkpoint_engine.backend=nccl`, "actor_rollout_ref.hybrid_engine=false"],
    gives: { "actor_rollout_ref.hybrid_engine": true, [`${ROLLOUT}.checkpoint_engine.backend`]: "naive" },
  },
  {
    name: "30: interpolations see synchronised values",
    set: ["data.max_response_length=100"],
    gives: {
      "rllm.data.max_response_length": 100,
      "rllm.rollout.train.max_tokens": 100,
      "rllm.rollout.val.max_tokens": 100,
      [`${ROLLOUT}.response_length`]: 100,
    },
    warns: [deprecated("data.max_response_length", "rllm.data.max_response_length", 100)],
  },
];

describe("verl synchronisation", () => {
  for (const { name, set, gives, warns = [], refused = [] } of CASES) {
    test(name, () => {
      const { config, warnings, problems } = attempt(["rllm/backend=verl", ...set]);
      expect(problems.map(({ path }) => path)).toEqual(refused);
      const got = Object.fromEntries(Object.keys(gives).map((path) => [path, getAt(config, path)]));
      expect(got).toEqual(gives);
      const messages = warnings.map(({ message }) => message);
      expect(messages.map((message, i) => message.slice(0, warns[i]?.length ?? 0))).toEqual(warns);
    });
  }

  test.each([...VERL_SHARED, VERL_STEPS].flatMap(({ native, rllm }) => [native, rllm]))("%s=null is taken", (path) => {
    const { config, problems } = attempt(["rllm/backend=verl", `++${path}=null`]);
    expect(problems).toEqual([]);
    // An upper bound that is not set is eps_clip.
    expect(getAt(config, path)).toBe(path === VERL_CLIP.high ? 0.2 : null);
  });

  test("null for eps_clip leaves the upper bound as it was", () => {
    const { config, problems } = attempt(["rllm/backend=verl", "rllm.algorithm.eps_clip=null"]);
    expect(problems).toEqual([]);
    const bounds = [VERL_CLIP.ratio, VERL_CLIP.low, VERL_CLIP.high].map((path) => getAt(config, path));
    expect(bounds).toEqual([null, null, 0.2]);
  });

  const VALUES: Record<string, string> = {
    "rllm.algorithm.adv_estimator": "rloo",
    "rllm.algorithm.rollout_correction.tis_mode": "token",
    "rllm.algorithm.loss_fn": "gspo",
    "rllm.algorithm.loss_agg_mode": "seq-mean-token-sum",
    "rllm.algorithm.router_replay": "R2",
    "rllm.trainer.logger": "[tensorboard]",
    "rllm.trainer.project_name": "p",
    "rllm.trainer.experiment_name": "e",
  };
  const BOOLEANS = /norm_adv|bypass_mode|val_before_train|val_only/;
  for (const { native, rllm } of VERL_SHARED) {
    test(`${rllm} and ${native} hold the same value, set from either side`, () => {
      const value = VALUES[rllm] ?? (BOOLEANS.test(rllm) ? "false" : /top_p|ratio/.test(rllm) ? "0.5" : "7");
      for (const set of [rllm, native]) {
        const { config, problems } = attempt([
          "rllm/backend=verl",
          `${ACTOR}.strategy=megatron`,
          "trainer.n_gpus_per_node=1",
          `++${set}=${value}`,
        ]);
        expect(problems).toEqual([]);
        expect(getAt(config, native)).toEqual(getAt(config, rllm));
        expect(String(JSON.stringify(getAt(config, native)))).toContain(value.replace(/[[\]]/g, ""));
      }
    });
  }

  test("the rows with a name of verl's are those of the published table, and the entropy bonus", () => {
    const ours = { native: `${ACTOR}.entropy_coeff`, rllm: "rllm.algorithm.entropy_coeff" };
    const text = (rows: readonly { native: string; rllm: string }[]) =>
      rows.map(({ native, rllm }) => `${native} ${rllm}`).sort();
    expect(text(VERL_SHARED)).toEqual(text([...PUBLISHED_ROWS, ours]));
  });

  test("a value in a file counts below the command line and above defaults", () => {
    const texts = {
      "a.yaml": "rllm:\n  backend: verl\nalgorithm:\n  adv_estimator: rloo\ntrainer:\n  test_freq: 9\n",
    };
    const { config, warnings } = compose(["rllm.algorithm.adv_estimator=reinforce"], { texts });
    expect(getAt(config, "algorithm.adv_estimator")).toBe("reinforce");
    expect(getAt(config, "rllm.trainer.test_freq")).toBe(9);
    expect(warnings.map(({ file, line }) => `${file}:${line}`)).toEqual(["a.yaml:4", "a.yaml:6"]);
    const native = compose(["algorithm.adv_estimator=prpo"], {
      texts: { "a.yaml": "rllm: {backend: verl, algorithm: {adv_estimator: rloo}}" },
    });
    expect(getAt(native.config, "rllm.algorithm.adv_estimator")).toBe("prpo");
    expect(native.warnings.map(({ message }) => message).join("\n")).toContain(
      "using algorithm.adv_estimator=prpo, not rloo",
    );
  });
});

test("warnings about a file come in the order of its lines, those of the command line first", () => {
  const lines = [
    "rllm: {backend: verl}",
    "trainer: {save_freq: 5}",
    "data: {max_response_length: 9, train_batch_size: 8}",
    "algorithm: {adv_estimator: grpo}",
  ];
  const { warnings } = compose(["trainer.test_freq=3"], { texts: { "a.yaml": `${lines.join("\n")}\n` } });
  const placed = warnings.map(({ line }) => line);
  expect(placed.filter((line) => line !== undefined)).toEqual([2, 3, 3, 4]);
  expect(placed[0]).toBeUndefined();
});

describe("Tinker", () => {
  const tinker = (...set: string[]) => compose(["rllm/backend=tinker", ...set], { allowUnsupported: true });

  test("group sizes are forwarded", () => {
    const { config, warnings } = tinker("training.group_size=4", "validation.group_size=2");
    expect([getAt(config, "rllm.rollout.n"), getAt(config, "rllm.rollout.n_val")]).toEqual([4, 2]);
    expect(warnings).toEqual([]);
  });

  test("the portable name fills the mandatory one, a default does not", () => {
    expect(getAt(tinker("rllm.rollout.n=4").config, "training.group_size")).toBe(4);
    expect(getAt(tinker().config, "training.group_size")).toBe("???");
    expect(() => compose(["rllm/backend=tinker"], { allowMissing: false })).toThrow(
      /training\.group_size is mandatory and not set\. Write training\.group_size=VALUE, or rllm\.rollout\.n=VALUE\./,
    );
  });

  test("its own data block wins over base.yaml (in rLLM base.yaml overwrites it)", () => {
    const { config } = tinker();
    expect(getAt(config, "rllm.data")).toMatchObject({
      train_batch_size: 64,
      val_batch_size: 32,
      max_prompt_length: 2048,
      max_response_length: 2048,
    });
    expect(getAt(config, "data.max_response_length")).toBe(2048);
  });

  test("sampling, schedule and engine settings hold on both sides", () => {
    const { config } = tinker(
      "sampling.train.top_k=20",
      "rllm.algorithm.lr_schedule=linear",
      "rollout_engine.disable_thinking=true",
    );
    expect(getAt(config, "rllm.rollout.train.top_k")).toBe(20);
    expect(getAt(config, "training.lr_schedule")).toBe("linear");
    expect(getAt(config, "rllm.disable_thinking")).toBe(true);
  });

  test("the portable name wins a conflict, with a warning", () => {
    const { config, warnings } = tinker("training.group_size=4", "rllm.rollout.n=16");
    expect(getAt(config, "training.group_size")).toBe(16);
    expect(warnings[0]!.message).toBe(
      "training.group_size conflicts with rllm.rollout.n; using rllm.rollout.n=16, not 4",
    );
  });

  test("an agent's steps are only taken from the native name when it is set", () => {
    expect(getAt(tinker().config, "rllm.agent.max_steps")).toBe(20);
    expect(getAt(tinker("agent.max_steps=3").config, "rllm.agent.max_steps")).toBe(3);
  });
});
