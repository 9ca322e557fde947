/** Settings of the local backend that verl has under another name, with the same values. */
import type { YamlValue } from "../yaml/tree.ts";
import type { Field, FieldTable } from "./field.ts";
import { LOCAL_FIELDS } from "./local.ts";

const ACTOR = "actor_rollout_ref.actor";
const MODEL = "actor_rollout_ref.model";
const ROLLOUT = "actor_rollout_ref.rollout";

export interface VerlName {
  readonly native: string;
  readonly verl: string;
}

export const VERL_OF_BACKENDS: readonly VerlName[] = [
  { native: "model.name", verl: `${MODEL}.path` },
  { native: "model.lora_rank", verl: `${MODEL}.lora_rank` },
  { native: "model.lora_alpha", verl: `${MODEL}.lora_alpha` },
  { native: "training.learning_rate", verl: `${ACTOR}.optim.lr` },
  { native: "training.weight_decay", verl: `${ACTOR}.optim.weight_decay` },
  { native: "training.grad_clip_norm", verl: `${ACTOR}.optim.clip_grad` },
  { native: "training.group_size", verl: `${ROLLOUT}.n` },
  { native: "validation.group_size", verl: `${ROLLOUT}.val_kwargs.n` },
  { native: "training.lr_schedule", verl: `${ACTOR}.optim.lr_scheduler_type` },
  { native: "training.warmup_steps_ratio", verl: `${ACTOR}.optim.lr_warmup_steps_ratio` },
  { native: "training.max_tokens_per_pass", verl: `${ACTOR}.ppo_max_token_len_per_gpu` },
  { native: "training.gradient_checkpointing", verl: `${MODEL}.enable_gradient_checkpointing` },
  { native: "rollout.max_num_seqs", verl: `${ROLLOUT}.max_num_seqs` },
  { native: "rollout.max_num_batched_tokens", verl: `${ROLLOUT}.max_num_batched_tokens` },
  { native: "training.resume_mode", verl: "trainer.resume_mode" },
  { native: "training.resume_from_path", verl: "trainer.resume_from_path" },
];

/** Their rows on the verl backend, so that one file serves both: null, and absent from a composed configuration, unless set. */
export const NAMES_OF_LOCAL: FieldTable = Object.fromEntries(
  VERL_OF_BACKENDS.map(({ native, verl }) => {
    const { same: _, loop: __, note: ___, ...row } = (LOCAL_FIELDS as FieldTable)[native] as Field;
    const field: Field = { ...row, default: null, nullable: true, optional: true, on: "forwarded", why: `as ${verl}` };
    return [native, field];
  }),
);

/**
 * Returns verl's value for a value of the local backend; undefined where the value leaves the choice to the backend. A
 * largest norm of 0 is no clipping here, and would be gradients of 0 in verl's FSDP engine.
 */
export function asVerl(native: string, value: YamlValue): YamlValue | undefined {
  if (value === null || (native === "training.gradient_checkpointing" && value === "auto")) return undefined;
  if (native === "training.gradient_checkpointing") return value === "true" || value === true;
  if (native === "training.grad_clip_norm" && value === 0) return Number.POSITIVE_INFINITY;
  return value;
}
