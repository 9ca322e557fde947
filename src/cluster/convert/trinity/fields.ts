/** Types and defaults of Trinity-RFT's settings, as of its newest documented schema; for `validate` and `explain`. */
import { any, bool, type Field, float, int, list, oneOf, str } from "../../../train/config/fields/field.ts";

const MODES = ["both", "explore", "train", "bench", "serve", "colocate"] as const;
const TYPES = [
  "ppo",
  "grpo",
  "grpo_verl",
  "dapo",
  "reinforceplusplus",
  "rloo",
  "opmd",
  "asymre",
  "topr",
  "cispo",
  "gspo",
  "sapo",
  "m2po",
  "rec",
  "sppo",
  "mix",
  "mix_chord",
  "multi_step_grpo",
  "gigpo",
  "on_policy_distill",
  "jsd",
  "sft",
  "raft",
  "dpo",
  "cpt",
] as const;
const KL = ["none", "k1", "k2", "k3", "low_var_kl", "abs", "corrected_k3"] as const;
const AGG = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] as const;

const engine = (at: string): Record<string, Field> => ({
  [`${at}.model_path`]: str(null, "model that is served"),
  [`${at}.engine_type`]: oneOf(["vllm", "sglang", "tinker", "external"], "vllm", "sampling engine"),
  [`${at}.engine_num`]: int(1, "engines; each takes its GPUs from the cluster", { min: 1 }),
  [`${at}.tensor_parallel_size`]: int(1, "GPUs per engine", { min: 1 }),
  [`${at}.data_parallel_size`]: int(1, "replicas per engine", { min: 1 }),
  [`${at}.pipeline_parallel_size`]: int(1, "pipeline stages per engine", { min: 1 }),
  [`${at}.gpu_memory_utilization`]: float(0.9, "share of GPU memory for the engine", { min: 0, max: 1 }),
  [`${at}.enforce_eager`]: bool(false, "no graph capture"),
  [`${at}.max_model_len`]: int(null, "longest context; null = the model's settings"),
});

const taskset = (at: string): Record<string, Field> => ({
  [`${at}.name`]: str(null, "name of the taskset"),
  [`${at}.storage_type`]: oneOf(["file", "sql", "task_dir"], "file", "where rows are"),
  [`${at}.path`]: str("???", "folder or file of the rows"),
  [`${at}.subset_name`]: str(null, "subset of the dataset"),
  [`${at}.split`]: str("train", "split of the dataset"),
  [`${at}.repeat_times`]: int(1, "rollouts per task (training takes algorithm.repeat_times)", { min: 1 }),
  [`${at}.rollout_args.temperature`]: float(null, "temperature of this taskset", { min: 0 }),
  [`${at}.format.prompt_key`]: str("prompt", "field of the prompt"),
  [`${at}.format.response_key`]: str("response", "field of the answer"),
});

