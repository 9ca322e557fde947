/** KL divergence to a reference policy, estimated token by token from log-probs. */
import { ConfigError } from "../../errors.ts";

const MAX_LOG_RATIO = 20;
/** verl clips the k3 estimate here; beyond it the token gets no gradient. */
export const K3_BOUND = 10;

/** A token's KL estimate and its slope in the log-prob. */
export interface KlEstimate {
  readonly value: number;
  /** Derivative in the current log-prob. */
  readonly slope: number;
}

/** Codes of the shaders (loss/policy.wgsl, loss/kl_values.wgsl); {@link STRAIGHT_THROUGH} is added for a `+`. */
const KL_CODES = new Map([
  ["kl", 1],
  ["k1", 1],
  ["abs", 2],
  ["mse", 3],
  ["k2", 3],
  ["low_var_kl", 4],
  ["k3", 4],
]);
/** Takes the slope of k2 with the value of the estimate. */
const STRAIGHT_THROUGH = 8;

/** Published names: `kl`, `k1`, `abs`, `mse`, `k2`, `low_var_kl`, `k3`, and each with a `+`. */
export const KL_NAMES: readonly string[] = [...KL_CODES.keys()].flatMap((name) => [name, `${name}+`]);

/**
 * The number by which kernels know a KL estimate.
 * @throws {ConfigError} for a name that is not published
 */
export function klCode(name: string): number {
  const base = name.endsWith("+") ? name.slice(0, -1) : name;
  const code = KL_CODES.get(base);
  if (code !== undefined) return base === name ? code : code + STRAIGHT_THROUGH;
  throw new ConfigError(
    `Cannot estimate the KL divergence: there is no estimator ${JSON.stringify(name)}. Use ${KL_NAMES.join(", ")}.`,
    { path: "kl_loss_type" },
  );
}

/**
 * One token's KL estimate and its slope: k1 = x, abs = |x|, k2 = x^2 / 2, k3 = e^-x - 1 + x.
 * @param x logprob - refLogprob; k3 bounds it to [-20, 20] and has no gradient beyond
 * @param bound where k3 is cut off: {@link K3_BOUND} in verl, Infinity in TRL
 * @see http://joschu.net/blog/kl-approx.html, verl core_algos.kl_penalty
 */
export function klEstimate(code: number, x: number, bound: number = K3_BOUND): KlEstimate {
  const base = baseEstimate(code & 7, x, bound);
  return (code & STRAIGHT_THROUGH) !== 0 ? { value: base.value, slope: x } : base;
}

function baseEstimate(kind: number, x: number, bound: number): KlEstimate {
  if (kind === 1) return { value: x, slope: 1 };
  if (kind === 2) return { value: Math.abs(x), slope: Math.sign(x) };
  if (kind === 3) return { value: 0.5 * x * x, slope: x };
  const k = Math.min(Math.max(-x, -MAX_LOG_RATIO), MAX_LOG_RATIO);
  const v = Math.expm1(k) - k;
  return {
    value: Math.min(v, bound),
    slope: v <= bound && Math.abs(x) <= MAX_LOG_RATIO ? -Math.expm1(k) : 0,
  };
}
