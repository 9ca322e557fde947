/** Settings of the rollout correction under their published names, the plan they amount to, and verl's presets. */
import { ConfigError } from "../../../leaves/errors.ts";
import { STATISTICS, type Statistic } from "./statistics.ts";

/** Settings as verl's `algorithm.rollout_correction`. */
export interface CorrectionConfig {
  /** Level of the importance weights; null = none. */
  readonly rollout_is?: "token" | "sequence" | null | undefined;
  /** Upper bound of the weights; `"lo_hi"` zeroes weights outside instead (IcePop). Default 2. */
  readonly rollout_is_threshold?: number | string | undefined;
  /** Divides the weights by their mean. */
  readonly rollout_is_batch_normalize?: boolean | undefined;
  /** Rejection options, comma-separated: `token_k1`, `seq_sum_k1`, `seq_mean_k3`, `seq_max_k2`, ...; null = none. */
  readonly rollout_rs?: string | null | undefined;
  /** One threshold for all options, or one each (comma-separated); `"lo_hi"` bounds the ratio of k1. */
  readonly rollout_rs_threshold?: number | string | null | undefined;
  /** The sampler's log-probs serve as the old ones. */
  readonly bypass_mode?: boolean | undefined;
  /** Loss of the bypass mode. */
  readonly loss_type?: "ppo_clip" | "reinforce" | undefined;
}

/** A statistic with its bounds. */
export interface Rejection {
  readonly statistic: Statistic;
  /** Kept where low <= statistic <= high. */
  readonly low: number;
  readonly high: number;
}

export interface CorrectionPlan {
  readonly level?: "token" | "sequence" | undefined;
  readonly bounds: { readonly low: number; readonly high: number; readonly icepop: boolean };
  readonly batchNormalize: boolean;
  readonly rejections: readonly Rejection[];
}

/** Names of all rejection options. */
export const REJECTIONS: readonly string[] = STATISTICS.map(({ name }) => name);

/** @throws {ConfigError} for a level, option or threshold that is not known. */
export function planCorrection(config: CorrectionConfig): CorrectionPlan {
  const level = config.rollout_is ?? undefined;
  if (level !== undefined && level !== "token" && level !== "sequence")
    throw new ConfigError(
      `Cannot correct rollouts: rollout_is must be token, sequence or null (${JSON.stringify(level)}).`,
      { path: "rollout_is" },
    );
  return {
    level,
    bounds: weightBounds(config.rollout_is_threshold ?? 2),
    batchNormalize: config.rollout_is_batch_normalize === true,
    rejections: rejectionsOf(config),
  };
}

function weightBounds(threshold: number | string): CorrectionPlan["bounds"] {
  const [low, high] = numbersOf(threshold, "rollout_is_threshold");
  if (high !== undefined) return { low, high, icepop: true };
  return { low: 1 / low, high: low, icepop: false };
}

function rejectionsOf({ rollout_rs, rollout_rs_threshold }: CorrectionConfig): Rejection[] {
  if (!rollout_rs) return [];
  const names = [...new Set(rollout_rs.split(",").map((name) => name.trim()))];
  if (rollout_rs_threshold === undefined || rollout_rs_threshold === null)
    throw new ConfigError("Cannot reject rollouts: rollout_rs is set, and rollout_rs_threshold is not. Set both.", {
      path: "rollout_rs_threshold",
    });
  const thresholds = String(rollout_rs_threshold).split(",");
  if (thresholds.length !== 1 && thresholds.length !== names.length)
    throw new ConfigError(
      `Cannot reject rollouts: rollout_rs_threshold needs 1 or ${names.length} values (${rollout_rs_threshold}).`,
      { path: "rollout_rs_threshold" },
    );
  return names.map((name, i) => rejectionOf(name, thresholds[thresholds.length === 1 ? 0 : i]!));
}

function rejectionOf(name: string, threshold: string): Rejection {
  const statistic = STATISTICS.find((each) => each.name === name);
  if (statistic) return { statistic, ...statisticBounds(statistic, threshold) };
  throw new ConfigError(
    `Cannot reject rollouts: there is no option ${JSON.stringify(name)}. Use ${REJECTIONS.join(", ")}.`,
    { path: "rollout_rs" },
  );
}

