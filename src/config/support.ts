/**
 * What each backend does with each setting. One row per setting or section (`section.*`); the longest pattern that fits
 * a setting counts. Statuses: `acts` (the loop or the backend here reads it), `forwarded` (handed to the other
 * system, which reads it), `logging` (only printed and stored), `refused` (a value other than the default is an
 * error), `-` (the backend has no such setting).
 */
import { BACKEND_FIELDS, type BackendName } from "./schema.ts";

export const TARGETS = ["local", "tinker", "verl", "trinity"] as const;
export type Target = (typeof TARGETS)[number];
/** The backends that this version can train with; a backend that is built is added here. */
export const TRAINS: readonly Target[] = ["local", "tinker"];

export type Status = "acts" | "forwarded" | "logging" | "refused" | "-";

export interface Support {
  readonly pattern: string;
  readonly status: Readonly<Record<Target, Status>>;
  /** Why, for people. */
  readonly reason: string;
}

const NO_REMOTE = "remote sandboxes are a Python service; rollouts run in this process";
const FUNCTIONS = "rollouts are functions of this process: built in, or registered with --import";
const NO_SDK = "no proxy is started: agents get a client from the loop; traces are served by grpu serve";
const OPTIMISER = "Trinity's optimiser settings are algorithm.optimizer, reached through verl's names";

