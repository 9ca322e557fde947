/** Converts a Trinity-RFT configuration to verl's settings: the inverse of from_verl.ts. */
import type { YamlValue } from "../../../train/config/yaml/tree.ts";
import { Build } from "../build.ts";
import type { Converted, ConvertedSource, ConvertOptions } from "../contract.ts";
import { pairsWithTrinity, settleDefaults } from "../defaults.ts";
import {
  ALGORITHM_TYPES,
  CLIP_DEFAULTS,
  ESTIMATORS,
  FILLED_IN,
  KL_TO_VERL,
  NEAR_ADVANTAGES,
  ROWS,
  type SettingPair,
  TARGET_ROWS,
  VERL_LOCAL_DIR_TAIL,
  WITHOUT_TYPE,
} from "./rows.ts";
import { takeTasksets } from "./tasksets.ts";

const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";

export function trinityToVerl(source: ConvertedSource, options: ConvertOptions = {}): Converted {
  const build = new Build(source, options);
  const interval = putBatches(build);
  putEstimator(build);
  putKl(build, {
    fn: "algorithm.kl_penalty_fn",
    use: "algorithm.use_kl_in_reward",
    kind: "algorithm.kl_penalty",
  });
  putKl(build, { fn: "algorithm.kl_loss_fn", use: `${ACTOR}.use_kl_loss`, kind: `${ACTOR}.kl_loss_type` });
  putLoss(build);
  for (const row of [...ROWS, ...TARGET_ROWS.legacy, ...TARGET_ROWS.new]) putRow(build, row, interval);
  takeTasksets(build);
  putModels(build);
  putTrainer(build, interval);
  checkCopiedSteps(build, interval);
  putRest(build);
  settleDefaults(build, pairsWithTrinity("trinity", build.options.target));
  build.applyProfile();
  return build;
}

/** Batches go the other way: prompts per update times updates per iteration. */
function putBatches(build: Build): number {
  const interval = Number(build.take("synchronizer.sync_interval") ?? 1);
  const batch = Number(build.take("buffer.batch_size") ?? 1);
  const repeat = Number(build.peek("algorithm.repeat_times") ?? 1);
  const experiences = build.take("buffer.train_batch_size");
  if (experiences !== undefined && Number(experiences) !== batch * repeat) {
    build.fail(
      `Cannot convert: buffer.train_batch_size=${experiences} is not batch_size x repeat_times = ${batch} x ${repeat} = ${batch * repeat}. ` +
        "Make them equal: verl trains on exactly what it rolls out.",
      "buffer.train_batch_size",
    );
  }
  const from = ["buffer.batch_size"];
  build.put("data.train_batch_size", batch * interval, {
    kind: "computed",
    from: [...from, "synchronizer.sync_interval"],
    message: `${batch} x ${interval}`,
  });
  build.put(`${ACTOR}.ppo_mini_batch_size`, batch, { kind: "computed", from });
  return interval;
}

function putEstimator(build: Build): void {
  const [type, fn] = [build.take("algorithm.algorithm_type"), build.take("algorithm.advantage_fn")];
  const kind = ALGORITHM_TYPES[String(type ?? "ppo")];
  const name = String(fn ?? kind?.advantage ?? type);
  const path = build.has("algorithm.advantage_fn") ? "algorithm.advantage_fn" : "algorithm.algorithm_type";
  const from = ["algorithm.advantage_fn", "algorithm.algorithm_type"].filter((path) => build.has(path));
  const near = NEAR_ADVANTAGES[name];
  const estimator = near?.verl ?? [...ESTIMATORS, ...WITHOUT_TYPE].find(([, advantage]) => advantage === name)?.[0];
  if (estimator !== undefined) build.put("algorithm.adv_estimator", estimator, { kind: "renamed", from });
  else if (!build.options.profile.has("algorithm.adv_estimator")) {
    build.fail(
      `Cannot convert ${path}=${name}: verl has no such estimator (known: ${ESTIMATORS.map(([, estimator]) => estimator).join(", ")}, ` +
        `${Object.keys(NEAR_ADVANTAGES).join(", ")}). Give algorithm.adv_estimator in the profile.`,
      path,
    );
  }
  if (near?.differs) build.check(`algorithm.adv_estimator=${estimator} is not exact: ${near.differs}`, path);
}

