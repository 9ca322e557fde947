/** Converts between rLLM's settings and verl's, both ways. Settings native to verl keep their names. */

import { ownAggregation } from "../../engine/algorithm/loss/losses.ts";
import { LOCAL_FIELDS } from "../../train/config/fields/local.ts";
import { isOlderVerl, movedInVerl } from "../../train/config/fields/rename.ts";
import { reasonOn } from "../../train/config/fields/support.ts";
import { TINKER_FIELDS } from "../../train/config/fields/tinker.ts";
import { asVerl, VERL_OF_BACKENDS } from "../../train/config/fields/verl_names.ts";
import {
  VERL_CLIP,
  VERL_SCHEDULE_RLLM,
  VERL_SCHEDULES,
  VERL_SHARED,
  VERL_STEPS,
} from "../../train/config/sync/tables.ts";
import type { YamlValue } from "../../train/config/yaml/tree.ts";
import { Build } from "./build.ts";
import type { Converted, ConvertedSource, ConvertOptions } from "./contract.ts";
import { pairsWithRllm, settleDefaults } from "./defaults.ts";

const USE_KL = "actor_rollout_ref.actor.use_kl_loss";
const KL_BETA = "rllm.algorithm.kl_beta";
const ACTOR = "actor_rollout_ref.actor";
const LOSS_MODE = `${ACTOR}.policy_loss.loss_mode`;
const AGGREGATION = `${ACTOR}.loss_agg_mode`;
const OPTIM = `${ACTOR}.optim`;

export function rllmToVerl(source: ConvertedSource, options: ConvertOptions = {}): Converted {
  const build = new Build(source, options);
  for (const { native, rllm } of VERL_SHARED) move(build, rllm, native);
  putPasses(build);
  for (const { native, verl } of VERL_OF_BACKENDS) move(build, native, verl, (value) => asVerl(native, value) ?? value);
  move(build, VERL_SCHEDULE_RLLM, VERL_SCHEDULES[0]!);
  putTraining(build);
  const beta = build.peek(KL_BETA);
  if (typeof beta === "number" && !build.has(USE_KL)) {
    build.put(USE_KL, beta > 0, { kind: "split", from: [KL_BETA], message: "on when kl_beta is above 0" });
  }
  putClip(build);
  putAggregation(build);
  const steps = build.take(VERL_STEPS.rllm);
  if (steps !== undefined) {
    const limit = typeof steps === "number" && steps <= 0 ? null : steps;
    build.put(VERL_STEPS.native, limit, { kind: "renamed", from: [VERL_STEPS.rllm] });
  }
  build.take("rllm.backend");
  for (const [path, { value }] of build.rest()) {
    if (path.startsWith("rllm.")) build.drop(path, `verl has no counterpart: ${reasonOn(path, "verl")}`);
    else if (isBackendSetting(path)) build.drop(path, "verl has no counterpart");
    else put(build, path, value);
  }
  settleDefaults(build, pairsWithRllm("rllm", build.options.verlDefaults));
  build.applyProfile();
  return build;
}

/** A setting of the local or tinker backend that verl does not share. */
function isBackendSetting(path: string): boolean {
  const tables = [LOCAL_FIELDS, TINKER_FIELDS];
  const isOurs = tables.some((table) => Object.keys(table).some((key) => path === key || path.startsWith(`${key}.`)));
  return isOurs && !path.startsWith("data.");
}

/** Adam's two decays are a list in verl, minibatches a size. */
function putTraining(build: Build): void {
  const [beta1, beta2] = [build.take("training.beta1"), build.take("training.beta2")];
  if (beta1 !== undefined || beta2 !== undefined) {
    const from = ["training.beta1", "training.beta2"].filter((path) => build.has(path));
    build.put(`${OPTIM}.betas`, [beta1 ?? 0.9, beta2 ?? 0.95], { kind: "merged", from });
  }
  const [count, batch] = [build.peek("training.num_minibatches"), build.values.get("data.train_batch_size")?.value];
  if (typeof count !== "number" || typeof batch !== "number" || batch % count !== 0) return;
  build.take("training.num_minibatches");
  build.put("actor_rollout_ref.actor.ppo_mini_batch_size", batch / count, {
    kind: "computed",
    from: ["training.num_minibatches"],
    message: `${batch} prompts / ${count}`,
  });
}

