/** Seeded sets of overrides over everything that rLLM and its backends share: the questions of the differential test. */
import { VERL_CLIP, VERL_SCHEDULE_RLLM, VERL_STEPS } from "../../../src/train/config/sync/tables.ts";
import { type Random, randomOf } from "./random.ts";

export interface OverrideSet {
  readonly backend: "verl" | "tinker";
  readonly set: readonly string[];
}

const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";

/** Values that fit, by portable name; the first that matches counts. */
const FITTING: readonly (readonly [names: RegExp, values: readonly string[]])[] = [
  [/adv_estimator/, ["grpo", "rloo", "'reinforce'", "reinforce_plus_plus_baseline"]],
  [/loss_fn/, ["gspo", "vanilla", '"cispo"']],
  [/loss_agg_mode/, ["token-mean", "seq-mean-token-sum", "'seq-mean-token-mean'"]],
  [/lr_schedule/, ["constant", "cosine", "linear"]],
  [/router_replay/, ["disabled", "R2", "R3"]],
  [/tis_mode/, ["token", "sequence"]],
  [/logger/, ["[console]", "['console', wandb]", "[tensorboard,console]"]],
  [/project_name|experiment_name/, ["run-a", "my run", "'a=b'", "007", "1__0", "str(5)", "v1.2.3", "str(2.50)"]],
  [/norm_adv|bypass_mode|val_before_train|val_only|disable_|accumulate_/, ["true", "False", "bool(0)", "bool('TRUE')"]],
  [/top_p|_ratio$/, ["0.5", "1", ".25", "float(1)", "1e-1", "float('0.75')"]],
  [/temperature|kl_beta|eps_clip|tis_cap/, ["0", "0.3", "1.0", "float(2)", "2.5e-1", "1_0.5", "0.30"]],
  [/total_batches/, ["100", "0", "-1", "int(7.9)", "1_000"]],
  [/save_freq|test_freq|warmup_steps$/, ["5", "-1", "0", "10", "int('3')"]],
  [/top_k/, ["-1", "20", "int(40.5)"]],
  [/.*/, ["4", "8", "64", "int(16.9)", "+32", "1_024"]],
];

interface Row {
  readonly native: string;
  readonly rllm: string;
}

/** The published table of settings that verl and rLLM share, in its order: the recorded sets were drawn from it. */
export const PUBLISHED_ROWS: readonly Row[] = (
  [
    ["data.train_batch_size", "rllm.data.train_batch_size"],
    ["data.max_prompt_length", "rllm.data.max_prompt_length"],
    ["data.max_response_length", "rllm.data.max_response_length"],
    ["algorithm.adv_estimator", "rllm.algorithm.adv_estimator"],
    ["algorithm.norm_adv_by_std_in_grpo", "rllm.algorithm.norm_adv_by_std_in_grpo"],
    ["algorithm.rollout_correction.bypass_mode", "rllm.algorithm.rollout_correction.bypass_mode"],
    ["algorithm.rollout_correction.rollout_is", "rllm.algorithm.rollout_correction.tis_mode"],
    ["algorithm.rollout_correction.rollout_is_threshold", "rllm.algorithm.rollout_correction.tis_cap"],
    ["actor_rollout_ref.actor.kl_loss_coef", "rllm.algorithm.kl_beta"],
    ["actor_rollout_ref.actor.policy_loss.loss_mode", "rllm.algorithm.loss_fn"],
    ["actor_rollout_ref.actor.loss_agg_mode", "rllm.algorithm.loss_agg_mode"],
    ["actor_rollout_ref.actor.optim.lr_warmup_steps", "rllm.algorithm.warmup_steps"],
    ["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio"],
    ["actor_rollout_ref.actor.clip_ratio_high", "rllm.algorithm.eps_clip_high"],
    ["actor_rollout_ref.actor.router_replay.mode", "rllm.algorithm.router_replay"],
    ["actor_rollout_ref.rollout.n", "rllm.rollout.n"],
    ["actor_rollout_ref.rollout.val_kwargs.n", "rllm.rollout.n_val"],
    ["actor_rollout_ref.rollout.temperature", "rllm.rollout.train.temperature"],
    ["actor_rollout_ref.rollout.top_p", "rllm.rollout.train.top_p"],
    ["actor_rollout_ref.rollout.top_k", "rllm.rollout.train.top_k"],
    ["actor_rollout_ref.rollout.response_length", "rllm.rollout.train.max_tokens"],
    ["actor_rollout_ref.rollout.val_kwargs.temperature", "rllm.rollout.val.temperature"],
    ["actor_rollout_ref.rollout.val_kwargs.top_p", "rllm.rollout.val.top_p"],
    ["actor_rollout_ref.rollout.val_kwargs.top_k", "rllm.rollout.val.top_k"],
    ["trainer.save_freq", "rllm.trainer.save_freq"],
    ["trainer.test_freq", "rllm.trainer.test_freq"],
    ["trainer.val_before_train", "rllm.trainer.val_before_train"],
    ["trainer.val_only", "rllm.trainer.val_only"],
    ["trainer.total_epochs", "rllm.trainer.total_epochs"],
    ["trainer.logger", "rllm.trainer.logger"],
    ["trainer.project_name", "rllm.trainer.project_name"],
    ["trainer.experiment_name", "rllm.trainer.experiment_name"],
  ] as const
).map(([native, rllm]) => ({ native, rllm }));