/** The loss of the algorithm type or of its own setting, with the clip range that Trinity gives it. */
function putLoss(build: Build): void {
  const path = "algorithm.policy_loss_fn";
  const type = ALGORITHM_TYPES[String(build.peek("algorithm.algorithm_type") ?? "ppo")];
  const loss = String(build.peek(path) ?? type?.loss ?? "ppo");
  if (loss === "m2po") {
    build.take(path);
    build.check(
      "verl has no m2po: its vanilla loss is left, which clips each token instead of bounding the second moment of all",
      build.has(path) ? path : "algorithm.algorithm_type",
    );
  } else if (loss !== "ppo" && !build.has(path)) {
    build.put(`${ACTOR}.policy_loss.loss_mode`, loss, {
      kind: "computed",
      from: ["algorithm.algorithm_type"],
    });
  }
  if (loss === "gspo" && build.peek("algorithm.loss_agg_mode") !== "seq-mean-token-mean") {
    build.check(
      "verl's gspo averages within a sequence first (seq-mean-token-mean) whatever loss_agg_mode says, except in 0.9.1, which follows it; Trinity's default is token-mean",
    );
  }
  putClip(build, loss);
}

const CLIP = "algorithm.policy_loss_fn_args.clip_range";

/** verl reads clip_ratio only where clip_ratio_low and _high are null, which they are not by default. */
function putClip(build: Build, loss: string): void {
  const [ratio, low, high] = ["", "_low", "_high"].map((side) => build.peek(CLIP + side));
  const usual = CLIP_DEFAULTS[loss];
  if (ratio === undefined && low === undefined && high === undefined && usual === undefined) return;
  for (const [i, bound] of [low, high].entries()) {
    const to = `${ACTOR}.clip_ratio_${["low", "high"][i]}`;
    if (bound !== undefined) continue;
    if (ratio !== undefined) build.put(to, ratio, { kind: "split", from: [CLIP] });
    else if (usual) build.put(to, usual[i]!, { kind: "computed", message: `the default of Trinity's ${loss}` });
  }
}

/** The KL default of types that verl only runs with an estimator from the profile. */
function usualOfOthers(type: string): string {
  return ["asymre", "sppo", "on_policy_distill", "jsd", "sft", "raft"].includes(type) ? "none" : "k2";
}

function putKl(build: Build, { fn, use, kind }: { fn: string; use: string; kind: string }): void {
  const written = build.take(fn);
  // Trinity's algorithms have a KL loss when none is named.
  const type = String(build.peek("algorithm.algorithm_type") ?? "ppo");
  const usual = fn === "algorithm.kl_loss_fn" ? (ALGORITHM_TYPES[type]?.kl ?? usualOfOthers(type)) : undefined;
  const name = written ?? usual;
  if (name === undefined) return;
  const from = [written === undefined ? "algorithm.algorithm_type" : fn];
  if (name === "none") {
    build.put(use, false, { kind: "split", from });
    return;
  }
  const verl = KL_TO_VERL[String(name)];
  if (verl === undefined) {
    build.fail(
      `Cannot convert ${fn}=${name}: verl has no such estimator. Choose one of ${Object.keys(KL_TO_VERL).join(", ")}, none.`,
      fn,
    );
    return;
  }
  build.put(use, true, { kind: "split", from });
  build.put(kind, verl.name, { kind: "split", from, message: verl.loss });
  if (verl.loss) build.check(`${fn}=${name} is not exact in verl: ${verl.loss}`, fn);
}

function putRow(build: Build, row: SettingPair, interval: number): void {
  if (!build.has(row.trinity) || build.used.has(row.trinity)) return;
  const value = build.take(row.trinity) as YamlValue;
  const from = [row.trinity];
  if (row.trinity === "algorithm.repeat_times" && value === 1) return;
  if (row.isCadence) {
    putCadence(build, row, interval);
    return;
  }
  if (!row.values) {
    build.put(row.verl, value, { kind: "renamed", from, message: row.note });
    return;
  }
  const mapped = row.values.find(([, trinity]) => trinity === value);
  if (mapped) build.put(row.verl, mapped[0], { kind: "renamed", from });
  else if (typeof value === "string" && value.includes("${")) build.put(row.verl, value, { kind: "renamed", from });
  else build.drop(row.trinity, `verl has no counterpart for ${JSON.stringify(value)}`);
}

/** Steps unchanged, or as verl counts them: rounded to the nearest, evaluations rounded down as in Trinity. */
function putCadence(build: Build, row: SettingPair, interval: number): void {
  const value = build.peek(row.trinity) as YamlValue;
  const from = [row.trinity];
  const isScaled = build.options.cadence === "scale" && typeof value === "number" && value > 0;
  if (!isScaled) {
    const isNever = row.verl === "trainer.save_freq" && value === 0;
    build.put(row.verl, isNever ? -1 : value, { kind: "renamed", from });
    return;
  }
  const round = row.verl === "trainer.test_freq" ? Math.floor : Math.round;
  const steps = Math.max(1, round((value as number) / interval));
  build.put(row.verl, steps, { kind: "computed", from, message: `${value} / ${interval}` });
  if (steps * interval !== value) {
    build.check(
      `${row.trinity}=${value} is not a multiple of sync_interval=${interval}. ${row.verl} is rounded to ${steps}.`,
      row.trinity,
    );
  }
}

