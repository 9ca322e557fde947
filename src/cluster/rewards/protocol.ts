/** The protocol between a cluster's workers and the service: JSON over HTTP, see docs/service.md. */
import type { TerminationReason } from "../../train/data/types.ts";

/** Version in `GET /health`; a worker refuses a service of another version. */
export const PROTOCOL_VERSION = 1;

/** Position of a task of the run: an index into the tasks of its split. */
export interface TaskPlace {
  readonly split: "train" | "val";
  readonly index: number;
}

/** One reply to judge. */
export interface RewardItem {
  /** Absent: the item names no task; it is answered with the error. */
  readonly task: TaskPlace | { readonly error: string };
  /** The whole reply as text, without special tokens. */
  readonly solution: string;
}

/** Rewards by name, those of `gdpo_reward_keys`. Absent for other estimators. */
export type Components = Readonly<Record<string, number>>;

/** The answer to `POST /rewards` holds one per item, in their order. */
export type RewardResult =
  | {
      readonly score: number;
      readonly is_correct: boolean;
      readonly metrics: Readonly<Record<string, number>>;
      readonly components?: Components | undefined;
    }
  | { readonly error: string };

/** Sampling parameters of the cluster, under its own names; the service reads temperature, top_p and top_k. */
export type ClusterParams = Readonly<Record<string, unknown>>;

/** How many trajectories of a rollout the cluster's trainer takes: one, or several that share their reward. */
export const TAKES = ["one", "same_reward"] as const;
export type Takes = (typeof TAKES)[number];

/** Starts a rollout. */
export interface RolloutRequest {
  readonly task: TaskPlace;
  readonly rollout_index: number;
  readonly step: number;
  readonly validate: boolean;
  readonly sampling_params: ClusterParams;
  /** Longest prompt and longest response of a row, tokens; absent: those of the run. */
  readonly max_prompt_length?: number | undefined;
  readonly max_response_length?: number | undefined;
  /** Absent: any number, with any rewards. */
  readonly takes?: Takes | undefined;
}

/** The cluster's sample for a call. */
export interface CallResult {
  readonly call: number;
  readonly token_ids: readonly number[];
  /** One per token; null where the cluster keeps none. */
  readonly log_probs: readonly number[] | null;
  readonly stop_reason: string | null;
}

/** A model call for the cluster. */
export interface ClusterCall {
  /** Unique in its rollout. */
  readonly call: number;
  readonly prompt_ids: readonly number[];
  /** Those of the rollout's request, with `max_tokens` and `stop_token_ids` of this call. */
  readonly sampling_params: ClusterParams;
}

/** One row of training: a prompt, and everything after it. The lists about the response are equally long. */
export interface ClusterTrajectory {
  readonly name: string;
  readonly prompt_ids: readonly number[];
  readonly response_ids: readonly number[];
  /** 1 = sampled by the model and trained on. */
  readonly response_mask: readonly (0 | 1)[];
  /** 0 where the mask is 0; null where the cluster sent none. */
  readonly response_logprobs: readonly number[] | null;
  readonly reward: number;
  /** Model calls in this row. */
  readonly num_turns: number;
  readonly is_correct: boolean;
  readonly metrics: Readonly<Record<string, number>>;
  readonly components?: Components | undefined;
}

/** The answer to `POST /rollouts`. */
export type RolloutReply =
  | { readonly action: "generate"; readonly calls: readonly ClusterCall[] }
  /** Nothing to sample yet: ask again with the next number. */
  | { readonly action: "wait" }
  | { readonly action: "done"; readonly trajectories: readonly ClusterTrajectory[] }
  | { readonly action: "error"; readonly message: string; readonly termination_reason: TerminationReason };
