/**
 * The settings that the loop reads, in the sections and under the names of the configuration: those of `rllm.*`, and
 * `training.*` and `warmup.*`. An embedder gives the parts that differ; settings_config.ts reads them all from a
 * composed configuration.
 */

import type { SamplingParams } from "../contract/backend.ts";
import type { TerminationReason } from "../data/types.ts";
import { ConfigError } from "../errors.ts";
import { nearest } from "../nearest.ts";

export interface SamplingSettings {
  readonly temperature: number;
  readonly top_p: number;
  readonly top_k?: number;
  readonly max_tokens: number;
}

export interface LoopSettings {
  readonly data: {
    readonly train_batch_size: number;
    readonly val_batch_size: number;
    readonly max_prompt_length: number;
    readonly seed: number;
  };
  readonly rollout: {
    readonly n: number;
    readonly n_val: number;
    readonly train: SamplingSettings;
    readonly val: SamplingSettings;
  };
  readonly workflow: {
    readonly n_parallel_tasks: number;
    readonly retry_limit: number;
    readonly raise_on_error: boolean;
    readonly workflow_args: {
      readonly timeout: number;
      readonly gamma: number;
      readonly reward_bonus_coeff: number;
    };
  };
  readonly agent: { readonly overlong_filter: boolean };
  readonly stepwise_advantage: {
    readonly enable: boolean;
    readonly mode: "broadcast" | "per_step";
    readonly normalize_by_steps: boolean;
  };
  readonly trainer: {
    readonly total_epochs: number;
    readonly total_batches: number;
    readonly test_freq: number;
    readonly save_freq: number;
    readonly val_before_train: boolean;
    readonly val_only: boolean;
  };
  readonly algorithm: {
    readonly adv_estimator: string;
    readonly norm_adv_by_std_in_grpo: boolean;
    readonly traj_group_adv_estimator_map: Readonly<Record<string, unknown>>;
    readonly traj_grouping_hook: string | null;
    readonly estimator_args: Readonly<Record<string, unknown>>;
    readonly loss_args: Readonly<Record<string, unknown>>;
    readonly use_precomputed_advantage: boolean;
    readonly loss_fn: string | null;
    readonly loss_agg_mode: string | null;
    readonly lr_schedule: string;
    readonly warmup_steps: number;
    readonly warmup_steps_ratio: number;
    readonly kl_beta: number;
    readonly eps_clip: number;
    readonly eps_clip_high: number | null;
    readonly rollout_correction: {
      readonly bypass_mode: boolean | null;
      readonly tis_mode: "token" | "sequence" | null;
      readonly tis_cap: number;
    };
  };
  readonly transform: {
    readonly impute_missing_names: boolean;
    readonly default_traj_name: string;
    readonly drop_unnamed_traj: boolean;
  };
  readonly compact_filtering: { readonly enable: boolean } & {
    readonly [R in TerminationReason as `mask_${R}`]: boolean;
  };
  readonly rejection_sample: {
    readonly enable: boolean;
    /** `none`, `episode`, `group`, or a registered name. Null: `episode` when enabled, else `none`. */
    readonly mode: string | null;
    readonly multiplier: number;
    readonly min_partial_solve_tasks: number;
    readonly min_trajs_per_group: number;
    readonly filter_uniform_groups: boolean;
  };
  /** Generation while training goes on (see async.ts). */
  readonly async_training: {
    readonly enable: boolean;
    readonly mini_batch_size: number;
    readonly staleness_threshold: number;
    readonly trigger_parameter_sync_step: number;
    readonly partial_rollout: boolean;
    readonly episode_offload_dir: string | null;
  };
  /** Stages of a training step by name, in order (see pipeline.ts). */
  readonly pipeline: { readonly stages: readonly string[] };
  readonly disable_thinking: boolean;
  readonly accumulate_reasoning: boolean;
  readonly mask_truncated_samples: boolean;
  readonly filter_token_mismatch: boolean;
  readonly training: {
    readonly seed: number;
    readonly learning_rate: number;
    readonly beta1: number;
    readonly beta2: number;
    readonly eps: number;
    readonly weight_decay: number;
    readonly grad_clip_norm: number;
    readonly num_minibatches: number;
    /** Steps in a row that may train no group; 0: any number. */
    readonly max_untrained_steps: number;
    readonly metric_for_best_model: string | null;
    readonly greater_is_better: boolean;
  };
  readonly warmup: {
    readonly steps: number;
    readonly batch_size: number;
    readonly learning_rate: number;
    readonly examples: number | null;
  };
}

