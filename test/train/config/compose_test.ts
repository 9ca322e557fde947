/** Layers, precedence and origins; and each published quirk of rLLM's configuration as it is here. */
import { describe, expect, test } from "vitest";
import { RLLM_FIELDS } from "../../../src/train/config/fields/rllm.ts";
import { setting } from "../../../src/train/config/schema.ts";
import { showConfig } from "../../../src/train/config/show.ts";
import { flatten, getAt } from "../../../src/train/config/yaml/tree.ts";
import { attempt, complaints, compose } from "./disk.ts";

describe("layers", () => {
  test("defaults < base < backend < files < overrides; a later one of a kind wins", () => {
    const texts = {
      "a.yaml": "rllm: {rollout: {n: 2}, trainer: {total_epochs: 1, test_freq: 1}}\n",
      "b.yaml": "rllm: {trainer: {total_epochs: 2}}\n",
    };
    const { config } = compose(["rllm.trainer.test_freq=3", "rllm.trainer.test_freq=4"], { texts });
    expect(getAt(config, "rllm.rollout.n")).toBe(2);
    expect(getAt(config, "rllm.trainer.total_epochs")).toBe(2);
    expect(getAt(config, "rllm.trainer.test_freq")).toBe(4);
    expect(getAt(config, "rllm.trainer.save_freq")).toBe(20);
  });

  test("every value has its origin", () => {
    const texts = { "run.yaml": "# a run\nrllm:\n  rollout:\n    n: 2\n" };
    const { origins } = compose(["training.seed=7"], { texts });
    expect(origins.get("rllm.rollout.n")?.text).toBe("run.yaml:4");
    expect(origins.get("training.seed")?.text).toBe("override training.seed=7");
    expect(origins.get("training.group_size")?.text).toBe("rllm.rollout.n (run.yaml:4)");
    expect(origins.get("rllm.agent.name")?.text).toMatch(/^config\/rllm\/base\.yaml:\d+$/);
    const plain = compose();
    expect([...flatten(plain.config).keys()].filter((path) => !plain.origins.has(path))).toEqual([]);
  });

  test("a file chooses its backend by a defaults list, by value, or not at all", () => {
    const backendOf = (text: string, ...overrides: string[]) =>
      compose(overrides, { texts: { "a.yaml": text } }).backend;
    expect(backendOf("x: 1\n".replace("x: 1", ""))).toBe("local");
    expect(backendOf("defaults:\n  - rllm/backend: tinker\n  - _self_\n")).toBe("tinker");
    expect(backendOf("defaults:\n  - override /rllm/backend: verl\n")).toBe("verl");
    expect(backendOf("rllm: {backend: tinker}\n")).toBe("tinker");
    expect(backendOf("rllm: {backend: tinker}\n", "rllm/backend=verl")).toBe("verl");
    expect(backendOf("", "rllm.backend=tinker")).toBe("tinker");
  });

  test("the command line's backend wins over a file's", () => {
    const texts = { "a.yaml": "rllm: {backend: tinker}\n" };
    const { config, origins } = compose(["rllm/backend=verl"], { texts });
    expect(getAt(config, "rllm.backend")).toBe("verl");
    expect(origins.get("rllm.backend")?.text).toBe("override rllm/backend=verl");
    const both = { "a.yaml": "defaults: [{rllm/backend: verl}]\nrllm: {backend: tinker}\n" };
    expect(complaints([], { texts: both })[0]).toContain(
      "defaults has rllm/backend=verl, the file has rllm.backend=tinker. Keep one.",
    );
    expect(complaints(["rllm/backend=verl", "rllm/backend=tinker"])[0]).toBe(
      "Cannot choose the backend: there are two choices (verl, tinker). Keep one.",
    );
  });

  test("verl trains once its sampling engine is named", () => {
    const set = ["rllm/backend=verl"];
    expect(complaints(set)).toEqual([]);
    expect(complaints(set, { allowMissing: false }).join()).toContain("actor_rollout_ref.rollout.name is mandatory");
    const needed = ["rollout.name=vllm", "actor.use_dynamic_bsz=true"].map((it) => `actor_rollout_ref.${it}`);
    expect(complaints([...set, ...needed, "training.num_minibatches=1"], { allowMissing: false })).toEqual([]);
    expect(complaints([], { allowMissing: false })).toEqual([]);
  });

  test("one file serves the local backend and verl: names of the local one reach verl's tree", () => {
    const file = {
      "run.yaml":
        "model: {name: m, lora_rank: 8}\n" +
        "training: {learning_rate: 3e-5, num_minibatches: 4, gradient_checkpointing: 'true', seed: 1}\n" +
        "rllm: {data: {train_batch_size: 32}}\n",
    };
    const { config } = compose(["rllm/backend=verl"], { texts: file });
    const at = (path: string) => getAt(config, `actor_rollout_ref.${path}`);
    expect(at("model.path")).toBe("m");
    expect(at("model.lora_rank")).toBe(8);
    expect(at("actor.optim.lr")).toBe(3e-5);
    expect(at("actor.ppo_mini_batch_size")).toBe(8);
    expect(at("model.enable_gradient_checkpointing")).toBe(true);
    expect(compose([], { texts: file }).warnings).toEqual([]);
  });

  test("verl's own name wins over the local backend's at one level, with a warning", () => {
    const set = ["rllm/backend=verl", "training.learning_rate=1e-5", "actor_rollout_ref.actor.optim.lr=2e-5"];
    const { config, warnings } = compose(set);
    expect(getAt(config, "actor_rollout_ref.actor.optim.lr")).toBe(2e-5);
    expect(warnings.map(({ message }) => message).join()).toContain(
      "training.learning_rate conflicts with actor_rollout_ref.actor.optim.lr; using actor_rollout_ref.actor.optim.lr=0.00002",
    );
  });

  test("a secret is masked in the message about its own override", () => {
    const told = complaints(["rllm.sdk.proxy.admin_token='hunter2", "training.seed=http://me:hunter2@host"]).join("\n");
    expect(told).toContain("admin_token=********");
    expect(told).not.toContain("hunter2");
  });

  test("a file includes another from its folder", () => {
    const texts = {
      "runs/b.yaml": "defaults: [common, _self_]\nrllm: {rollout: {n: 3}}\n",
      "runs/common.yaml": "rllm: {rollout: {n: 2, n_val: 5}}\n",
    };
    const { config } = compose([], { texts, files: ["runs/b.yaml"] });
    expect([getAt(config, "rllm.rollout.n"), getAt(config, "rllm.rollout.n_val")]).toEqual([3, 5]);
    const loop = { "a.yaml": "defaults: [b]\n", "b.yaml": "defaults: [a]\n" };
    expect(complaints([], { texts: loop, files: ["a.yaml"] })[0]).toBe(
      "Cannot read the configuration a.yaml: it includes itself.",
    );
  });

  test("a backend that a file leaves to an interpolation is the default, and named so", () => {
    // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation
    const texts = { "a.yaml": "rllm: {backend: '${oc.env:BACKEND,tinker}'}\n" };
    const { config, origins } = attempt([], { texts });
    expect([getAt(config, "rllm.backend"), origins.get("rllm.backend")?.text]).toEqual(["local", "default"]);
  });

  test("an engine of verl is written for verl alone", () => {
    expect(getAt(attempt(["model_engine=megatron"]).config, "model_engine")).toBeUndefined();
    expect(getAt(attempt(["rllm/backend=verl", "model_engine=megatron"]).config, "model_engine")).toBe("megatron");
  });

  describe("verl's trees", () => {
    const verl = (...set: string[]) => ["rllm/backend=verl", ...set];
    const at = (path: string, ...set: string[]) => getAt(compose(verl(...set)).config, path);

    test("0.8.0 with FSDP is the default; version and engine are choices", () => {
      expect(at("actor_rollout_ref.rollout.max_num_seqs")).toBe(1024);
      expect(at("actor_rollout_ref.rollout.max_num_seqs", "verl=0.9.1")).toBe(256);
      expect(at("actor_rollout_ref.actor.strategy")).toBe("fsdp");
      expect(at("actor_rollout_ref.actor.strategy", "model_engine=megatron")).toBe("megatron");
      expect(at("actor_rollout_ref.actor.megatron", "model_engine=megatron")).toMatchObject({
        tensor_model_parallel_size: 1,
      });
      expect(at("model_engine", "model_engine=veomni", "verl=0.9.1")).toBe("veomni");
    });

    test("an unknown choice is refused with the known ones", () => {
      expect(complaints(verl("verl=0.8"))).toEqual([
        "Cannot choose verl=0.8: the choices are 0.8.0, 0.9.1. Did you mean verl=0.8.0?",
      ]);
      expect(complaints(verl("verl=0.9.1", "model_engine=mindspeed"))).toEqual([
        "Cannot choose model_engine=mindspeed: verl 0.9.1 has dp, megatron, torchtitan, veomni.",
      ]);
      expect(complaints(["verl=0.9.1"])).toEqual([
        "Cannot choose verl=0.9.1: the local backend has no verl tree. Remove it, or choose rllm/backend=verl.",
      ]);
      expect(complaints(verl("critic.model.fsdp_config.param_offload=true"))).toEqual([
        "Cannot set critic.model.fsdp_config.param_offload: this version of verl has it elsewhere. Set critic.fsdp.param_offload.",
      ]);
    });

    test("a file may add to the dicts that verl hands to its engine, and to nothing else", () => {
      const megatron =
        "actor_rollout_ref: {actor: {megatron: {override_transformer_config: {moe_grouped_gemm: true}}}}";
      const texts = { "a.yaml": megatron, "b.yaml": "actor_rollout_ref: {actor: {moe_grouped_gemm: true}}" };
      const set = verl("model_engine=megatron");
      const dict = "actor_rollout_ref.actor.megatron.override_transformer_config";
      const { config, warnings } = compose(set, { texts, files: ["a.yaml"] });
      expect(getAt(config, dict)).toMatchObject({ moe_grouped_gemm: true, attention_backend: "flash" });
      expect(warnings.map(({ message }) => message)).toContain(
        `${dict}.moe_grouped_gemm is not in verl's tree. It is passed on unchecked.`,
      );
      expect(complaints(set, { texts, files: ["b.yaml"] })[0]).toContain(": there is no such setting");
      for (const wrong of ["override_own: {x: 1}", "override_transformer_config_x: 1"])
        expect(
          complaints(set, { texts: { "c.yaml": `actor_rollout_ref: {actor: {megatron: {${wrong}}}}` } })[0],
        ).toContain(": there is no such setting");
      const nested = `actor_rollout_ref: {actor: {megatron: {override_transformer_config: {a: {b: 1}}}}}`;
      expect(getAt(compose(set, { texts: { "d.yaml": nested } }).config, `${dict}.a.b`)).toBe(1);
      expect(complaints([...set, `${dict}.moe_grouped_gemm=true`])[0]).toContain(": there is no such setting");
    });

    test("a setting of another tree is refused with the choice that has it", () => {
      const cases: [set: string[], choice: string][] = [
        [["trainer.v1.sync=1"], "verl=0.9.1"],
        [["actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"], "model_engine=megatron"],
        [["actor_rollout_ref.actor.fsdp_config.fsdp_size=2", "model_engine=veomni"], "model_engine=dp"],
        [["actor_rollout_ref.actor.router_replay.mode=R2", "verl=0.9.1"], "verl=0.8.0"],
        [["critic.checkpoint.mbridge_config={}", "verl=0.9.1"], "model_engine=megatron"],
        [["actor_rollout_ref.actor.megatron.turbo=1", "verl=0.9.1"], ""],
      ];
      for (const [set, choice] of cases) {
        const told = complaints(verl(...set))[0];
        if (choice === "") expect(told).toContain(": there is no such setting");
        else expect(told).toContain(`this tree of verl's has no such setting. Choose ${choice}.`);
      }
    });

    test("a file chooses the engine as verl's own files do, and the command line wins", () => {
      const files = [
        "defaults: [ppo_megatron_trainer]\nrllm: {backend: verl}\n",
        "defaults: [ppo_trainer, override model_engine: megatron]\nrllm: {backend: verl}\n",
        "model_engine: megatron\nrllm: {backend: verl}\n",
      ];
      for (const text of files) {
        const texts = { "a.yaml": text };
        const chosen = (...set: string[]) => {
          const { config } = compose(set, { texts });
          return ["model_engine", "actor_rollout_ref.actor.strategy"].map((path) => getAt(config, path));
        };
        expect(chosen()).toEqual(["megatron", "megatron"]);
        expect(chosen("model_engine=dp")).toEqual(["dp", "fsdp"]);
      }
    });
  });

  test("the output of config show composes to the same configuration", () => {
    for (const backend of ["local", "tinker", "verl"]) {
      const first = compose([
        `rllm/backend=${backend}`,
        "rllm.rollout.n=4",
        "rllm.rollout.n_val=2",
        "rllm.data.max_response_length=77",
      ]);
      const text = showConfig(first.config).replace(/^ +admin_token: .*\n/m, "");
      const second = compose([], { texts: { "shown.yaml": text } });
      expect(second.config).toEqual(first.config);
    }
  });

  test("settings are read with their types", () => {
    const { config } = compose(["rllm.rollout.n=4"]);
    const n: number = setting(config, "rllm.rollout.n");
    const high: number | null = setting(config, "rllm.algorithm.eps_clip_high");
    const device: "auto" | "webgpu" | "cpu" = setting(config, "device");
    expect([n, high, device]).toEqual([4, null, "auto"]);
  });
});