/**
 * Sets the passes. A pass size that is chosen by what fits has no counterpart; a pass that is filled by tokens is a
 * mode of verl's.
 */
function putPasses(build: Build): void {
  const sampled = ["rollout.max_num_seqs", "rollout.max_num_batched_tokens"];
  for (const path of ["training.max_tokens_per_pass", "training.gradient_checkpointing", ...sampled])
    if (build.peek(path) === null || build.peek(path) === "auto") build.drop(path, "verl does not choose by what fits");
  const checkpointing = "training.gradient_checkpointing";
  if (build.has(checkpointing) && !build.used.has(checkpointing))
    build.put("actor_rollout_ref.model.enable_gradient_checkpointing", String(build.take(checkpointing)) === "true", {
      kind: "renamed",
      from: [checkpointing],
    });
  const tokens = build.peek("training.max_tokens_per_pass");
  const isDynamic = `${ACTOR}.use_dynamic_bsz`;
  if (typeof tokens === "number" && !build.has(isDynamic))
    build.put(isDynamic, true, { kind: "split", from: ["training.max_tokens_per_pass"] });
}

function put(build: Build, path: string, value: YamlValue): void {
  build.take(path);
  if (!build.values.has(path)) build.put(path, value, { kind: "exact", from: [path] });
}

/** Copies a setting under its other name. A portable value wins over a native one. */
function move(build: Build, from: string, to: string, written = (value: YamlValue) => value): void {
  if (!build.has(from) || build.used.has(from)) return;
  const value = build.take(from) as YamlValue;
  if (build.values.has(to)) return;
  build.put(to, written(value), { kind: "renamed", from: [from] });
  if (build.has(to)) build.take(to);
}

/** verl 0.9.1 averages gspo by the mode, token-mean unless set; here and in its other versions the loss brings its own. */
function putAggregation(build: Build): void {
  const loss = String(build.peek("rllm.algorithm.loss_fn") ?? build.peek(LOSS_MODE));
  if (loss !== "gspo" || build.values.has(AGGREGATION) || build.has(AGGREGATION)) return;
  build.put(AGGREGATION, ownAggregation(loss)!, {
    kind: "computed",
    message: "verl 0.9.1 would average gspo by token-mean; in other versions it acts on KL and entropy terms alone",
  });
}

/** Notes how verl's versions read the mode of a loss that brings its own. */
function checkAggregation(build: Build): void {
  const loss = String(build.peek(LOSS_MODE));
  const [lossMode, mode] = [ownAggregation(loss), build.peek(AGGREGATION) ?? "token-mean"];
  if (lossMode === undefined || mode === lossMode) return;
  const other = loss === "gspo" ? `verl 0.9.1 averages gspo by loss_agg_mode (${mode}); ` : "";
  build.check(
    `${other}${loss === "gspo" ? "other versions" : "verl"} and the backends here average ${loss} by ${lossMode}, whatever the mode is: set it to ${lossMode}`,
    build.has(AGGREGATION) ? AGGREGATION : LOSS_MODE,
  );
}

function putClip(build: Build): void {
  const { rllm, rllmHigh, ratio, low, high } = VERL_CLIP;
  const clip = build.take(rllm);
  if (clip === undefined) return;
  for (const path of [ratio, low]) {
    build.take(path);
    build.put(path, clip, { kind: "split", from: [rllm] });
  }
  if (!build.has(rllmHigh)) build.put(high, clip, { kind: "split", from: [rllm] });
}

