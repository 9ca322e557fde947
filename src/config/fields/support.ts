/**
 * What each backend does with each setting. One row per setting or section (`section.*`); the longest pattern that fits
 * a setting counts. Statuses: `acts` (the loop or the backend here reads it), `forwarded` (handed to the other
 * system, which reads it), `logging` (only printed and stored), `refused` (a value other than the default is an
 * error), `dropped` (`config convert` leaves it out and says so), `-` (the backend has no such setting).
 * The verl column is the design: this version does not train with verl (`TRAINS`).
 */
import { BACKEND_FIELDS, type BackendName } from "../schema.ts";

export const TARGETS = ["local", "tinker", "verl", "trinity"] as const;
export type Target = (typeof TARGETS)[number];
/** The backends that this version can train with; a backend that is built is added here. */
export const TRAINS: readonly Target[] = ["local", "tinker"];

export type Status = "acts" | "forwarded" | "logging" | "refused" | "dropped" | "-";

export interface Support {
  readonly pattern: string;
  readonly status: Readonly<Record<Target, Status>>;
  /** What it does, or why not, wherever `reasons` says nothing else. */
  readonly reason: string;
  readonly reasons: Reasons;
}

type Reasons = Readonly<Partial<Record<Target, string>>>;
type Row = readonly [pattern: string, columns: string, reason: string, reasons?: Reasons];

const NO_REMOTE = "remote sandboxes are a Python service; rollouts run in this process";
const FUNCTIONS = "rollouts are functions of this process: built in, or registered with --import";
const NO_SDK = "no proxy is started: agents get a client from the loop; traces are served by grpu serve";
const NO_COUNTERPART = "Trinity has no such setting; config convert leaves it out and says so";
const COUNTED = "counted in Trinity's steps, sync_interval of them for one here (config convert --cadence)";
const SCHEDULE: Reasons = { trinity: "as algorithm.optimizer, which has constant and cosine" };
const CLIPPED: Reasons = {
  tinker:
    "sent to Tinker's ppo and cispo as clip_low_threshold and clip_high_threshold; other losses clip here",
  trinity: "as clip_range_low and clip_range_high of algorithm.policy_loss_fn_args",
};
const NEW_BUILDER: Reasons = {
  trinity: "with config convert --target new; the older builder has no correction",
};