export const TRINITY_FIELDS: Readonly<Record<string, Field>> = {
  mode: oneOf(MODES, "both", "which parts run"),
  project: str("Trinity-RFT", "project, in logs and paths"),
  name: str("rft", "run, in logs and paths"),
  checkpoint_root_dir: str("", "folder of the checkpoints; project and name are added"),
  continue_from_checkpoint: bool(true, "continue from the last checkpoint"),
  "algorithm.algorithm_type": oneOf(TYPES, "ppo", "algorithm; sets the other defaults of this section", {
    open: true,
  }),
  "algorithm.repeat_times": int(1, "rollouts per task", { min: 1 }),
  "algorithm.advantage_fn": str(null, "advantage function; null = the algorithm's"),
  "algorithm.kl_penalty_fn": oneOf(KL, null, "KL in the reward"),
  "algorithm.kl_loss_fn": oneOf(KL, null, "KL in the loss"),
  "algorithm.policy_loss_fn": str(null, "policy loss; null = the algorithm's"),
  "algorithm.loss_agg_mode": oneOf(AGG, null, "how token losses become one number"),
  "algorithm.bypass_old_logprobs": bool(true, "the sampler's log-probs serve as the old ones"),
  "algorithm.optimizer.lr": float(1e-6, "learning rate", { min: 0 }),
  "algorithm.optimizer.lr_warmup_steps": int(-1, "warm-up steps"),
  "algorithm.optimizer.lr_warmup_steps_ratio": float(0, "warm-up as a share of all steps", {
    min: 0,
    max: 1,
  }),
  "algorithm.optimizer.min_lr_ratio": float(0.01, "smallest learning rate, as a share of lr", {
    min: 0,
    max: 1,
  }),
  "algorithm.optimizer.lr_scheduler_type": oneOf(["constant", "cosine"], "constant", "learning-rate schedule"),
  "algorithm.optimizer.weight_decay": float(0.01, "decoupled weight decay"),
  "algorithm.optimizer.clip_grad": float(1, "largest gradient norm"),
  "model.model_path": str("", "model that is trained"),
  "model.critic_model_path": str("", "model of the critic; empty = model_path"),
  "model.temperature": float(1, "temperature", { min: 0 }),
  "model.top_p": float(1, "nucleus threshold", { min: 0, max: 1 }),
  "model.top_k": int(-1, "top-k; -1 = off", { min: -1 }),
  "model.max_model_len": int(null, "longest context; null = prompt and response"),
  "model.max_prompt_tokens": int(null, "longest prompt, in tokens"),
  "model.max_response_tokens": int(null, "longest response, in tokens"),
  "model.enable_prompt_truncation": bool(true, "truncate overlong prompts and leave them out of the loss"),
  "cluster.node_num": int(0, "machines; 0 = ask Ray", { min: 0 }),
  "cluster.gpu_per_node": int(0, "GPUs on each; 0 = ask Ray", { min: 0 }),
  "buffer.batch_size": int(1, "tasks per exploration step", { min: 1 }),
  "buffer.train_batch_size": int(0, "experiences per training step; 0 = batch_size x repeat_times", {
    min: 0,
  }),
  "buffer.total_epochs": int(1, "passes over the tasks", { min: 1 }),
  "buffer.total_steps": int(
    null,
    "exploration steps, of batch_size tasks each (a step of verl is sync_interval of them); replaces the epochs",
    { min: 1 },
  ),
  ...taskset("buffer.explorer_input.taskset"),
  ...taskset("buffer.explorer_input.tasksets[]"),
  ...taskset("buffer.explorer_input.eval_tasksets[]"),
  "explorer.eval_interval": int(100, "steps between evaluations; rounded to a multiple of sync_interval", {
    min: 1,
  }),
  "explorer.eval_on_startup": bool(true, "evaluate before the first step"),
  "explorer.runner_per_model": int(8, "workflow runners per engine", { min: 1 }),
  ...engine("explorer.rollout_model"),
  ...engine("explorer.auxiliary_models[]"),
  "synchronizer.sync_method": oneOf(
    ["nccl", "hccl", "checkpoint", "memory", "online", "offline"],
    "nccl",
    "how weights travel",
  ),
  "synchronizer.sync_style": oneOf(
    ["fixed", "explorer_driven", "trainer_driven", "fully_async", "dynamic_by_explorer", "dynamic_by_trainer"],
    "fixed",
    "who asks for new weights",
  ),
  "synchronizer.sync_interval": int(1, "steps between weight updates", { min: 1 }),
  "synchronizer.sync_offset": int(0, "steps that rollouts run ahead; 0 is what verl does", { min: 0 }),
  "synchronizer.sync_timeout": int(3600, "seconds to wait for the other side", { min: 1 }),
  "trainer.trainer_type": oneOf(["verl", "tinker"], "verl", "training engine"),
  "trainer.trainer_strategy": oneOf(["fsdp", "fsdp2", "megatron"], "fsdp2", "sharding"),
  "trainer.save_interval": int(0, "steps between checkpoints; 0 = only at the end", { min: 0 }),
  "trainer.total_steps": int(
    null,
    "training steps, of train_batch_size experiences each (a step of verl is sync_interval of them)",
    { min: 1 },
  ),
  "trainer.grad_clip": float(1, "largest gradient norm of the actor", { min: 0 }),
  "trainer.use_dynamic_bsz": bool(true, "fill passes by tokens instead of rows"),
  "trainer.max_token_len_per_gpu": int(null, "tokens per pass on one GPU"),
  "trainer.ulysses_sequence_parallel_size": int(1, "GPUs that share one sequence", { min: 1 }),
  "trainer.balance_batch": bool(true, "even out tokens between GPUs"),
  "trainer.use_remove_padding": bool(true, "pack sequences (new builder)"),
  "trainer.critic_warmup": int(0, "steps that train the critic alone (new builder)", { min: 0 }),
  "trainer.max_checkpoints_to_keep": int(0, "checkpoints kept; 0 = all", { min: 0 }),
  "trainer.trainer_config": any({}, "settings of verl under their own paths"),
  "monitor.monitor_type": oneOf(["tensorboard", "wandb", "mlflow"], "tensorboard", "where metrics go"),
  "algorithm.optimizer.betas": list(null, "decay of the two moments"),
};

/** The field of a path, list indexes ignored. */
export function trinityField(path: string): Field | undefined {
  return TRINITY_FIELDS[path.replace(/\.\d+(?=\.|$)/g, "[]")];
}