/** Columns: local, tinker, verl, trinity. */
const ROWS: readonly (readonly [pattern: string, columns: string, reason: string])[] = [
  ["rllm.backend", "acts acts acts -", "names the backend that runs"],

  [
    "rllm.data.train_batch_size",
    "acts acts forwarded forwarded",
    "prompts per step of the loop; Trinity: batch_size x sync_interval",
  ],
  [
    "rllm.data.val_batch_size",
    "acts acts acts refused",
    "validation batches are the loop's; Trinity has one batch size",
  ],
  ["rllm.data.max_prompt_length", "acts acts forwarded forwarded", "longer prompts end their trajectory"],
  ["rllm.data.max_response_length", "acts acts forwarded forwarded", "bounds every rollout"],
  ["rllm.data.seed", "acts acts acts refused", "order of the rows; Trinity seeds each taskset"],

  ["rllm.agent.*", "acts acts acts refused", FUNCTIONS],
  [
    "rllm.agent.engine_args",
    "refused refused refused refused",
    "the engine is this loop, set by rllm.workflow",
  ],
  [
    "rllm.agent.trajectory_timeout",
    "acts acts acts refused",
    "bounds a rollout's time; Trinity has explorer.max_timeout",
  ],
  ["rllm.agent.overlong_filter", "acts acts acts refused", "masks rows in the loop"],
  [
    "rllm.env.*",
    "acts acts acts refused",
    "the game that is played in turns, where it is not task.name's own",
  ],
  ["rllm.workflow.workflow_args.gamma", "acts acts acts refused", "discounts step rewards in the loop"],
  [
    "rllm.workflow.workflow_args.reward_bonus_coeff",
    "acts acts acts refused",
    "shapes step rewards in the loop",
  ],
  ["rllm.workflow.*", "acts acts acts refused", FUNCTIONS],
  ["rllm.workflow.warm_queue_size", "refused refused refused refused", NO_REMOTE],
  [
    "rllm.workflow.n_parallel_tasks",
    "acts acts acts refused",
    "rollouts at the same time; Trinity has runner_per_model",
  ],
  [
    "rllm.workflow.retry_limit",
    "acts acts acts refused",
    "attempts per rollout; Trinity has explorer.max_retry_times",
  ],
  [
    "rllm.workflow.raise_on_error",
    "acts acts acts refused",
    "what the loop does with a rollout that fails for good",
  ],
  [
    "rllm.workflow.workflow_args.timeout",
    "acts acts acts refused",
    "bounds a rollout's time; Trinity has max_timeout",
  ],

  ["rllm.rollout.n", "acts acts forwarded forwarded", "group size"],
  ["rllm.rollout.n_val", "acts acts forwarded forwarded", "rollouts per validation prompt"],
  ["rllm.rollout.train.*", "acts acts forwarded forwarded", "sampling in training"],
  ["rllm.rollout.val.*", "acts acts forwarded forwarded", "sampling in validation"],
  [
    "rllm.rollout.val.max_tokens",
    "acts acts acts refused",
    "verl and Trinity bound validation like training; here the loop cuts",
  ],

  ["rllm.trainer.total_epochs", "acts acts forwarded forwarded", "length of the run"],
  [
    "rllm.trainer.total_batches",
    "acts acts forwarded forwarded",
    "length of the run; Trinity counts steps of batch_size prompts, sync_interval of them for one here",
  ],
  ["rllm.trainer.logger", "acts acts forwarded forwarded", "which logs are written"],
  ["rllm.trainer.project_name", "logging logging logging logging", "names the run in logs and paths"],
  ["rllm.trainer.experiment_name", "logging logging logging logging", "names the run in logs and paths"],
  [
    "rllm.trainer.test_freq",
    "acts acts forwarded forwarded",
    "steps between validations; Trinity counts sync_interval steps for one here",
  ],
  [
    "rllm.trainer.save_freq",
    "acts acts forwarded forwarded",
    "steps between checkpoints; Trinity counts sync_interval steps for one here",
  ],
  ["rllm.trainer.val_before_train", "acts acts forwarded forwarded", "validation before the first step"],
  ["rllm.trainer.val_only", "acts acts forwarded forwarded", "validation alone"],

  ["rllm.algorithm.adv_estimator", "acts acts forwarded forwarded", "which estimator computes advantages"],
  ["rllm.algorithm.norm_adv_by_std_in_grpo", "acts acts forwarded refused", "Trinity's grpo always divides"],
  [
    "rllm.algorithm.traj_group_adv_estimator_map",
    "acts acts acts refused",
    "read where advantages are computed: in the loop",
  ],
  [
    "rllm.algorithm.traj_grouping_hook",
    "acts acts acts refused",
    "read where trajectories are grouped: in the loop",
  ],
  [
    "rllm.algorithm.estimator_args",
    "acts acts acts refused",
    "read where advantages are computed: in the loop",
  ],
  ["rllm.algorithm.loss_args", "acts acts refused refused", "settings of the losses here"],
  [
    "rllm.algorithm.use_rllm",
    "refused refused refused refused",
    "deprecated: advantages always come from this loop",
  ],
  [
    "rllm.algorithm.use_precomputed_advantage",
    "acts acts acts refused",
    "read where advantages are computed: in the loop",
  ],
  ["rllm.algorithm.loss_fn", "acts acts forwarded forwarded", "which loss is minimised"],
  ["rllm.algorithm.loss_agg_mode", "acts acts forwarded forwarded", "how token losses are summed"],
  ["rllm.algorithm.lr_schedule", "acts acts forwarded forwarded", OPTIMISER],
  ["rllm.algorithm.warmup_steps", "acts acts forwarded forwarded", OPTIMISER],
  ["rllm.algorithm.warmup_steps_ratio", "acts acts forwarded forwarded", OPTIMISER],
  ["rllm.algorithm.kl_beta", "acts acts forwarded forwarded", "KL to the model before training, in the loss"],
  [
    "rllm.algorithm.eps_clip",
    "acts acts forwarded forwarded",
    "on Tinker as the thresholds of ppo and cispo",
  ],
  [
    "rllm.algorithm.eps_clip_high",
    "acts acts forwarded forwarded",
    "on Tinker as the thresholds of ppo and cispo",
  ],
  [
    "rllm.algorithm.router_replay",
    "refused refused forwarded refused",
    "models here have no experts; Tinker does not report routing",
  ],
  [
    "rllm.algorithm.rollout_correction.*",
    "acts acts forwarded forwarded",
    "weights by the gap of sampler and trainer",
  ],

  ["rllm.stepwise_advantage.*", "acts acts acts refused", "spreads advantages over steps in the loop"],
  ["rllm.disable_thinking", "acts acts acts refused", "passes enable_thinking=false to the chat template"],
  ["rllm.accumulate_reasoning", "acts acts acts refused", "keeps reasoning in the prompts of later turns"],
  ["rllm.mask_truncated_samples", "acts acts acts refused", "masks rows in the loop"],
  ["rllm.filter_token_mismatch", "acts acts acts refused", "leaves trajectories out in the loop"],
  ["rllm.compact_filtering.*", "acts acts acts refused", "masks trajectories in the loop"],
  ["rllm.rejection_sample.*", "acts acts acts refused", "filters groups in the loop"],
  ["rllm.transform.*", "acts acts acts refused", "groups trajectories in the loop"],

  ["rllm.sdk.*", "refused refused refused refused", NO_SDK],
  ["rllm.gateway.*", "refused refused refused refused", NO_SDK],
  ["rllm.remote_runtime.*", "refused refused refused refused", NO_REMOTE],
  ["rllm.async_training.*", "acts acts forwarded refused", "the loop generates while it trains"],
  [
    "rllm.async_training.fwd_bwd_group_size",
    "refused refused forwarded refused",
    "a batch is worked through in passes that fit the device",
  ],
  [
    "rllm.async_training.trajectory_group_offload_dir",
    "refused refused forwarded refused",
    "groups are made when a batch is taken: what waits are episodes, in episode_offload_dir",
  ],
  ["rllm.episode_logging.*", "acts acts acts refused", "the loop writes the episodes"],

  ["device", "acts - - -", "picks the device"],
  ["memory_budget_bytes", "acts - - -", "bounds the buffer pool"],
  ["pipeline.*", "acts acts - -", "the loop's own stages"],
  ["task.*", "acts acts - -", "makes tasks and rewards"],
  ["model.*", "acts acts - -", "the model that is trained"],
  ["training.*", "acts acts - -", "optimiser, schedule, checkpoints"],
  ["training.resume_from_tinker_id", "- acts - -", "checkpoint of the service"],
  ["validation.*", "forwarded forwarded - -", "becomes rllm.rollout.n_val"],
  ["training.group_size", "forwarded forwarded - -", "becomes rllm.rollout.n"],
  ["training.lr_schedule", "forwarded forwarded - -", "the same setting as rllm.algorithm.lr_schedule"],
  [
    "training.warmup_steps_ratio",
    "forwarded forwarded - -",
    "the same setting as rllm.algorithm.warmup_steps_ratio",
  ],
  ["warmup.*", "acts - - -", "supervised steps before the run"],
  ["data.train_files", "acts acts forwarded -", "training rows"],
  ["data.val_files", "acts acts forwarded -", "validation rows"],
  ["data.prompt_key", "acts acts forwarded -", "which field is the prompt"],
  ["data.prompt_type", "acts acts - -", "whether texts become messages"],
  ["data.system_prompt", "acts acts - -", "the first message"],
  [
    "data.*",
    "forwarded forwarded forwarded -",
    "batch sizes and lengths are rllm.data's; the rest goes to verl",
  ],
  ["tinker_base_url", "- acts - -", "where the service is"],
  ["tinker_wire", "- acts - -", "how the service is spoken to"],
  ["tinker_sdk_version", "- acts - -", "what the service takes the client for"],
  ["fuse_forward_backward_and_optim_step", "- acts - -", "order of the calls"],
  ["sampling.*", "- forwarded - -", "the same settings as rllm.rollout.train and .val"],
  ["rollout_engine.accumulate_reasoning", "- forwarded - -", "the same setting as rllm.accumulate_reasoning"],
  ["rollout_engine.disable_thinking", "- forwarded - -", "the same setting as rllm.disable_thinking"],
  ["rollout_engine.*", "- refused - -", "prompts are rendered by the model's own chat template"],
  ["workflow.*", "- forwarded - -", "the same settings as rllm.workflow"],
  ["agent.*", "- forwarded - -", "the same settings as rllm.agent"],

  ["*", "- - forwarded -", "part of verl's own tree, handed to verl as it is"],
];

