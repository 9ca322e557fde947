/** Settings that verl, or the unified loop on it, would refuse: reported before a cluster starts. */

import type { YamlValue } from "../yaml/tree.ts";
import type { Finding, Rule } from "./rules.ts";

type Read = (path: string) => YamlValue | undefined;
const ACTOR = "actor_rollout_ref.actor";
const ROLLOUT = "actor_rollout_ref.rollout";

const error = (path: string, message: string): Finding => ({ severity: "error", path, message });
const warning = (path: string, message: string): Finding => ({ severity: "warning", path, message });
const rule = (check: Rule["check"]): Rule => ({ backends: ["verl"], check });
const readyRule = (check: Rule["check"]): Rule => ({ backends: ["verl"], onlyReady: true, check });
const num = (read: Read, path: string) => {
  const value = read(path);
  return typeof value === "number" ? value : undefined;
};

export const VERL_RULES: readonly Rule[] = [
  rule((read) =>
    read(`${ROLLOUT}.mode`) === "async"
      ? undefined
      : error(
          `${ROLLOUT}.mode`,
          `Cannot roll out: the unified loop needs ${ROLLOUT}.mode=async (${read(`${ROLLOUT}.mode`)}).`,
        ),
  ),
  rule((read) => {
    if (read("rllm.async_training.enable") !== true) return undefined;
    const [group, mini] = [read("rllm.async_training.fwd_bwd_group_size"), read("rllm.async_training.mini_batch_size")];
    if (group === null || group === mini) return undefined;
    return error(
      "rllm.async_training.fwd_bwd_group_size",
      `Cannot split a mini-batch on verl: rllm.async_training.fwd_bwd_group_size=${group} must equal mini_batch_size=${mini}. Set it to null.`,
    );
  }),
  rule((read) =>
    read("rllm.async_training.partial_rollout") === true && read("rllm.remote_runtime.enabled") === true
      ? error(
          "rllm.async_training.partial_rollout",
          "Cannot interrupt rollouts: the remote runtime cannot continue them. Set rllm.async_training.partial_rollout=false.",
        )
      : undefined,
  ),
  rule((read) => {
    const path = ["reward_model.enable", "reward.reward_model.enable"].find((key) => read(key) === true);
    return path
      ? error(
          path,
          `Cannot use ${path}=true: rewards come from the loop's evaluator. Score there, and set it to false.`,
        )
      : undefined;
  }),
  rule((read) => {
    const mode = read("rllm.algorithm.router_replay");
    const strategy = read(`${ACTOR}.strategy`);
    if (mode === "disabled" || mode === null || ["megatron", "veomni"].includes(String(strategy))) return undefined;
    return error(
      "rllm.algorithm.router_replay",
      `Cannot replay expert routing (${mode}): only verl's megatron and veomni engines can (${ACTOR}.strategy=${strategy}). Choose model_engine=megatron.`,
    );
  }),
  readyRule((read) => {
    const [batch, mini] = [num(read, "data.train_batch_size"), num(read, `${ACTOR}.ppo_mini_batch_size`)];
    if (batch === undefined || mini === undefined || batch >= mini) return undefined;
    return error(
      `${ACTOR}.ppo_mini_batch_size`,
      `Cannot make mini-batches of ${ACTOR}.ppo_mini_batch_size=${mini}: it is more than the ${batch} prompts of a batch ` +
        "(rllm.data.train_batch_size). Set training.num_minibatches=1, or a smaller number.",
    );
  }),
  rule((read) => {
    const [batch, n] = [num(read, "data.train_batch_size"), num(read, `${ROLLOUT}.n`)];
    const gpus = (num(read, "trainer.nnodes") ?? 1) * (num(read, "trainer.n_gpus_per_node") ?? 1);
    if (batch === undefined || n === undefined || read(`${ACTOR}.use_dynamic_bsz`) === true) return undefined;
    if ((batch * n) % gpus === 0) return undefined;
    return error(
      "data.train_batch_size",
      `Cannot spread ${batch} prompts x ${n} rollouts = ${batch * n} rows: they do not divide by ${gpus} GPUs ` +
        "(trainer.nnodes x trainer.n_gpus_per_node). Change one of the four, or set use_dynamic_bsz=true.",
    );
  }),
  rule((read) => {
    const [sp, packs] = [
      num(read, `${ACTOR}.ulysses_sequence_parallel_size`) ?? 1,
      read("actor_rollout_ref.model.use_remove_padding"),
    ];
    if (sp <= 1 || packs === true) return undefined;
    return error(
      `${ACTOR}.ulysses_sequence_parallel_size`,
      "Cannot split sequences over GPUs: that needs actor_rollout_ref.model.use_remove_padding=true. Set it.",
    );
  }),
  readyRule((read) => {
    const [both, perGpu] = [read(`${ACTOR}.ppo_micro_batch_size`), read(`${ACTOR}.ppo_micro_batch_size_per_gpu`)];
    const isDynamic = read(`${ACTOR}.use_dynamic_bsz`) === true;
    if (both != null && perGpu != null) {
      return error(
        `${ACTOR}.ppo_micro_batch_size`,
        `Cannot set both ${ACTOR}.ppo_micro_batch_size and _per_gpu. Keep the second.`,
      );
    }
    if (isDynamic || both != null || perGpu != null) return undefined;
    return error(
      `${ACTOR}.ppo_micro_batch_size_per_gpu`,
      `Cannot size the passes: verl needs ${ACTOR}.use_dynamic_bsz=true or ${ACTOR}.ppo_micro_batch_size_per_gpu. Neither is set. Set the first.`,
    );
  }),
  rule((read) =>
    read(`${ROLLOUT}.val_kwargs.do_sample`) === true && num(read, `${ROLLOUT}.val_kwargs.temperature`) === 0
      ? warning(
          `${ROLLOUT}.val_kwargs.temperature`,
          `${ROLLOUT}.val_kwargs.do_sample=true with temperature 0 still takes the most likely token.`,
        )
      : undefined,
  ),
];
