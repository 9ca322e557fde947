/** verl's settings as a Trinity-RFT configuration, by the rules of Trinity's alignment guide. */
import type { YamlValue } from "../../../train/config/yaml/tree.ts";
import { Build } from "../build.ts";
import type { Converted, ConvertedSource, ConvertOptions } from "../contract.ts";
import { pairsWithTrinity, settleDefaults } from "../defaults.ts";
import { expandHome, valueList } from "../values.ts";
import { completeArguments, putAlgorithm, putKl } from "./algorithm.ts";
import { checkTrinity } from "./check.ts";
import { putEngines } from "./gpus.ts";
import { ROWS, type SettingPair, TARGET_ROWS, TRINITY_CONSTANTS, VERL_LOCAL_DIR_TAIL } from "./rows.ts";
import { putTasksets } from "./tasksets.ts";

const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";
const MODEL = "actor_rollout_ref.model";

export function verlToTrinity(source: ConvertedSource, options: ConvertOptions = {}): Converted {
  const build = new Build(source, options);
  const interval = putBatches(build);
  putAlgorithm(build);
  putKl(build);
  for (const row of [...ROWS, ...TARGET_ROWS[build.options.target]]) putRow(build, row, interval);
  completeArguments(build);
  putTasksets(build);
  putRewardModel(build);
  putTrainer(build, interval);
  checkCopiedSteps(build, interval);
  putConstants(build);
  putRest(build);
  putEngines(build);
  settleDefaults(build, pairsWithTrinity("verl", build.options.target));
  build.applyProfile();
  checkTrinity(build);
  return build;
}

/** @returns `sync_interval`: Trinity's updates per iteration of verl's. */
function putBatches(build: Build): number {
  const n = Number(build.peek(`${ROLLOUT}.n`) ?? 1);
  const miniPath = `${ACTOR}.ppo_mini_batch_size`;
  refuseOpenNumbers(build, [`${ROLLOUT}.n`, "data.train_batch_size", miniPath]);
  const batch = Number(build.take("data.train_batch_size") ?? 1024);
  const mini = Number(build.take(miniPath) ?? Math.min(256, batch));
  if (Number.isNaN(n + batch + mini)) return 1;
  const interval = batch / mini;
  if (!Number.isInteger(interval) || interval < 1) {
    build.fail(
      `Cannot compute synchronizer.sync_interval: data.train_batch_size=${batch} is not a multiple of ` +
        `${miniPath}=${mini}. Change one.`,
      build.has(miniPath) ? miniPath : "data.train_batch_size",
    );
    return 1;
  }
  const from = [miniPath, "data.train_batch_size"];
  build.put("buffer.batch_size", mini, { kind: "computed", from: [miniPath], message: "prompts per update" });
  build.put("buffer.train_batch_size", mini * n, {
    kind: "computed",
    from: [miniPath, `${ROLLOUT}.n`],
    message: `experiences per update: ${mini} prompts x ${n} rollouts`,
  });
  build.put("synchronizer.sync_interval", interval, {
    kind: "computed",
    from,
    message: `${batch} / ${mini}`,
  });
  if (!build.has(`${ROLLOUT}.n`))
    build.put("algorithm.repeat_times", 1, { kind: "computed", message: "verl's default" });
  return interval;
}

/** Trinity's numbers are computed from these, so they must be known. */
function refuseOpenNumbers(build: Build, paths: readonly string[]): void {
  for (const path of paths) {
    const value = build.peek(path);
    if (value === undefined || typeof value === "number") continue;
    build.fail(
      `Cannot compute Trinity's batches: ${path} is not a number (${JSON.stringify(value)}). ` +
        "Give its variable (--env NAME=VALUE), or the setting after the file.",
      path,
    );
  }
}

function putRow(build: Build, row: SettingPair, interval: number): void {
  if (!build.has(row.verl) || build.used.has(row.verl)) return;
  const value = build.take(row.verl) as YamlValue;
  if (row.values && !isReference(value)) {
    const mapped = row.values.find(([verl]) => verl === value);
    if (mapped) build.put(row.trinity, mapped[1], { kind: "renamed", from: [row.verl], message: row.note });
    else if (row.trinity === "algorithm.policy_loss_fn" && !build.options.profile.has(row.trinity)) {
      const accepted = row.values.map(([verl]) => verl).join(", ");
      build.fail(
        `Cannot convert ${row.verl}=${value}: Trinity has no such loss (it has ${accepted}). Give ${row.trinity} in the profile.`,
        row.verl,
      );
    } else build.drop(row.verl, `Trinity has no counterpart for ${JSON.stringify(value)}`);
    return;
  }
  if (row.isCadence) putCadence(build, row, interval);
  else build.put(row.trinity, expandHome(value), { kind: "renamed", from: [row.verl], message: row.note });
}