/** Columns: local, tinker, verl, trinity. */
const ROWS: readonly Row[] = [
  ["rllm.backend", "acts acts acts -", "names the backend that runs"],

  [
    "rllm.data.train_batch_size",
    "acts acts forwarded forwarded",
    "prompts per step of the loop",
    { trinity: "as buffer.batch_size x synchronizer.sync_interval" },
  ],
  [
    "rllm.data.val_batch_size",
    "acts acts acts dropped",
    "prompts per validation batch of the loop",
    { trinity: "Trinity has one batch size" },
  ],
  ["rllm.data.max_prompt_length", "acts acts forwarded forwarded", "longer prompts end their trajectory"],
  ["rllm.data.max_response_length", "acts acts forwarded forwarded", "bounds every rollout"],
  [
    "rllm.data.seed",
    "acts acts acts dropped",
    "order of the rows",
    { trinity: "Trinity seeds each taskset (data_selector.seed)" },
  ],

  ["rllm.agent.*", "acts acts acts dropped", FUNCTIONS],
  [
    "rllm.agent.engine_args",
    "refused refused refused dropped",
    "the engine is this loop, set by rllm.workflow",
  ],
  [
    "rllm.agent.trajectory_timeout",
    "acts acts acts dropped",
    "bounds a rollout's time",
    { trinity: "Trinity has explorer.max_timeout" },
  ],
  ["rllm.agent.overlong_filter", "acts acts acts dropped", "masks rows in the loop"],
  [
    "rllm.env.*",
    "acts acts acts dropped",
    "the game that is played in turns, where it is not task.name's own",
  ],
  ["rllm.workflow.workflow_args.gamma", "acts acts acts dropped", "discounts step rewards in the loop"],
  [
    "rllm.workflow.workflow_args.reward_bonus_coeff",
    "acts acts acts dropped",
    "shapes step rewards in the loop",
  ],
  ["rllm.workflow.*", "acts acts acts dropped", FUNCTIONS],
  ["rllm.workflow.warm_queue_size", "refused refused refused dropped", NO_REMOTE],
  [
    "rllm.workflow.n_parallel_tasks",
    "acts acts acts dropped",
    "rollouts at the same time",
    { trinity: "Trinity has explorer.runner_per_model" },
  ],
  [
    "rllm.workflow.retry_limit",
    "acts acts acts dropped",
    "attempts per rollout",
    { trinity: "Trinity has explorer.max_retry_times" },
  ],
  [
    "rllm.workflow.raise_on_error",
    "acts acts acts dropped",
    "what the loop does with a rollout that fails for good",
  ],
  [
    "rllm.workflow.workflow_args.timeout",
    "acts acts acts dropped",
    "bounds a rollout's time",
    { trinity: "Trinity has explorer.max_timeout" },
  ],

  ["rllm.rollout.n", "acts acts forwarded forwarded", "group size"],
  ["rllm.rollout.n_val", "acts acts forwarded forwarded", "rollouts per validation prompt"],
  ["rllm.rollout.train.*", "acts acts forwarded forwarded", "sampling in training"],
  [
    "rllm.rollout.val.*",
    "acts acts forwarded forwarded",
    "sampling in validation",
    { trinity: "of each eval_taskset" },
  ],
  [
    "rllm.rollout.val.max_tokens",
    "acts acts acts dropped",
    "the loop cuts validation at its own length",
    { trinity: "Trinity bounds validation like training" },
  ],

  ["rllm.trainer.total_epochs", "acts acts forwarded forwarded", "length of the run"],
  [
    "rllm.trainer.total_batches",
    "acts acts forwarded forwarded",
    "length of the run",
    { trinity: `as buffer.total_steps and trainer.total_steps; ${COUNTED}` },
  ],
  [
    "rllm.trainer.logger",
    "acts acts forwarded forwarded",
    "which logs are written",
    { trinity: "one of tensorboard, wandb, mlflow" },
  ],
  ["rllm.trainer.project_name", "logging logging logging logging", "names the run in logs and paths"],
  ["rllm.trainer.experiment_name", "logging logging logging logging", "names the run in logs and paths"],
  [
    "rllm.trainer.test_freq",
    "acts acts forwarded forwarded",
    "steps between validations",
    { trinity: COUNTED },
  ],
  [
    "rllm.trainer.save_freq",
    "acts acts forwarded forwarded",
    "steps between checkpoints",
    { trinity: COUNTED },
  ],
  ["rllm.trainer.val_before_train", "acts acts forwarded forwarded", "validation before the first step"],
  ["rllm.trainer.val_only", "acts acts forwarded forwarded", "validation alone"],

  [
    "rllm.algorithm.adv_estimator",
    "acts acts forwarded forwarded",
    "which estimator computes advantages",
    { trinity: "where Trinity has it, with its algorithm_type" },
  ],
  [
    "rllm.algorithm.norm_adv_by_std_in_grpo",
    "acts acts forwarded dropped",
    "whether GRPO divides by the deviation of a group",
    { trinity: "Trinity's grpo always divides" },
  ],
  [
    "rllm.algorithm.traj_group_adv_estimator_map",
    "acts acts acts dropped",
    "read where advantages are computed: in the loop",
  ],
  [
    "rllm.algorithm.traj_grouping_hook",
    "acts acts acts dropped",
    "read where trajectories are grouped: in the loop",
  ],
  [
    "rllm.algorithm.estimator_args",
    "acts acts acts dropped",
    "read where advantages are computed: in the loop",
  ],
  [
    "rllm.algorithm.loss_args",
    "acts acts refused dropped",
    "settings of the losses here",
    { verl: "verl's losses have settings of their own" },
  ],
  [
    "rllm.algorithm.use_rllm",
    "refused refused refused dropped",
    "deprecated: advantages always come from this loop",
  ],
  [
    "rllm.algorithm.use_precomputed_advantage",
    "acts acts acts dropped",
    "read where advantages are computed: in the loop",
  ],
  [
    "rllm.algorithm.loss_fn",
    "acts acts forwarded forwarded",
    "which loss is minimised",
    { trinity: "where Trinity has it" },
  ],
  ["rllm.algorithm.loss_agg_mode", "acts acts forwarded forwarded", "how token losses are summed"],
  ["rllm.algorithm.lr_schedule", "acts acts forwarded forwarded", "course of the learning rate", SCHEDULE],
  [
    "rllm.algorithm.warmup_steps",
    "acts acts forwarded forwarded",
    "steps of rising learning rate",
    { trinity: "as algorithm.optimizer.lr_warmup_steps" },
  ],
  [
    "rllm.algorithm.warmup_steps_ratio",
    "acts acts forwarded forwarded",
    "share of the run with a rising learning rate",
    { trinity: "as algorithm.optimizer.lr_warmup_steps_ratio" },
  ],
  ["rllm.algorithm.kl_beta", "acts acts forwarded forwarded", "KL to the model before training, in the loss"],
  [
    "rllm.algorithm.eps_clip",
    "acts acts forwarded forwarded",
    "the bounds of the ratio of probabilities, around 1",
    CLIPPED,
  ],
  [
    "rllm.algorithm.eps_clip_high",
    "acts acts forwarded forwarded",
    "the upper bound of the ratio of probabilities, above 1",
    CLIPPED,
  ],
  [
    "rllm.algorithm.router_replay",
    "refused refused forwarded forwarded",
    "models here have no experts",
    {
      tinker: "Tinker does not report routing",
      verl: "with engines that replay experts",
      trinity: "R3 as algorithm.enable_router_replay",
    },
  ],
  [
    "rllm.algorithm.rollout_correction.*",
    "acts acts forwarded forwarded",
    "weights by the gap of sampler and trainer",
    NEW_BUILDER,
  ],

  ["rllm.stepwise_advantage.*", "acts acts acts dropped", "spreads advantages over steps in the loop"],
  ["rllm.disable_thinking", "acts acts acts dropped", "passes enable_thinking=false to the chat template"],
  ["rllm.accumulate_reasoning", "acts acts acts dropped", "keeps reasoning in the prompts of later turns"],
  ["rllm.mask_truncated_samples", "acts acts acts dropped", "masks rows in the loop"],
  ["rllm.filter_token_mismatch", "acts acts acts dropped", "leaves trajectories out in the loop"],
  ["rllm.compact_filtering.*", "acts acts acts dropped", "masks trajectories in the loop"],
  ["rllm.rejection_sample.*", "acts acts acts dropped", "filters groups in the loop"],
  ["rllm.transform.*", "acts acts acts dropped", "groups trajectories in the loop"],

  ["rllm.sdk.*", "refused refused refused dropped", NO_SDK],
  ["rllm.gateway.*", "refused refused refused dropped", NO_SDK],
  ["rllm.remote_runtime.*", "refused refused refused dropped", NO_REMOTE],
  [
    "rllm.async_training.*",
    "acts acts forwarded dropped",
    "the loop generates while it trains",
    { verl: "rLLM's asynchronous trainer reads it" },
  ],
  [
    "rllm.async_training.fwd_bwd_group_size",
    "refused refused forwarded dropped",
    "a batch is worked through in passes that fit the device",
    { verl: "rLLM's asynchronous trainer reads it" },
  ],
  [
    "rllm.async_training.trajectory_group_offload_dir",
    "refused refused forwarded dropped",
    "groups are made when a batch is taken: what waits are episodes, in episode_offload_dir",
    { verl: "rLLM's asynchronous trainer reads it" },
  ],
  ["rllm.episode_logging.*", "acts acts acts dropped", "the loop writes the episodes"],

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
    "the same settings as rllm.data",
    { verl: "part of verl's own tree, handed to verl as it is" },
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

export const SUPPORT: readonly Support[] = ROWS.map(([pattern, columns, reason, reasons = {}]) => {
  const [local, tinker, verl, trinity] = columns.split(" ") as [Status, Status, Status, Status];
  return { pattern, status: { local, tinker, verl, trinity }, reason, reasons };
});

/** What a setting does on a target, or why it does nothing there. */
export function reasonOn(path: string, target: Target): string {
  const { reason, reasons, status } = supportOf(path);
  return reasons[target] ?? (status[target] === "dropped" ? NO_COUNTERPART : reason);
}

/** The row of a setting: the longest pattern that fits. */
export function supportOf(path: string): Support {
  let best = SUPPORT[SUPPORT.length - 1]!;
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