describe("what belongs to the device", () => {
  const chosen = (overrides: readonly string[], text?: string) => {
    const { config, warnings, origins } = compose(overrides, text === undefined ? {} : { texts: { "run.yaml": text } });
    const paths = ["device", "device_adapter", "device_backend", "device_toggles", "device_products"];
    return { values: paths.map((path) => getAt(config, path)), warnings, origin: origins.get("device_adapter")?.text };
  };

  test("is spelled as a section of device, in overrides and in files, beside the plain device=cpu", () => {
    const overrides = [
      "device=webgpu",
      "device.adapter=nvidia",
      "device.backend=vulkan",
      "device.toggles=[a,-b]",
      "device.products=tiled",
    ];
    expect(chosen(overrides)).toEqual({
      values: ["webgpu", "nvidia", "vulkan", ["a", "-b"], "tiled"],
      warnings: [],
      origin: "override device.adapter=nvidia",
    });
    const file = "device:\n  name: cpu\n  adapter: 1\n";
    expect(chosen(["device.backend=metal"], file)).toEqual({
      values: ["cpu", "1", "metal", [], "auto"],
      warnings: [],
      origin: "run.yaml:3",
    });
    expect(chosen(["device=auto"], "device: cpu\ndevice_adapter: amd\n").values).toEqual([
      "auto",
      "amd",
      null,
      [],
      "auto",
    ]);
  });

  test("is checked under either spelling", () => {
    expect(() => compose(["device.backend=glide"])).toThrow(/device_backend: it takes vulkan, metal/);
    expect(() => compose(["device.name=gpu"])).toThrow(/Cannot set device: it takes auto, webgpu, cpu/);
    expect(() => compose(["device.lanes=2"])).toThrow(/Cannot set device\.lanes/);
  });
});

