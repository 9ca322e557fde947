/** The rules of verl's synchronisation that do more than mirror a value, in the published order. */

import { asVerl, VERL_OF_BACKENDS } from "../fields/verl_names.ts";
import { LEVEL } from "../yaml/layer.ts";
import { equalValues, getAt, type YamlValue } from "../yaml/tree.ts";
import { type Draft, syncRow, syncShared, warnNative } from "./sync.ts";
import { VERL_CLIP, VERL_SCHEDULE_RLLM, VERL_SCHEDULES, VERL_SHARED, VERL_STEPS } from "./tables.ts";

const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";
const DEPRECATED = { nativeIsDeprecated: true, onlyTypedMakes: true };

export function syncVerl(draft: Draft): void {
  followLocalNames(draft);
  syncShared(draft, VERL_SHARED, DEPRECATED);
  syncSchedule(draft);
  syncTotalSteps(draft);
  deriveKlLoss(draft);
  followRouterReplay(draft);
  syncClip(draft);
  freezeGreedy(draft, { doSample: `${ROLLOUT}.do_sample`, native: ROLLOUT, rllm: "rllm.rollout.train" });
  freezeGreedy(draft, {
    doSample: `${ROLLOUT}.val_kwargs.do_sample`,
    native: `${ROLLOUT}.val_kwargs`,
    rllm: "rllm.rollout.val",
  });
  switchEngines(draft);
  splitBatch(draft);
}

/**
 * Applies the settings that a file for the local backend has under its own names. verl's name wins where both are set
 * at one level.
 */
function followLocalNames(draft: Draft): void {
  for (const { native, verl: published } of VERL_OF_BACKENDS) {
    const verl = VERL_SCHEDULES.includes(published) ? (scheduleOf(draft) ?? published) : published;
    const value = draft.isExplicit(native) ? draft.read(native) : undefined;
    const theirs = value === undefined ? undefined : asVerl(native, value);
    if (theirs === undefined || draft.read(verl) === undefined) continue;
    if (draft.isExplicit(verl) && draft.level(verl) >= draft.level(native)) {
      if (!equalValues(theirs, draft.read(verl)))
        draft.warn(`${native} conflicts with ${verl}; using ${verl}=${draft.read(verl)}, not ${theirs}`, native);
    } else draft.move(theirs, native, verl);
  }
}

/** verl counts the prompts of a mini-batch, the local backend the mini-batches of a step. */
function splitBatch(draft: Draft): void {
  const [native, verlPath] = ["training.num_minibatches", `${ACTOR}.ppo_mini_batch_size`];
  const [count, batch] = [draft.read(native), draft.read("data.train_batch_size")];
  if (!draft.isExplicit(native) || draft.isExplicit(verlPath) || !isNumber(count) || !isNumber(batch)) return;
  draft.mirror(Math.ceil(batch / count), native, verlPath);
}

/** Returns where the engine's optimiser has its schedule. */
function scheduleOf({ tree }: Draft): string | undefined {
  return VERL_SCHEDULES.find((path) => getAt(tree, path) !== undefined);
}

function syncSchedule(draft: Draft): void {
  const native = scheduleOf(draft);
  if (native) syncRow(draft, { native, rllm: VERL_SCHEDULE_RLLM }, DEPRECATED);
}

/** "No limit" is null or 0 or below: rLLM's default is -1, and verl takes null. The side that decides keeps its value. */
function syncTotalSteps(draft: Draft): void {
  const { native, rllm } = VERL_STEPS;
  const asVerl = (steps: YamlValue | undefined) => (isNumber(steps) && steps > 0 ? steps : null);
  if (draft.isExplicit(native)) warnNative(draft, VERL_STEPS, { ...DEPRECATED, asNative: asVerl });
  if (draft.isExplicit(native) && draft.level(native) > draft.level(rllm)) {
    draft.mirror(draft.read(native) ?? -1, native, rllm);
  } else draft.mirror(asVerl(draft.read(rllm)), rllm, native);
}