export const SUPPORT: readonly Support[] = ROWS.map(([pattern, columns, reason]) => {
  const [local, tinker, verl, trinity] = columns.split(" ") as Status[];
  return { pattern, status: { local, tinker, verl, trinity }, reason };
});

/** The row of a setting: the longest pattern that fits. */
export function supportOf(path: string): Support {
  let best = SUPPORT[SUPPORT.length - 1];
  for (const row of SUPPORT) {
    if (fits(row.pattern, path) && row.pattern.length >= best.pattern.length) best = row;
  }
  return best;
}

function fits(pattern: string, path: string): boolean {
  if (pattern === path || pattern === "*") return true;
  const isSection = pattern.endsWith(".*");
  if (isSection) return path.startsWith(pattern.slice(0, -1));
  return path.startsWith(`${pattern}.`);
}

/** The status of a setting on a target, `-` where the target has no such setting. */
export function statusOf(path: string, target: Target): Status {
  if (target !== "trinity" && !path.startsWith("rllm.") && target !== "verl") {
    if (!belongs(path, target)) return "-";
  }
  return supportOf(path).status[target];
}

function belongs(path: string, backend: BackendName): boolean {
  return Object.keys(BACKEND_FIELDS[backend]).some((known) => path === known || path.startsWith(`${known}.`));
}
