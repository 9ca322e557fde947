/** Portable settings of the way from episodes to trained rows: what is kept, filtered, grouped and named. */
import { bool, each, int, oneOf, str } from "../field.ts";

const TEXT = {
  "rllm.disable_thinking": bool(false, "suppress thinking tokens in responses", {
    loop: true,
    why: "passes enable_thinking=false to the chat template",
  }),
  "rllm.accumulate_reasoning": bool(false, "keep the reasoning of earlier steps in the prompt", {
    note: "true also keeps an episode's turns in one training row where a chat template rewrites earlier turns.",
    loop: true,
  }),
  "rllm.filter_token_mismatch": bool(true, "leave out trajectories whose tokens and log-probs do not match", {
    note: "false stops the run at such a trajectory. rLLM has the key and never reads it; its Tinker backend always drops them.",
    loop: true,
    on: "acts acts logging dropped",
    why: { verl: "tokens and log-probs come from verl's own sampler" },
  }),
} as const;

/** Choice of the trajectories that are trained on: where verl or Trinity trains, its own trainer decides. */
const CHOICE = each(
  { on: "acts acts refused refused", why: { verl: "verl's trainer forms its own batches" } },
  {
    "rllm.mask_truncated_samples": bool(false, "leave truncated trajectories out of the loss", { loop: true }),

    "rllm.compact_filtering.enable": bool(false, "leave out trajectories by their termination reason", {
      loop: true,
    }),
    "rllm.compact_filtering.mask_max_prompt_length_exceeded": bool(true, "the prompt was too long", {
      loop: true,
    }),
    "rllm.compact_filtering.mask_max_response_length_exceeded": bool(true, "the response was too long", {
      loop: true,
    }),
    "rllm.compact_filtering.mask_env_done": bool(false, "the environment was done", { loop: true }),
    "rllm.compact_filtering.mask_max_turns_exceeded": bool(true, "too many turns", { loop: true }),
    "rllm.compact_filtering.mask_timeout": bool(true, "out of time", { loop: true }),
    "rllm.compact_filtering.mask_unknown": bool(false, "no reason given", { loop: true }),
    "rllm.compact_filtering.mask_error": bool(true, "an error", { loop: true }),

    "rllm.rejection_sample.enable": bool(false, "drop or collect batches by how many tasks were partly solved", {
      loop: true,
    }),
    "rllm.rejection_sample.mode": oneOf(
      ["none", "episode", "group"],
      null,
      "what is rejected; null = episode when enabled, else none",
      { open: true, note: "group is named by the guide and not implemented in rLLM.", loop: true },
    ),
    "rllm.rejection_sample.multiplier": int(1, "factor on the prompts per batch, so that some can be rejected", {
      min: 1,
      loop: true,
    }),
    "rllm.rejection_sample.min_partial_solve_tasks": int(1, "partly solved tasks a batch needs", {
      min: 0,
      loop: true,
    }),
    "rllm.rejection_sample.min_trajs_per_group": int(2, "smallest group that trains", {
      min: 1,
      note: "Applies in every mode: with a smaller rollout.n nothing trains, and a warning says so.",
      loop: true,
    }),
    "rllm.rejection_sample.filter_uniform_groups": bool(false, "drop groups whose rewards are all equal", {
      loop: true,
    }),

    "rllm.transform.impute_missing_names": bool(true, "name unnamed trajectories by their place in the episode", {
      loop: true,
    }),
    "rllm.transform.default_traj_name": str("default_traj_name", "the name that counts as unnamed", {
      loop: true,
    }),
    "rllm.transform.drop_unnamed_traj": bool(false, "drop unnamed trajectories instead", { loop: true }),
  },
);

export const GROUP_FIELDS = { ...TEXT, ...CHOICE } as const;