function deriveKlLoss(draft: Draft): void {
  const [use, beta] = [`${ACTOR}.use_kl_loss`, draft.read("rllm.algorithm.kl_beta")];
  if (!draft.isExplicit(use)) {
    draft.mirror(isNumber(beta) && beta > 0, "rllm.algorithm.kl_beta", use);
  } else if (draft.read(use) === true && !(isNumber(beta) && beta > 0)) {
    draft.warn(`${use}=true has no effect because rllm.algorithm.kl_beta is ${beta}. Set rllm.algorithm.kl_beta.`, use);
  }
}

/** verl's engines read the mode in their own section; rLLM writes it where only older versions of verl look. */
function followRouterReplay(draft: Draft): void {
  const rllm = "rllm.algorithm.router_replay";
  const mode = draft.read(rllm);
  if (mode === "R3") draft.mirror(true, rllm, `${ROLLOUT}.enable_rollout_routing_replay`);
  const verlPath = `${ACTOR}.${draft.read(`${ACTOR}.strategy`)}.router_replay.mode`;
  if (mode != null && mode !== "disabled" && draft.read(verlPath) !== undefined && !draft.isExplicit(verlPath))
    draft.mirror(mode, rllm, verlPath);
}

/**
 * `eps_clip` sets both lower bounds; of verl's own, `clip_ratio_low` wins over `clip_ratio`, and the other keeps its
 * value. The upper bound is `eps_clip_high`, else `eps_clip`.
 */
function syncClip(draft: Draft): void {
  const { rllm, rllmHigh, ratio, low, high } = VERL_CLIP;
  const explicit = [rllm, low, ratio].filter((path) => draft.isExplicit(path));
  const top = Math.max(...explicit.map((path) => draft.level(path)), LEVEL.base);
  const driver = explicit.find((path) => draft.level(path) === top) ?? rllm;
  for (const native of [ratio, low]) {
    if (draft.isExplicit(native)) warnNative(draft, { native, rllm }, DEPRECATED);
  }
  const value = draft.read(driver) ?? null;
  if (driver === rllm) {
    draft.mirror(value, rllm, ratio);
    draft.mirror(value, rllm, low);
  } else {
    draft.mirror(value, driver, rllm);
    const other = driver === low ? ratio : low;
    const kept = draft.read(other);
    if (driver === ratio && kept !== null && kept !== value) {
      draft.warn(`${ratio}=${value} does not move ${low}, which stays ${kept}. Use ${rllm}=${value} for both.`, ratio);
    }
  }
  const upper = draft.read(rllmHigh) ?? null;
  if (upper !== null || value !== null) draft.mirror(upper ?? value, upper === null ? rllm : rllmHigh, high);
}

/** Taking the most likely token is temperature 0 on both sides. */
function freezeGreedy(draft: Draft, at: { doSample: string; native: string; rllm: string }): void {
  if (draft.read(at.doSample) !== false) return;
  for (const side of [at.native, at.rllm]) {
    const path = `${side}.temperature`;
    const value = draft.read(path);
    if (draft.isTyped(path) && value !== 0) {
      draft.warn(`${path}=${value} has no effect because ${at.doSample}=false. Using temperature 0.`, path);
    }
    draft.mirror(0, at.doSample, path);
  }
}

/** Asynchronous training needs its own GPUs for rollouts and weights sent over NCCL; otherwise they are shared. */
function switchEngines(draft: Draft): void {
  const cause = "rllm.async_training.enable";
  const isAsync = draft.read(cause) === true;
  const engine = `${ROLLOUT}.checkpoint_engine.backend`;
  const isNaive = draft.read(engine) === "naive";
  draft.mirror(!isAsync, cause, "actor_rollout_ref.hybrid_engine");
  if (isAsync && isNaive) draft.mirror("nccl", cause, engine);
  if (!isAsync) draft.mirror("naive", cause, engine);
  if (!isAsync) return;
  const batch = "rllm.async_training.mini_batch_size";
  const partial = "rllm.async_training.partial_rollout";
  // base.yaml has both.
  draft.mirror(draft.read(batch) as YamlValue, batch, `${ACTOR}.ppo_mini_batch_size`);
  draft.mirror(draft.read(partial) as YamlValue, partial, "async_training.partial_rollout");
}

function isNumber(value: unknown): value is number {
  return typeof value === "number";
}