/** Any subset of a settings tree. */
export type Partly<T> = T extends readonly unknown[]
  ? T
  : T extends object
    ? { readonly [K in keyof T]?: Partly<T[K]> }
    : T;

const SAMPLING: SamplingSettings = { temperature: 1, top_p: 1, top_k: -1, max_tokens: 256 };

/** The published eight stages. */
export const STAGE_ORDER: readonly string[] = [
  "generate",
  "transform",
  "reject",
  "batch",
  "process",
  "advantages",
  "update",
  "log",
];

/** The defaults of the configuration's schema, for embedders that bring no configuration. */
export const DEFAULT_SETTINGS: LoopSettings = {
  data: { train_batch_size: 64, val_batch_size: -1, max_prompt_length: 2048, seed: 0 },
  rollout: { n: 8, n_val: 1, train: SAMPLING, val: SAMPLING },
  workflow: {
    n_parallel_tasks: 256,
    retry_limit: 3,
    raise_on_error: true,
    workflow_args: { timeout: 1e6, gamma: 0, reward_bonus_coeff: 0 },
  },
  agent: { overlong_filter: false },
  stepwise_advantage: { enable: false, mode: "broadcast", normalize_by_steps: false },
  trainer: {
    total_epochs: 10,
    total_batches: -1,
    test_freq: 5,
    save_freq: 20,
    val_before_train: true,
    val_only: false,
  },
  algorithm: {
    adv_estimator: "grpo",
    norm_adv_by_std_in_grpo: true,
    traj_group_adv_estimator_map: {},
    traj_grouping_hook: null,
    estimator_args: {},
    loss_args: {},
    use_precomputed_advantage: false,
    loss_fn: null,
    loss_agg_mode: null,
    lr_schedule: "constant",
    warmup_steps: -1,
    warmup_steps_ratio: 0,
    kl_beta: 0,
    eps_clip: 0.2,
    eps_clip_high: null,
    rollout_correction: { bypass_mode: null, tis_mode: null, tis_cap: 2 },
  },
  transform: { impute_missing_names: true, default_traj_name: "default_traj_name", drop_unnamed_traj: false },
  compact_filtering: {
    enable: false,
    mask_max_prompt_length_exceeded: true,
    mask_max_response_length_exceeded: true,
    mask_env_done: false,
    mask_max_turns_exceeded: true,
    mask_timeout: true,
    mask_unknown: false,
    mask_error: true,
  },
  rejection_sample: {
    enable: false,
    mode: null,
    multiplier: 1,
    min_partial_solve_tasks: 1,
    min_trajs_per_group: 2,
    filter_uniform_groups: false,
  },
  async_training: {
    enable: false,
    mini_batch_size: 64,
    staleness_threshold: 0,
    trigger_parameter_sync_step: 1,
    partial_rollout: false,
    episode_offload_dir: null,
  },
  pipeline: { stages: STAGE_ORDER },
  disable_thinking: false,
  accumulate_reasoning: false,
  mask_truncated_samples: false,
  filter_token_mismatch: true,
  training: {
    seed: 0,
    learning_rate: 2e-5,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0,
    grad_clip_norm: 1,
    num_minibatches: 1,
    max_untrained_steps: 10,
    metric_for_best_model: null,
    greater_is_better: true,
  },
  warmup: { steps: 0, batch_size: 64, learning_rate: 1e-3, examples: null },
};