describe("prompt and response against training.max_length", () => {
  test.each([
    [32, 0],
    [31, 1],
    [33, 0],
  ])("10 + 22 tokens in %i: %i warnings", (most, count) => {
    for (const backend of ["local", "tinker"]) {
      const lengths = ["rllm.data.max_prompt_length=10", "rllm.data.max_response_length=22"];
      const { warnings } = compose([`rllm/backend=${backend}`, ...lengths, `training.max_length=${most}`]);
      const told = warnings.filter(({ path }) => path === "training.max_length");
      expect(told.map(({ message }) => message)).toHaveLength(count);
    }
  });
});

describe("defaults of the guide", () => {
  const cases: [path: keyof typeof RLLM_FIELDS, value: unknown][] = [
    ["rllm.trainer.val_before_train", true],
    ["rllm.sdk.store.path", "~/.rllm/traces.db"],
    ["rllm.sdk.proxy.port", 4000],
    ["rllm.workflow.workflow_args.timeout", 1e6],
    ["rllm.filter_token_mismatch", true],
    ["rllm.rollout.n_val", 1],
    ["rllm.algorithm.rollout_correction.tis_cap", 2],
  ];
  for (const [path, value] of cases) test(`${path} is ${value}`, () => expect(RLLM_FIELDS[path].default).toBe(value));

  test("the old names of episode logging still work, with a warning", () => {
    const { config, warnings } = compose(["rllm.log_episodes=true"], {
      allowUnsupported: true,
      texts: { "a.yaml": "episode_log_dir: x\n" },
    });
    expect(getAt(config, "rllm.episode_logging")).toEqual({ log_episodes: true, episode_log_dir: "x" });
    expect(warnings.map(({ message }) => message).filter((message) => message.includes("old name"))).toEqual([
      "episode_log_dir is now rllm.episode_logging.episode_log_dir. The old name still works.",
      "rllm.log_episodes is now rllm.episode_logging.log_episodes. The old name still works.",
    ]);
  });
});