export function verlToRllm(source: ConvertedSource, options: ConvertOptions = {}): Converted {
  const build = new Build(source, options);
  build.put("rllm.backend", "verl", { kind: "constant" });
  const { ratio, low, high, rllm, rllmHigh } = VERL_CLIP;
  const lower = [low, ratio].find((path) => build.has(path));
  if (lower !== undefined) {
    const used = [low, ratio].filter((path) => build.has(path));
    if (build.peek(used[0]!) === build.peek(used[used.length - 1]!)) for (const path of used) build.take(path);
    build.put(rllm, build.take(lower) as YamlValue, { kind: "merged", from: [lower] });
  }
  const upper = build.take(high);
  if (upper !== undefined && upper !== build.values.get(rllm)?.value) {
    build.put(rllmHigh, upper, { kind: "renamed", from: [high] });
  } else if (upper !== undefined) {
    build.notes.push({
      kind: "merged",
      from: high,
      to: rllm,
      value: upper,
      message: "both bounds are the same",
    });
  }
  putKlBeta(build);
  checkAggregation(build);
  for (const { native, rllm: path } of VERL_SHARED) {
    if (build.has(native) && !build.used.has(native)) {
      const value = build.take(native) as YamlValue;
      const isOne = native === "trainer.logger" && typeof value === "string" && !value.includes("${");
      build.put(path, isOne ? [value] : value, { kind: "renamed", from: [native] });
    }
  }
  const schedule = VERL_SCHEDULES.find((path) => build.has(path));
  if (schedule) build.put(VERL_SCHEDULE_RLLM, build.take(schedule) as YamlValue, { kind: "renamed", from: [schedule] });
  const steps = build.take(VERL_STEPS.native);
  if (steps !== undefined) {
    build.put(VERL_STEPS.rllm, steps === null ? -1 : steps, { kind: "renamed", from: [VERL_STEPS.native] });
  }
  for (const [path, { value }] of build.rest()) putNative(build, path, value);
  settleDefaults(build, pairsWithRllm("verl", build.options.verlDefaults));
  build.applyProfile();
  return build;
}

/** A native setting under its name in verl 0.8.0, which rLLM requires. */
function putNative(build: Build, path: string, value: YamlValue): void {
  const impossible = IMPOSSIBLE.find((entry) => entry.path === path && entry.value === value);
  if (impossible) {
    build.take(path);
    if (impossible.isChange) build.fail(`Cannot convert ${path}=${value}: ${impossible.why}.`, path);
    else build.drop(path, impossible.why);
    return;
  }
  const { verlDefaults } = build.options;
  const moved = movedInVerl(path);
  if (moved !== undefined && (verlDefaults.size === 0 || verlDefaults.has(moved))) {
    build.take(path);
    if (!build.has(moved)) build.put(moved, value, { kind: "renamed", from: [path], message: "moved in verl 0.8.0" });
    else build.notes.push({ kind: "dropped", from: path, value, message: `${moved} is set as well` });
  } else if (isOlderVerl(path)) build.drop(path, "verl 0.8.0, which rLLM requires, no longer has it");
  else put(build, path, value);
}

/** Acts of rLLM's loop that differ from verl's trainer. */
const IMPOSSIBLE: readonly {
  readonly path: string;
  readonly value: YamlValue;
  readonly why: string;
  /** Whether the run would learn something else without it. */
  readonly isChange?: boolean;
}[] = [
  {
    path: "algorithm.use_kl_in_reward",
    value: true,
    why: "rLLM computes advantages before verl sees rewards. Use the loss (actor_rollout_ref.actor.use_kl_loss) and set it to false",
    isChange: true,
  },
  ...["reward_model.enable", "reward.reward_model.enable"].map((path) => ({
    path,
    value: true,
    why: "rLLM scores in its workflow: call the reward model there",
  })),
  { path: "actor_rollout_ref.rollout.mode", value: "sync", why: "rLLM always rolls out asynchronously" },
];

/** rLLM has one number for the KL loss: its weight, 0 when it is off. */
function putKlBeta(build: Build): void {
  const coefficient = "actor_rollout_ref.actor.kl_loss_coef";
  const [use, weight] = [build.peek(USE_KL), build.peek(coefficient)];
  if (use === undefined && weight === undefined) return;
  build.take(coefficient);
  if (use === true) {
    build.take(USE_KL);
    build.put(KL_BETA, weight ?? 0.001, { kind: "merged", from: [USE_KL, coefficient] });
    return;
  }
  build.take(USE_KL);
  const message =
    weight !== undefined && weight !== 0
      ? `${coefficient}=${weight} has no effect while ${USE_KL} is false`
      : undefined;
  build.put(KL_BETA, 0, { kind: "merged", from: [USE_KL, coefficient], message });
}
