/** The same setting in the other systems. */

import type { FieldTable } from "../../../train/config/fields/field.ts";
import { LOCAL_FIELDS } from "../../../train/config/fields/local.ts";
import { TINKER_FIELDS } from "../../../train/config/fields/tinker.ts";
import { VERL_OF_BACKENDS } from "../../../train/config/fields/verl_names.ts";
import {
  LOCAL_SHARED,
  TINKER_SHARED,
  VERL_CLIP,
  VERL_SCHEDULE_RLLM,
  VERL_SCHEDULES,
  VERL_SHARED,
  VERL_STEPS,
} from "../../../train/config/sync/tables.ts";
import { ROWS, TARGET_ROWS } from "../trinity/rows.ts";

export type Namespace = "rllm" | "local" | "tinker" | "verl" | "trinity";
export type Counterparts = { readonly [System in Namespace]?: string | undefined };

const STEPS_OF_TRINITY = "buffer.total_steps, trainer.total_steps";
/** Settings whose relation is more than a name. */
const COMPUTED: readonly Counterparts[] = [
  {
    rllm: "rllm.data.train_batch_size",
    verl: "data.train_batch_size",
    trinity: "buffer.batch_size x synchronizer.sync_interval",
  },
  { verl: "actor_rollout_ref.actor.ppo_mini_batch_size", trinity: "buffer.batch_size" },
  {
    rllm: "rllm.algorithm.adv_estimator",
    verl: "algorithm.adv_estimator",
    trinity: "algorithm.advantage_fn",
  },
  { verl: "data.train_files", trinity: "buffer.explorer_input.tasksets[].path" },
  { verl: "data.val_files", trinity: "buffer.explorer_input.eval_tasksets[].path" },
  { verl: "data.prompt_key", trinity: "buffer.explorer_input.tasksets[].format.prompt_key" },
  { verl: "algorithm.use_kl_in_reward", trinity: "algorithm.kl_penalty_fn" },
  { verl: "algorithm.kl_penalty", trinity: "algorithm.kl_penalty_fn" },
  { verl: "actor_rollout_ref.actor.use_kl_loss", trinity: "algorithm.kl_loss_fn" },
  { verl: "actor_rollout_ref.actor.kl_loss_type", trinity: "algorithm.kl_loss_fn" },
  {
    rllm: "rllm.rollout.n_val",
    verl: "actor_rollout_ref.rollout.val_kwargs.n",
    trinity: "buffer.explorer_input.eval_tasksets[].repeat_times",
  },
  ...["temperature", "top_p", "top_k"].map((name) => ({
    rllm: `rllm.rollout.val.${name}`,
    verl: `actor_rollout_ref.rollout.val_kwargs.${name}`,
    trinity: `buffer.explorer_input.eval_tasksets[].rollout_args.${name}`,
  })),
  {
    rllm: "rllm.rollout.train.max_tokens",
    verl: "actor_rollout_ref.rollout.response_length",
    trinity: "buffer.explorer_input.tasksets[].rollout_args.max_tokens",
  },
  { rllm: "rllm.trainer.val_only", verl: "trainer.val_only", trinity: "mode" },
  { rllm: VERL_STEPS.rllm, verl: VERL_STEPS.native, trinity: STEPS_OF_TRINITY },
  { rllm: "rllm.trainer.logger", verl: "trainer.logger", trinity: "monitor.monitor_type" },
  { verl: "trainer.default_local_dir", trinity: "checkpoint_root_dir" },
  { verl: "reward_model.model.path", trinity: "explorer.auxiliary_models[].model_path" },
  {
    rllm: VERL_CLIP.rllm,
    verl: `${VERL_CLIP.low}, ${VERL_CLIP.ratio}`,
    trinity: "algorithm.policy_loss_fn_args.clip_range_low, algorithm.policy_loss_fn_args.clip_range",
  },
  { rllm: VERL_SCHEDULE_RLLM, verl: VERL_SCHEDULES[0], trinity: "algorithm.optimizer.lr_scheduler_type" },
];

/** The names of a setting elsewhere, by system; without the system that it is a name of. */
export function counterpartsOf(path: string): Counterparts {
  // A name may hold several: `buffer.total_steps, trainer.total_steps`, `buffer.batch_size x ...`.
  const isIn = (name?: string) => name?.split(/, | x /).includes(path);
  const whole = COMPUTED.find((row) => Object.values(row).includes(path));
  const pair = VERL_OF_BACKENDS.find(({ native, verl }) => native === path || verl === path);
  const computed = whole ?? COMPUTED.find((row) => Object.values(row).some(isIn));
  const rllm = computed?.rllm ?? rllmNameOf(path);
  const verl =
    computed?.verl ??
    (rllm ? VERL_SHARED.find((row) => row.rllm === rllm)?.native : undefined) ??
    verlNameOf(path) ??
    pair?.verl;
  const trinity = computed?.trinity ?? allRows().find((row) => row.verl === (verl ?? path))?.trinity;
  const names: Counterparts = {
    rllm: rllm ?? VERL_SHARED.find((row) => row.native === verl)?.rllm,
    local: LOCAL_SHARED.find((row) => row.rllm === rllm)?.native ?? nameIn(LOCAL_FIELDS, pair?.native),
    tinker: TINKER_SHARED.find((row) => row.rllm === rllm)?.native ?? nameIn(TINKER_FIELDS, pair?.native),
    verl,
    trinity,
  };
  return Object.fromEntries(Object.entries(names).filter(([, name]) => name !== undefined && name !== path));
}

function nameIn(fields: FieldTable, path: string | undefined): string | undefined {
  return path !== undefined && path in fields ? path : undefined;
}

function rllmNameOf(path: string): string | undefined {
  if (path.startsWith("rllm.")) return path;
  const rows = [...VERL_SHARED, ...LOCAL_SHARED, ...TINKER_SHARED, VERL_STEPS];
  const rllmName = rows.find((row) => row.native === path)?.rllm;
  if (rllmName) return rllmName;
  const verl = verlNameOf(path);
  return verl ? VERL_SHARED.find((row) => row.native === verl)?.rllm : undefined;
}

function verlNameOf(path: string): string | undefined {
  return allRows().find((row) => row.trinity === path || row.verl === path)?.verl;
}

function allRows() {
  return [...ROWS, ...TARGET_ROWS.legacy, ...TARGET_ROWS.new];
}
