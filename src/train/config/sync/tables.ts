/** One setting, two paths: what the tables of fields say about a setting's names, and the relations that are more than a name. */
import type { FieldTable } from "../fields/field.ts";
import { LOCAL_FIELDS } from "../fields/local.ts";
import { RLLM_FIELDS } from "../fields/rllm.ts";
import { TINKER_FIELDS } from "../fields/tinker.ts";

export interface SharedKey {
  /** The backend's own path. */
  readonly native: string;
  readonly rllm: string;
  /** The backend's default is no opinion: only a value that the user set is mirrored to the portable side. */
  readonly onlyExplicit?: boolean;
}

const column = (fields: FieldTable, name: "same" | "verl") =>
  Object.entries(fields).flatMap(([path, field]) =>
    field[name] === undefined ? [] : [{ path, other: field[name], onlyExplicit: field.onlyExplicit ?? false }],
  );

/**
 * A backend's own names, lengths and batch sizes first: `rllm.rollout.train.max_tokens` refers to them by interpolation
 * and must see the value that won.
 */
function ownNames(fields: FieldTable): readonly SharedKey[] {
  const rows = column(fields, "same").map(({ path, other, ...row }) => ({
    native: path,
    rllm: other,
    ...row,
  }));
  const isData = ({ native }: SharedKey) => native.startsWith("data.");
  return [...rows.filter(isData), ...rows.filter((row) => !isData(row))];
}

export const LOCAL_SHARED = ownNames(LOCAL_FIELDS);
export const TINKER_SHARED = ownNames(TINKER_FIELDS);
/** verl's 32 names; the portable table has lengths and batch sizes first. */
export const VERL_SHARED: readonly SharedKey[] = column(RLLM_FIELDS, "verl").map(({ path, other }) => ({
  native: other,
  rllm: path,
}));

export const VERL_CLIP = {
  rllm: "rllm.algorithm.eps_clip",
  rllmHigh: "rllm.algorithm.eps_clip_high",
  ratio: "actor_rollout_ref.actor.clip_ratio",
  low: "actor_rollout_ref.actor.clip_ratio_low",
  high: "actor_rollout_ref.actor.clip_ratio_high",
} as const;

export const VERL_STEPS = {
  native: "trainer.total_training_steps",
  rllm: "rllm.trainer.total_batches",
} as const;
export const VERL_SCHEDULE_RLLM = "rllm.algorithm.lr_schedule";
/** The schedule's name differs between verl's optimisers: the first that exists is the one. */
export const VERL_SCHEDULES = ["lr_scheduler_type", "lr_decay_style", "decay_type"].map(
  (name) => `actor_rollout_ref.actor.optim.${name}`,
);

/** The portable side of everything that verl shares, and what follows from it by interpolation. */
export const VERL_SHARED_RLLM: readonly string[] = [
  ...VERL_SHARED.map(({ rllm }) => rllm),
  VERL_CLIP.rllm,
  VERL_STEPS.rllm,
  VERL_SCHEDULE_RLLM,
  "rllm.rollout.val.max_tokens",
];

const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";

/** Settings of verl's whose effect another setting of the local backend has, in other units. */
export const LOCAL_INSTEAD: Readonly<Record<string, string>> = {
  [`${ACTOR}.ppo_micro_batch_size_per_gpu`]: "training.max_tokens_per_pass, in tokens: rows x the longest sequence",
  [`${ACTOR}.ppo_micro_batch_size`]: "training.max_tokens_per_pass, in tokens: rows x the longest sequence",
  [`${ACTOR}.use_dynamic_bsz`]: "training.max_tokens_per_pass: passes are always filled by tokens",
  [`${ROLLOUT}.dtype`]: "model.dtype, which training and sampling share",
  [`${ROLLOUT}.gpu_memory_utilization`]: "memory_budget_bytes, which training and sampling share",
};