/** Copied steps occur `sync_interval` times less often than in Trinity. */
function checkCopiedSteps(build: Build, interval: number): void {
  if (interval === 1 || build.options.cadence === "scale") return;
  const copied = [
    "buffer.total_steps",
    "trainer.total_steps",
    "trainer.save_interval",
    "explorer.eval_interval",
  ].filter((path) => Number(build.peek(path)) > 0);
  if (copied.length === 0) return;
  build.check(
    `${copied.join(", ")}: copied, and a step of verl is ${interval} of Trinity's ` +
      `(--cadence scale divides by ${interval})`,
    copied[0],
  );
}

function putModels(build: Build): void {
  const actor = build.peek("model.model_path");
  const needsCritic = build.values.get("algorithm.adv_estimator")?.value === "gae";
  if (needsCritic && actor !== undefined && !build.has("model.critic_model_path")) {
    const message = "Trinity's critic starts from the actor's model, verl's from a default of its own";
    build.put("critic.model.path", actor, { kind: "computed", from: ["model.model_path"], message });
  }
  const at = "explorer.auxiliary_models.0";
  if (!build.has(`${at}.model_path`)) return;
  build.put("reward_model.enable", true, { kind: "split", from: [`${at}.model_path`] });
  build.put("reward_model.model.path", build.take(`${at}.model_path`) as YamlValue, {
    kind: "renamed",
    from: [`${at}.model_path`],
  });
}

function putTrainer(build: Build, interval: number): void {
  const root = build.take("checkpoint_root_dir");
  if (typeof root === "string" && root !== "./checkpoints" && root !== "checkpoints") {
    build.put("trainer.default_local_dir", root + VERL_LOCAL_DIR_TAIL, {
      kind: "renamed",
      from: ["checkpoint_root_dir"],
    });
  }
  const totals = ["trainer.total_steps", "buffer.total_steps"].filter((path) => build.has(path));
  if (totals.length > 0) {
    const steps = totals.map((path) => build.take(path))[0];
    const total = build.options.cadence === "scale" && typeof steps === "number" ? Math.ceil(steps / interval) : steps;
    build.put("trainer.total_training_steps", total as YamlValue, { kind: "merged", from: totals });
  }
  const monitor = build.take("monitor.monitor_type");
  if (monitor !== undefined) {
    build.put("trainer.logger", ["console", monitor], {
      kind: "renamed",
      from: ["monitor.monitor_type"],
      message: "verl prints as well",
    });
  }
  const kept = build.take("trainer.max_checkpoints_to_keep");
  if (kept !== undefined) {
    for (const path of ["trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"]) {
      build.put(path, kept === 0 ? null : kept, { kind: "split", from: ["trainer.max_checkpoints_to_keep"] });
    }
  }
  if (build.peek("mode") === "bench") {
    build.take("mode");
    build.put("trainer.val_only", true, { kind: "renamed", from: ["mode"] });
  }
  const length = "explorer.rollout_model.max_model_len";
  if (build.has(length)) {
    build.put(`${ROLLOUT}.max_model_len`, build.take(length) as YamlValue, { kind: "renamed", from: [length] });
  }
  const engine = build.take("explorer.rollout_model.engine_type");
  if (engine !== undefined)
    build.put(`${ROLLOUT}.name`, engine, { kind: "renamed", from: ["explorer.rollout_model.engine_type"] });
}

const CONFIG = "trainer.trainer_config.";

function putRest(build: Build): void {
  for (const [path, { value }] of build.rest()) {
    if (path.startsWith(CONFIG)) {
      build.take(path);
      const verl = path.slice(CONFIG.length).replace(/^critic\.fsdp\./, "critic.model.fsdp_config.");
      if (FILLED_IN.test(verl)) {
        build.drop(path, "Trinity fills it in itself, whatever is written here");
        continue;
      }
      build.put(verl, value, { kind: "exact", from: [path] });
    } else build.drop(path, whyDropped(path));
  }
}

function whyDropped(path: string): string {
  if (path.endsWith("engine_num") || path.startsWith("explorer.auxiliary_models.")) {
    return "verl shares its GPUs between sampler and trainer";
  }
  if (path.startsWith("synchronizer.")) return "verl is always in step (sync_style fixed, sync_offset 0)";
  if (path.startsWith("buffer.")) return "verl has no experience buffer";
  if (path.startsWith("explorer.")) return "verl has no separate explorer";
  return "verl has no counterpart";
}