const CLIP: readonly Row[] = [
  { native: VERL_CLIP.ratio, rllm: VERL_CLIP.rllm },
  { native: VERL_CLIP.low, rllm: VERL_CLIP.rllm },
];
const VERL_ROWS: readonly Row[] = [
  ...PUBLISHED_ROWS,
  VERL_STEPS,
  VERL_STEPS,
  ...CLIP,
  { native: `${ACTOR}.optim.lr_scheduler_type`, rllm: VERL_SCHEDULE_RLLM },
];
/** The rows that rLLM's own table has too. */
const TINKER_ROWS: readonly Row[] = [
  ...["train_batch_size", "val_batch_size", "max_prompt_length", "max_response_length"].map((name) => ({
    native: `data.${name}`,
    rllm: `rllm.data.${name}`,
  })),
  ...["lr_schedule", "warmup_steps_ratio"].map((name) => ({
    native: `training.${name}`,
    rllm: `rllm.algorithm.${name}`,
  })),
  ...["accumulate_reasoning", "disable_thinking"].map((name) => ({
    native: `rollout_engine.${name}`,
    rllm: `rllm.${name}`,
  })),
];

/** What verl's rules look at besides, as it is written. */
const VERL_EXTRAS = [
  `${ACTOR}.use_kl_loss=true`,
  `${ACTOR}.use_kl_loss=false`,
  `${ROLLOUT}.do_sample=false`,
  `${ROLLOUT}.val_kwargs.do_sample=false`,
  `${ROLLOUT}.checkpoint_engine.backend=nccl`,
  "rllm.async_training.enable=true",
  "rllm.async_training.partial_rollout=true",
  "rllm.async_training.mini_batch_size=16",
  "actor_rollout_ref.hybrid_engine=false",
  "model_engine=megatron",
  "model_engine=veomni",
  "rllm.rollout={n: 5, n_val: 2}",
  "rllm.rollout.train={temperature: 0.7, top_p: null}",
  "rllm.algorithm={kl_beta: 0.01, eps_clip: 0.1}",
  "rllm.trainer={total_epochs: 3, logger: [wandb]}",
  // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation
  "rllm.rollout.n=${rllm.rollout.n_val}",
  // biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation
  "rllm.trainer.experiment_name=${rllm.trainer.project_name}-b",
  "+own.key=[1,{a: b}]",
  "+rllm.rollout.train.presence_penalty=0.5",
];

/** The settings whose answers are recorded: both sides of every row, and what follows from them. */
export const WATCHED: ReadonlySet<string> = new Set([
  ...[...VERL_ROWS, ...TINKER_ROWS].flatMap(({ native, rllm }) => [native, rllm]),
  ...["clip_ratio_high", "use_kl_loss", "ppo_mini_batch_size", "optim.lr_decay_style", "rollout_n", "strategy"].map(
    (name) => `${ACTOR}.${name}`,
  ),
  ...["checkpoint_engine.backend", "enable_rollout_routing_replay", "do_sample", "trace.experiment_name"].map(
    (name) => `${ROLLOUT}.${name}`,
  ),
  ...["actor_rollout_ref.hybrid_engine", "async_training.partial_rollout", "trainer.default_local_dir", "own.key"],
  ...["episode_logging.episode_log_dir", "rollout.val.max_tokens", "rollout.train.presence_penalty"].map(
    (name) => `rllm.${name}`,
  ),
  ...["rllm.async_training.enable", "model_engine", "critic.rollout_n"],
]);

export function overrideSets(count: number, seed: number): OverrideSet[] {
  const random = randomOf(seed);
  return Array.from({ length: count }, () => {
    const backend = random.next() < 0.8 ? "verl" : "tinker";
    const rows = backend === "verl" ? VERL_ROWS : TINKER_ROWS;
    const extras = backend === "verl" ? VERL_EXTRAS : [];
    const picked = Array.from({ length: 1 + random.below(3) }, () => random.pick(rows));
    const set = picked.map((row) => rowOverrides(random, row));
    const extra = random.next() < 0.5 ? random.pick(["", ...extras]) : "";
    // Theirs does not see what is typed in a section: its own name is all that counts (sync_test.ts has ours).
    const section = /^(.*)=\{/.exec(extra)?.[1];
    if (extra !== "" && !picked.some(({ rllm }) => section && rllm.startsWith(section))) set.push([extra]);
    return { backend, set: withoutClashes(set.flat()) };
  });
}

/** One side of a row, or both. */
function rowOverrides(random: Random, { native, rllm }: Row): string[] {
  const side = random.below(5);
  const values = FITTING.find(([names]) => names.test(rllm))?.[1] ?? [];
  const typed = (path: string) => {
    const value = random.next() < 0.12 ? "null" : random.pick(values);
    const isNew = path.endsWith("train.top_k") || path.endsWith("val.top_k");
    const sign = isNew ? "+" : random.next() < 0.1 ? "++" : "";
    return `${sign}${path}=${value}`;
  };
  if (side < 2) return [typed(rllm)];
  return side < 4 ? [typed(native)] : [typed(native), typed(rllm)];
}

/** Of overrides with one key, the first: `+` may stand once, and a group too. */
function withoutClashes(set: readonly string[]): string[] {
  const keys = new Map(set.map((text) => [text.replace(/^\+*/, "").split("=")[0], text] as const).reverse());
  return set.filter((text) => [...keys.values()].includes(text));
}
