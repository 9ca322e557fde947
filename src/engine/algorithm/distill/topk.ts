/** Distillation losses over the teacher's most likely tokens: the KL between two truncated distributions, at one place. */
import { ConfigError } from "../../../leaves/errors.ts";

/** Published in verl, but for the tail of the reverse KL. */
export const TOPK_MODES = [
  "forward_kl_topk",
  "forward_kl_topk_tail",
  "reverse_kl_topk",
  "reverse_kl_topk_tail",
] as const;
/** One of {@link TOPK_MODES}. */
export type TopkMode = (typeof TOPK_MODES)[number];

/** Whether a `distillation_loss.loss_mode` compares distributions, not the sampled tokens alone. */
export function isTopkMode(mode: string): mode is TopkMode {
  return TOPK_MODES.some((each) => each === mode);
}

/** How the losses of {@link topkPlace} are bounded, under verl's names. */
export interface TopkSettings {
  /** Smallest log-prob; null: none. */
  readonly log_prob_min_clamp: number | null;
  /** Bound of a place's loss on both sides; null: none. */
  readonly loss_max_clamp: number | null;
}

/** Bound in f32 where no setting bounds a number. */
const UNBOUNDED = 3e38;

/** Constants of a mode and its settings that the kernel and the reference read. */
export interface TopkPlan {
  /** 0: forward KL, 1: reverse KL. */
  readonly reverse: number;
  /** 1: what is outside the top k counts as one more token. */
  readonly tail: number;
  readonly log_min: number;
  readonly most: number;
}

/**
 * Returns how a `loss_mode` over top tokens is computed, with its bounds.
 * @throws {ConfigError} for a mode that is not published
 */
export function topkPlan(mode: string, { log_prob_min_clamp, loss_max_clamp }: TopkSettings): TopkPlan {
  if (!isTopkMode(mode))
    throw new ConfigError(
      `Cannot distil: there is no loss_mode ${JSON.stringify(mode)} over top tokens. Use ${TOPK_MODES.join(", ")}.`,
      { path: "distillation.distillation_loss.loss_mode" },
    );
  return {
    reverse: Number(mode.startsWith("reverse")),
    tail: Number(mode.endsWith("_tail")),
    log_min: log_prob_min_clamp ?? -UNBOUNDED,
    most: loss_max_clamp ?? UNBOUNDED,
  };
}

/** Smallest mass outside the top k inside a logarithm: verl's `tail_mass_eps`. */
export const TAIL_EPSILON = 1e-6;

/** The loss of one place. */
export interface TopkLoss {
  readonly value: number;
  /** The student's probability of the teacher's top tokens together. */
  readonly mass: number;
}

/**
 * The loss of one place from log q (student) and log p (teacher) of the teacher's k likeliest tokens, in float64:
 *
 *     forward   sum_k p (log p - log q)           tail  + p' (log p' - log q')
 *     reverse   sum_k q (log q - log p)           tail  + q' (log q' - log p')
 *
 * where p' and q' are the masses outside the top k. Without the tail the two sums of probabilities differ from 1, and a
 * value of 0 or less counts as 0, without a gradient; a value beyond `most` has none either.
 * @param slopes [k], filled with d(value)/d(log q)
 * @see verl 0.9.1, verl/trainer/distillation/fsdp/losses.py compute_forward_kl_topk; the tail: tail_kl.py after it;
 * the reverse form: the branch that they come from
 */
export function topkPlace(
  student: ArrayLike<number>,
  teacher: ArrayLike<number>,
  { plan, slopes }: { plan: TopkPlan; slopes: { [k: number]: number; readonly length: number } },
): TopkLoss {
  const { reverse, tail, log_min, most } = plan;
  let [value, mass, teacherMass] = [0, 0, 0];
  for (let k = 0; k < slopes.length; k++) {
    mass += Math.exp(student[k]!);
    teacherMass += Math.exp(teacher[k]!);
    const [q, p] = [Math.max(student[k]!, log_min), Math.max(teacher[k]!, log_min)];
    const weight = Math.exp(reverse ? q : p);
    value += weight * (reverse ? q - p : p - q);
    slopes[k] = student[k]! < log_min ? 0 : reverse ? weight * (q - p + 1) : -weight;
  }
  const rest = tail ? tailTerm({ mass, teacherMass, reverse }) : { value: 0, slope: 0 };
  value += rest.value;
  const hasSlope = (tail === 1 || value > 0) && Math.abs(value) <= most;
  for (let k = 0; k < slopes.length; k++) slopes[k] = hasSlope ? slopes[k]! + rest.slope * Math.exp(student[k]!) : 0;
  const bounded = tail ? value : Math.max(value, 0);
  return { value: Math.min(Math.max(bounded, -most), most), mass };
}

/** The term of the tail; `slope` is its derivative in the student's mass, which times q is that in log q. */
function tailTerm(tail: { mass: number; teacherMass: number; reverse: number }): { value: number; slope: number } {
  const q = Math.min(Math.max(1 - tail.mass, TAIL_EPSILON), 1);
  const isActive = 1 - tail.mass >= TAIL_EPSILON;
  if (tail.reverse) {
    const logRatio = Math.log(q) - Math.log(Math.min(Math.max(1 - tail.teacherMass, TAIL_EPSILON), 1));
    return { value: q * logRatio, slope: isActive ? -(logRatio + 1) : 0 };
  }
  const p = Math.min(Math.max(1 - tail.teacherMass, 0), 1);
  const value = p > 0 ? p * (Math.log(p) - Math.log(q)) : 0;
  return { value, slope: isActive ? p / q : 0 };
}
