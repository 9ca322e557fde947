/** Packed rollouts: the tokens of all trajectories end to end, in typed arrays. */

/** Fields of one number per token, under the names of the rollout files. */
export const TOKEN_FIELDS = [
  "token_rewards",
  "logprobs",
  "old_logprobs",
  "rollout_logprobs",
  "ref_logprobs",
  "values",
  "returns",
  "entropy",
  "sum_pi_squared",
  "advantages",
  "rollout_is_weights",
] as const;

/** One of {@link TOKEN_FIELDS}. */
export type TokenField = (typeof TOKEN_FIELDS)[number];

/** f32 is what the device takes; f64 is for float64 references. */
export type Precision = "f32" | "f64";
/** Numbers per token or row, in float32 or float64. */
export type Floats = Float32Array | Float64Array;

/** N trajectories with T tokens in all. */
export interface Rollouts {
  /** Tokens of row i are offsets[i] .. offsets[i+1]; [N+1]. */
  readonly offsets: Uint32Array;
  /** 1 = trained on, [T]. */
  readonly mask: Uint32Array;
  /** Outcome reward of each row, [N]; the sum of its token rewards where none is given. Absent: neither is given. */
  readonly rewards?: Floats | undefined;
  /** Rewards by name, [N] each. */
  readonly rewardComponents: Readonly<Record<string, Floats>>;
  /** Reward of the greedy rollout of each row's prompt, [N]. */
  readonly rewardBaselines?: Floats | undefined;
  /** Group of each row as an index of `groupNames`, [N]. Groups need not lie together. Absent: no row names one. */
  readonly groupOfRow?: Uint32Array | undefined;
  readonly groupNames: readonly string[];
  /** [T] each. */
  readonly tokens: { readonly [K in TokenField]?: Floats | undefined };
}

/** One trajectory, as a line of a rollouts file. Arrays are per token and equally long. */
export type RolloutRow = {
  readonly group?: string | number | undefined;
  readonly reward?: number | undefined;
  readonly rewards?: Readonly<Record<string, number>> | undefined;
  readonly reward_baseline?: number | undefined;
  /** Absent: all tokens are trained on. */
  readonly mask?: ArrayLike<number> | undefined;
} & { readonly [K in TokenField]?: ArrayLike<number> | undefined };