/**
 * The defaults with the given parts laid over them.
 * @throws {ConfigError} for a name that there is not, or a value that is none of its kind.
 */
export function loopSettings(given: Partly<LoopSettings> = {}): LoopSettings {
  checkNames(DEFAULT_SETTINGS, given, []);
  const settings = overlay(DEFAULT_SETTINGS, given) as LoopSettings;
  checkCounts(settings);
  return settings;
}

/** Not in TypeScript alone: settings may come from JavaScript, or from a file. A section that is empty takes any name. */
function checkNames(base: unknown, given: unknown, path: readonly string[]): void {
  if (given === undefined || base === null) return;
  const refuse = (rule: string) => {
    const name = path.join(".") || "settings";
    throw new ConfigError(`Cannot set ${name} as ${rule}: ${JSON.stringify(given)}`, { path: name });
  };
  if (kindOf(given) !== kindOf(base)) refuse(`it takes ${NAMES[kindOf(base)]}`);
  if (Number.isNaN(given)) refuse("it takes a number");
  if (!isSection(base) || !isSection(given) || Object.keys(base).length === 0) return;
  for (const [key, value] of Object.entries(given)) {
    if (!Object.hasOwn(base, key)) throw unknownName([...path, key], Object.keys(base));
    checkNames(base[key], value, [...path, key]);
  }
}

const NAMES: Readonly<Record<string, string>> = {
  number: "a number",
  string: "a text",
  boolean: "true or false",
  section: "an object",
  list: "a list",
};

function kindOf(value: unknown): string {
  return Array.isArray(value)
    ? "list"
    : isSection(value)
      ? "section"
      : value === null
        ? "null"
        : typeof value;
}

function unknownName(path: readonly string[], names: readonly string[]): ConfigError {
  const close = nearest(path[path.length - 1]!, names);
  const advice = close ? `; did you mean ${close}?` : `: ${names.join(", ")}`;
  return new ConfigError(`Cannot set ${path.join(".")} as there is no such setting${advice}`, {
    path: path.join("."),
  });
}

/** Counts that nothing works without. */
function checkCounts({ data, rollout, workflow, training, warmup, ...rest }: LoopSettings): void {
  const { async_training, rejection_sample } = rest;
  const counts: readonly (readonly [string, number])[] = [
    ["data.train_batch_size", data.train_batch_size],
    ["rollout.n", rollout.n],
    ["rollout.n_val", rollout.n_val],
    ["workflow.n_parallel_tasks", workflow.n_parallel_tasks],
    ["workflow.retry_limit", workflow.retry_limit],
    ["training.num_minibatches", training.num_minibatches],
    ["warmup.batch_size", warmup.batch_size],
    ["rejection_sample.multiplier", rejection_sample.multiplier],
    ["async_training.mini_batch_size", async_training.mini_batch_size],
    ["async_training.trigger_parameter_sync_step", async_training.trigger_parameter_sync_step],
  ];
  const wrong = counts.find(([, count]) => !(Number.isInteger(count) && count >= 1));
  if (wrong)
    throw new ConfigError(`Cannot set ${wrong[0]} as it takes a whole number above 0: ${wrong[1]}`, {
      path: wrong[0],
    });
}

function overlay(base: unknown, given: unknown): unknown {
  if (given === undefined) return base;
  if (!isSection(base) || !isSection(given)) return given;
  const keys = new Set([...Object.keys(base), ...Object.keys(given)]);
  return Object.fromEntries([...keys].map((key) => [key, overlay(base[key], given[key])]));
}

function isSection(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function samplingParams(settings: SamplingSettings, stopTokenIds: readonly number[]): SamplingParams {
  const { temperature, top_p, top_k = -1, max_tokens } = settings;
  return { temperature, top_p, top_k, max_tokens, stop_token_ids: stopTokenIds };
}