describe("published quirks and what this package does", () => {
  test("1: a registered estimator works by its name, globally", () => {
    const registered = { "rllm.algorithm.adv_estimator": ["mine"] };
    expect(attempt(["rllm.algorithm.adv_estimator=mine"], { registered })).toMatchObject({
      problems: [],
      warnings: [],
    });
    expect(complaints(["rllm.algorithm.adv_estimator=mime"], { registered })[0]).toContain("Did you mean mine?");
    expect(attempt(["rllm.algorithm.adv_estimator=mine"]).warnings[0]!.message).toContain(
      "must be registered by a module",
    );
  });

  test("2: a group size that min_trajs_per_group drops gets a warning", () => {
    expect(compose(["rllm.rollout.n=1"]).warnings[0]!.message).toBe(
      "rllm.rollout.n=1 trains nothing: rllm.rejection_sample.min_trajs_per_group=2 drops every group. Raise the first or lower the second.",
    );
    expect(compose(["rllm.rollout.n=1", "rllm.rejection_sample.min_trajs_per_group=1"]).warnings).toEqual([]);
  });

  test("a strategy for old replies without a threshold gets a warning, also where it is the default but typed", () => {
    const [threshold, strategy] = ["training.max_off_policy_threshold", "training.max_off_policy_strategy"];
    const warned = (overrides: string[], texts?: Record<string, string>) =>
      compose(overrides, texts && { texts }).warnings.map(({ message }) => message);
    for (const value of ["mask", "drop"])
      expect(warned([`${strategy}=${value}`])).toEqual([
        `${strategy}=${value} has no effect: ${threshold} is null, so that no reply counts as too old. Set ${threshold}, or remove ${strategy}.`,
      ]);
    expect(warned([`${strategy}=mask`, `${threshold}=0`])).toEqual([]);
    const file = (value: string) => ({ "run.yaml": `training: {max_off_policy_strategy: ${value}}\n` });
    expect([warned([], file("mask")).length, warned([], file("drop")).length]).toEqual([1, 0]);
  });

  test("4: rejection mode group exists", () => {
    expect(complaints(["rllm.rejection_sample.mode=group"])).toEqual([]);
    expect(complaints(["rllm.rejection_sample.multiplier=2"])[0]).toContain("rejection sampling is off");
    expect(complaints(["rllm.rejection_sample.multiplier=2", "rllm.rejection_sample.enable=true"])).toEqual([]);
  });

  test("8: val_only works alone", () => {
    expect(complaints(["rllm.trainer.val_only=true", "rllm.trainer.val_before_train=false"])).toEqual([]);
  });

  test("12: a file is never overwritten by a default of the command line", () => {
    const texts = {
      "a.yaml": "rllm: {trainer: {total_epochs: 3}}\nmodel: {lora_rank: 4}\ntraining: {learning_rate: 1e-3}\n",
    };
    const { config } = compose([], { texts });
    expect([
      getAt(config, "rllm.trainer.total_epochs"),
      getAt(config, "model.lora_rank"),
      getAt(config, "training.learning_rate"),
    ]).toEqual([3, 4, 1e-3]);
  });

  test("15: nothing is silently ignored: KL, clipping and aggregation act on Tinker, or are refused", () => {
    for (const key of [
      "kl_beta=0.1",
      "eps_clip=0.3",
      "eps_clip_high=0.3",
      "loss_agg_mode=token-mean",
      "rollout_correction.tis_mode=token",
    ]) {
      const set = [
        "rllm/backend=tinker",
        `rllm.algorithm.${key}`,
        "rllm.algorithm.rollout_correction.bypass_mode=false",
      ];
      expect(complaints(set), key).toEqual([]);
    }
    expect(complaints(["rllm/backend=tinker", "rllm.algorithm.router_replay=R3"])[0]).toContain(
      "on the tinker backend:",
    );
  });

  test("16: the stepwise settings that rLLM coerces or never reads act", () => {
    const set = ["mode=per_step", "enable=true", "normalize_by_steps=true"];
    expect(complaints(set.map((each) => `rllm.stepwise_advantage.${each}`))).toEqual([]);
  });

  test("17: a setting that rLLM never reads acts, and one that nothing here reads is refused", () => {
    expect(complaints(["rllm.filter_token_mismatch=false"])).toEqual([]);
    expect(complaints(["rllm.remote_runtime.enabled=true"])[0]).toContain("on the local backend:");
  });

  test("a setting that is forwarded is the one that acts", () => {
    expect(complaints(["rllm/backend=tinker", "rollout_engine.disable_thinking=true"])).toEqual([]);
    const { config } = attempt(["rllm/backend=tinker", "rollout_engine.disable_thinking=true"]);
    expect(config?.rllm).toMatchObject({ disable_thinking: true });
  });

  test("use_rllm is refused instead of ignored", () => {
    expect(complaints(["rllm.algorithm.use_rllm=true"])).toEqual([
      "Cannot set rllm.algorithm.use_rllm=true on the local backend: rLLM deprecated it; advantages always come from this loop. " +
        "Remove it, or ignore it with --allow-unsupported.",
    ]);
    const allowed = compose(["rllm.algorithm.use_rllm=true"], { allowUnsupported: true });
    expect(allowed.warnings[0]!.message).toContain("It has no effect");
  });

  test("asynchronous training refuses raise_on_error=true", () => {
    expect(complaints(["rllm.async_training.enable=true"])[0]).toContain("rllm.workflow.raise_on_error=true");
  });

  test("verl: refuses the same settings as the published unified backend", () => {
    const verl = (...set: string[]) => complaints(["rllm/backend=verl", ...set])[0];
    expect(verl("actor_rollout_ref.rollout.mode=sync")).toContain("needs actor_rollout_ref.rollout.mode=async (sync)");
    // verl's own trainer, which computes rewards and advantages, puts it there.
    expect(verl("algorithm.use_kl_in_reward=true")).toBeUndefined();
    expect(verl("reward.reward_model.enable=true")).toContain("rewards come from the loop's evaluator");
    expect(verl("rllm.algorithm.router_replay=R2")).toContain("megatron");
    expect(
      verl("rllm.algorithm.rollout_correction.bypass_mode=true", "rllm.algorithm.rollout_correction.tis_mode=token"),
    ).toContain("bypass mode");
    expect(verl("rllm.data.train_batch_size=3", "rllm.rollout.n=3")).toContain("3 prompts x 3 rollouts = 9 rows");
  });
});