function putCadence(build: Build, row: SettingPair, interval: number): void {
  const value = build.take(row.verl) as YamlValue;
  const isScaled = build.options.cadence === "scale" && typeof value === "number" && value > 0;
  const steps = isScaled ? (value as number) * interval : value;
  if (row.verl === "trainer.test_freq" && typeof steps === "number" && steps <= 0) {
    build.drop(row.verl, "validation is off: no eval_tasksets are written");
    return;
  }
  const off = row.verl === "trainer.save_freq" && typeof steps === "number" && steps < 0;
  const message =
    interval > 1 && steps !== 0
      ? `one iteration of verl is ${interval} steps; ${isScaled ? "scaled" : "copied"}`
      : undefined;
  build.put(row.trinity, off ? 0 : steps, { kind: "renamed", from: [row.verl], message });
}

function putRewardModel(build: Build): void {
  const [enable, path] = build.has("reward.reward_model.enable")
    ? ["reward.reward_model.enable", "reward.reward_model.model_path"]
    : ["reward_model.enable", "reward_model.model.path"];
  if (build.take(enable) !== true) return;
  const at = "explorer.auxiliary_models.0";
  build.put(`${at}.model_path`, expandHome(build.take(path) ?? null), {
    kind: "renamed",
    from: [path, enable],
  });
  for (const name of ["engine_num", "tensor_parallel_size"]) {
    build.put(`${at}.${name}`, 1, {
      kind: "computed",
      message: "Trinity's default; choose another in the profile",
    });
  }
  build.check(
    "an auxiliary model only counts when a workflow calls it; verl's scores every response by itself",
    enable,
  );
}

function putSteps(build: Build, interval: number): void {
  const path = "trainer.total_training_steps";
  const steps = build.take(path);
  if (steps === undefined) return;
  if (steps === null || (typeof steps === "number" && steps <= 0)) {
    build.drop(path, "no limit, which is Trinity's default");
    return;
  }
  const isScaled = build.options.cadence === "scale" && typeof steps === "number";
  for (const to of ["buffer.total_steps", "trainer.total_steps"]) {
    build.put(to, isScaled ? steps * interval : steps, { kind: "split", from: [path] });
  }
}

/** Copied steps occur `sync_interval` times as often as in verl. */
function checkCopiedSteps(build: Build, interval: number): void {
  if (interval === 1 || build.options.cadence === "scale") return;
  const total = build.values.get("buffer.total_steps")?.value;
  if (total !== undefined) {
    build.check(
      `buffer.total_steps=${total} is copied, and a step of Trinity explores 1/${interval} of the prompts of a step of verl: ` +
        `the run sees 1/${interval} of them (--cadence scale writes ${Number(total) * interval})`,
      "trainer.total_training_steps",
    );
  }
  const copied = ["trainer.save_interval", "explorer.eval_interval"].filter(
    (path) => Number(build.values.get(path)?.value) > 0,
  );
  if (copied.length > 0) {
    build.check(
      `${copied.join(", ")}: copied, so ${interval} times as often as in verl (--cadence scale multiplies by ${interval})`,
    );
  }
}

const MONITORS = ["wandb", "tensorboard", "mlflow"];

function putTrainer(build: Build, interval: number): void {
  const folder = build.take("trainer.default_local_dir");
  if (typeof folder === "string") {
    const root = folder.endsWith(VERL_LOCAL_DIR_TAIL) ? folder.slice(0, -VERL_LOCAL_DIR_TAIL.length) : folder;
    const message = root === folder ? "Trinity adds <project>/<name> to it" : undefined;
    build.put("checkpoint_root_dir", expandHome(root), {
      kind: "renamed",
      from: ["trainer.default_local_dir"],
      message,
    });
  }
  putSteps(build, interval);
  putMonitor(build);
  const kept = ["trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"].filter((path) => build.has(path));
  if (kept.length > 0) {
    const values = kept.map((path) => build.take(path) ?? 0);
    const message = new Set(values).size > 1 ? "Trinity has one number for both; the actor's is taken" : undefined;
    build.put("trainer.max_checkpoints_to_keep", values[0]!, { kind: "merged", from: kept, message });
  }
  if (build.take("trainer.val_only") === true) {
    build.put("mode", "bench", { kind: "renamed", from: ["trainer.val_only"], message: "the closest mode" });
  }
}

