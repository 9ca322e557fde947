/** The settings of the golden runs: short runs, each through other parts of the loop. */

const INIT = "layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32";
const WARM = ["warmup.steps=40", "warmup.batch_size=16", "warmup.learning_rate=1e-2"];

/** Four steps of four tasks and four rollouts each, with validation before and after. */
const SHORT = [
  "training.seed=7",
  "training.learning_rate=5e-3",
  "training.resume_mode=disable",
  "rllm.data.train_batch_size=4",
  "rllm.data.val_batch_size=8",
  "rllm.data.max_prompt_length=24",
  "rllm.data.max_response_length=4",
  "rllm.rollout.n=4",
  "rllm.trainer.total_batches=4",
  "rllm.trainer.test_freq=4",
  "rllm.trainer.save_freq=0",
  "rllm.trainer.logger=[jsonl]",
];

/** A LoRA adapter on a folder's model, trained over Tinker's protocol. */
export const tinkerRun = (model: string): readonly string[] => [
  "rllm/backend=tinker",
  "rllm.rollout.n_val=1",
  `model.name=${model}`,
  "model.lora_rank=4",
  "task.name=single_turn",
  "task.reward=vowels",
  "--import",
  "test/golden/rewards.ts",
  "data.train_files=test/golden/prompts.jsonl",
  "data.val_files=test/golden/prompts.jsonl",
  ...SHORT,
  "rllm.data.max_response_length=8",
  "training.num_minibatches=2",
  "rllm.algorithm.rollout_correction.bypass_mode=false",
];

const digits = (...settings: string[]) => [
  `model.init={${INIT}, tokenizer: char, alphabet: "0123456789+="}`,
  "task.name=single_turn",
  "task.reward=even_digits",
  "--import",
  "test/golden/rewards.ts",
  "data.train_files=test/golden/prompts.jsonl",
  "data.val_files=test/golden/prompts.jsonl",
  ...SHORT,
  ...settings,
];

/** Command lines of `grpu train`, by name. */
export const RUNS: Readonly<Record<string, readonly string[]>> = {
  grpo_minibatches: digits("training.num_minibatches=2", "rllm.algorithm.loss_agg_mode=token-mean"),
  rloo_kl: digits(
    "rllm.algorithm.adv_estimator=rloo",
    "rllm.algorithm.kl_beta=0.1",
    "rllm.algorithm.loss_agg_mode=seq-mean-token-mean",
    "rllm.algorithm.rollout_correction.bypass_mode=false",
  ),
  remax: digits("+preset=remax", "training.num_minibatches=2"),
  gspo_clipped: digits(
    "rllm.algorithm.loss_fn=gspo",
    "rllm.algorithm.eps_clip=3e-4",
    "rllm.algorithm.eps_clip_high=4e-4",
    "training.num_minibatches=4",
    "rllm.algorithm.lr_schedule=cosine",
    "rllm.algorithm.warmup_steps=2",
  ),
  dr_grpo: digits(
    "rllm.algorithm.norm_adv_by_std_in_grpo=false",
    "rllm.algorithm.loss_agg_mode=seq-mean-token-sum-norm",
    "rllm.algorithm.eps_clip_high=0.28",
    "training.grad_clip_norm=0.05",
  ),
  reinforce_plus_plus_per_token: digits(
    "rllm.algorithm.adv_estimator=reinforce_plus_plus",
    "rllm.algorithm.loss_fn=cispo",
    "training.num_minibatches=2",
  ),
  temperature_and_correction: digits(
    "rllm.rollout.train.temperature=0.7",
    "rllm.algorithm.rollout_correction.bypass_mode=false",
    "rllm.algorithm.rollout_correction.tis_mode=token",
    "rllm.algorithm.rollout_correction.tis_cap=1.5",
    "training.num_minibatches=2",
  ),
  rejection: digits(
    "rllm.rejection_sample.enable=true",
    "rllm.rejection_sample.mode=group",
    "rllm.rejection_sample.min_partial_solve_tasks=2",
    "rllm.rejection_sample.filter_uniform_groups=true",
  ),
  asynchronous: digits(
    "rllm.async_training.enable=true",
    "rllm.async_training.mini_batch_size=4",
    "rllm.workflow.raise_on_error=false",
    "training.num_minibatches=2",
  ),
  turns: [
    "examples/multi_turn/run.yaml",
    `model.init={${INIT}, tokenizer: char}`,
    ...WARM,
    ...SHORT,
    "rllm.data.max_response_length=2",
    "rllm.stepwise_advantage.enable=true",
    "rllm.stepwise_advantage.mode=per_step",
    "training.num_minibatches=2",
  ],
  two_roles: [
    "examples/solver_judge/run.yaml",
    'model.init={layers: 1, hidden_size: 32, heads: 2, kv_heads: 1, head_dim: 16, intermediate_size: 64, alphabet: "0123456789+=|?"}',
    "warmup.steps=150",
    "warmup.batch_size=32",
    "warmup.learning_rate=1e-2",
    ...SHORT,
    "rllm.algorithm.traj_group_adv_estimator_map={solver: grpo, judge: rloo}",
    "training.num_minibatches=2",
  ],
};

/** Runs that take seconds. */
export const LONG_RUNS: ReadonlySet<string> = new Set(["two_roles"]);