/** Bounds of the statistic: of a signed divergence from those of the ratio, of others from above only. */
function statisticBounds({ name, divergence }: Statistic, threshold: string): { low: number; high: number } {
  const [low, high] = numbersOf(threshold, "rollout_rs_threshold");
  if (divergence.isSigned)
    return { low: high === undefined ? -Math.log(low) : Math.log(low), high: Math.log(high ?? low) };
  if (high === undefined) return { low: Number.NEGATIVE_INFINITY, high: low };
  throw new ConfigError(
    `Cannot bound ${name} from below: its statistic is never negative (${threshold}). Give one number.`,
    { path: "rollout_rs_threshold" },
  );
}

/** `x` or `lo_hi`, all above 0. */
function numbersOf(threshold: number | string, path: string): [number, number | undefined] {
  const [low = 0, high, ...more] = String(threshold).split("_").map(Number);
  const isOrdered = high === undefined || low <= high;
  if (low > 0 && isOrdered && more.length === 0) return [low, high];
  throw new ConfigError(
    `Cannot read the threshold ${JSON.stringify(threshold)}: it is not a number above 0, nor two as "lo_hi".`,
    { path },
  );
}

const GEOMETRIC = { rollout_rs: "seq_mean_k1", rollout_rs_threshold: "0.999_1.001" };
const K3 = { rollout_rs: "seq_mean_k3", rollout_rs_threshold: 0.01 };
const weights = (level: "token" | "sequence"): CorrectionConfig => ({
  rollout_is: level,
  rollout_is_threshold: 2,
});
const ICEPOP: CorrectionConfig = { rollout_is: "token", rollout_is_threshold: "0.5_5.0" };
const NONE: CorrectionConfig = { rollout_is: null, rollout_rs: null };
const CLIP: CorrectionConfig = { ...NONE, bypass_mode: true, loss_type: "ppo_clip" };
const REINFORCE: CorrectionConfig = { ...NONE, bypass_mode: true, loss_type: "reinforce" };

/**
 * verl's presets by name.
 * @see verl RolloutCorrectionConfig
 */
export const CORRECTION_PRESETS: Readonly<Record<string, CorrectionConfig>> = {
  disabled: NONE,
  decoupled_token_is: { ...NONE, ...weights("token") },
  decoupled_seq_is: { ...NONE, ...weights("sequence") },
  decoupled_seq_is_rs: { ...weights("sequence"), rollout_rs: "seq_sum_k1", rollout_rs_threshold: "0.5_2.0" },
  decoupled_geo_rs: { ...NONE, ...GEOMETRIC },
  decoupled_geo_rs_seq_tis: { ...weights("sequence"), ...GEOMETRIC },
  decoupled_geo_rs_token_tis: { ...weights("token"), ...GEOMETRIC },
  decoupled_k3_rs: { ...NONE, ...K3 },
  decoupled_k3_rs_seq_tis: { ...weights("sequence"), ...K3 },
  decoupled_k3_rs_token_tis: { ...weights("token"), ...K3 },
  decoupled_token_icepop: { ...NONE, ...ICEPOP },
  bypass_ppo_clip: CLIP,
  bypass_ppo_clip_geo_rs: { ...CLIP, ...GEOMETRIC },
  bypass_ppo_clip_k3_rs: { ...CLIP, ...K3 },
  bypass_pg_is: { ...REINFORCE, ...weights("sequence") },
  bypass_pg_geo_rs: { ...REINFORCE, ...GEOMETRIC },
  bypass_pg_geo_rs_seq_tis: { ...REINFORCE, ...weights("sequence"), ...GEOMETRIC },
  bypass_pg_geo_rs_token_tis: { ...REINFORCE, ...weights("token"), ...GEOMETRIC },
  bypass_pg_token_icepop: { ...REINFORCE, ...ICEPOP },
};

/**
 * The settings of a published preset.
 * @throws {ConfigError} for a name that is not a preset
 */
export function correctionPreset(name: string): CorrectionConfig {
  const preset = Object.hasOwn(CORRECTION_PRESETS, name) ? CORRECTION_PRESETS[name] : undefined;
  if (preset) return preset;
  throw new ConfigError(
    `Cannot correct rollouts: there is no preset ${JSON.stringify(name)}. Use ${Object.keys(CORRECTION_PRESETS).join(", ")}.`,
    { path: "preset" },
  );
}