function putMonitor(build: Build): void {
  const path = "trainer.logger";
  const loggers = valueList(build.take(path)).map(String);
  const monitors = loggers.filter((name) => MONITORS.includes(name));
  if (monitors.length > 0) {
    const others = loggers.filter((name) => name !== monitors[0]);
    const message = others.length > 0 ? `one monitor only; left out: ${others.join(", ")}` : undefined;
    build.put("monitor.monitor_type", monitors[0]!, { kind: "merged", from: [path], message });
  } else if (loggers.length > 0) {
    build.drop(path, `Trinity monitors with ${MONITORS.join(", ")}; its default stays`);
  }
}

function putConstants(build: Build): void {
  for (const [path, value] of TRINITY_CONSTANTS) {
    if (!build.values.has(path)) build.put(path, value, { kind: "constant", message: "as in the guide's examples" });
  }
}

/** A setting without a row goes to trainer_config under its own path, if Trinity's builder accepts it there. */
function putRest(build: Build): void {
  const { target } = build.options;
  for (const [path, { value }] of build.rest()) {
    const home = trainerConfigPath(path, target);
    if (path === "model_engine" && value === "megatron") {
      build.take(path);
      build.put("trainer.trainer_strategy", "megatron", { kind: "renamed", from: [path] });
    } else if (path === `${ROLLOUT}.name` && value !== "vllm") {
      putEngine(build, path);
    } else if (home !== undefined) {
      build.take(path);
      build.put(`trainer.trainer_config.${home}`, expandHome(value), { kind: "exact", from: [path] });
    } else build.drop(path, whyDropped(path));
  }
}

const ENGINES = ["vllm", "sglang", "external"];

function putEngine(build: Build, path: string): void {
  const value = build.take(path) as YamlValue;
  if (!isReference(value) && !ENGINES.includes(String(value))) {
    build.fail(`Cannot convert ${path}=${value}: Trinity samples with ${ENGINES.join(", ")}. Choose one.`, path);
  }
  build.put("explorer.rollout_model.engine_type", value, { kind: "renamed", from: [path] });
}

function trainerConfigPath(path: string, target: "legacy" | "new"): string | undefined {
  if (path.startsWith(`${ROLLOUT}.`)) return path.startsWith(`${ROLLOUT}.log_prob_`) ? path : undefined;
  const critic = /^critic\.(?:model\.fsdp_config|fsdp)\.(.*)$/.exec(path);
  if (critic) return target === "new" ? `critic.fsdp.${critic[1]}` : `critic.model.fsdp_config.${critic[1]}`;
  if (path.startsWith("critic.") || path.startsWith(`${ACTOR}.`) || path.startsWith(`${MODEL}.`)) return path;
  return path.startsWith("actor_rollout_ref.ref.") ? path : undefined;
}

function whyDropped(path: string): string {
  if (path === "model_engine") return "Trinity trains with fsdp, fsdp2 or megatron";
  if (path === `${ROLLOUT}.name`) return "vllm is Trinity's default engine";
  if (path.startsWith(`${ROLLOUT}.`)) return "sampler settings of verl have no effect in Trinity";
  if (path === "data.truncation") return "Trinity truncates on the right and leaves such rows out of the loss";
  if (path.startsWith("data.")) return "Trinity's tasksets have no such setting";
  if (path.startsWith("reward_model.") || path.startsWith("reward."))
    return "Trinity serves reward models as auxiliary models";
  if (path.startsWith("custom_reward_function."))
    return "needs a reward function registered in Trinity: default_reward_fn_type";
  if (path === "trainer.resume_from_path") return "Trinity only resumes from its own folder";
  return "Trinity has no counterpart";
}

function isReference(value: YamlValue): boolean {
  return typeof value === "string" && value.includes("${");
}
