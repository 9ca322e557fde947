/** KL divergence to a reference policy, estimated from log-probs, and the controllers of its coefficient. */
import { ConfigError } from "../../errors.ts";

const MAX_LOG_RATIO = 20;
/** verl clips the k3 estimate here; beyond it the token gets no gradient. */
export const K3_BOUND = 10;

export interface Estimate {
  readonly value: number;
  /** Derivative in the current log-prob. */
  readonly slope: number;
}

/** Codes as the shaders know them; + {@link STRAIGHT_THROUGH} takes the slope of k2 whatever the value. */
export const KL_CODES: Readonly<Record<string, number>> = {
  kl: 1,
  k1: 1,
  abs: 2,
  mse: 3,
  k2: 3,
  low_var_kl: 4,
  k3: 4,
};
export const STRAIGHT_THROUGH = 8;

/** Published names: `kl`, `k1`, `abs`, `mse`, `k2`, `low_var_kl`, `k3`, and each with a `+`. */
export const KL_NAMES: readonly string[] = Object.keys(KL_CODES).flatMap((name) => [name, `${name}+`]);

/** @throws ConfigError for a name nobody published. */
export function klCode(name: string): number {
  const base = name.endsWith("+") ? name.slice(0, -1) : name;
  if (!Object.hasOwn(KL_CODES, base))
    throw new ConfigError(
      `Cannot estimate the KL divergence as ${JSON.stringify(name)}: use ${KL_NAMES.join(", ")}.`,
      {
        path: "kl_loss_type",
      },
    );
  return KL_CODES[base]! + (base === name ? 0 : STRAIGHT_THROUGH);
}

/**
 * One token's KL estimate and its slope.
 * @param x logprob - refLogprob
 * @param bound where k3 is cut off: {@link K3_BOUND} in verl, Infinity in TRL
 * @see verl core_algos.kl_penalty
 */
export function klEstimate(code: number, x: number, bound: number = K3_BOUND): Estimate {
  const base = baseEstimate(code & 7, x, bound);
  return (code & STRAIGHT_THROUGH) !== 0 ? { value: base.value, slope: x } : base;
}

function baseEstimate(kind: number, x: number, bound: number): Estimate {
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

/** Chooses the KL coefficient from step to step. A plain value: `update` returns the next one. */
export interface KlController {
  readonly coef: number;
  /** @param kl mean KL of the step; @param steps trajectories in it */
  update(kl: number, steps: number): KlController;
}

/** The coefficient never moves. */
export function fixedKlController(coef: number): KlController {
  const controller: KlController = { coef, update: () => controller };
  return controller;
}

/**
 * Moves the coefficient towards `target_kl`, by at most 20% of steps / horizon.
 * @see Ziegler et al. 2019, https://arxiv.org/abs/1909.08593
 */
export function adaptiveKlController(
  coef: number,
  options: { readonly target_kl: number; readonly horizon: number },
): KlController {
  const { target_kl, horizon } = options;
  if (!(horizon > 0))
    throw new ConfigError(`Cannot adapt the KL coefficient as horizon must be above 0: ${horizon}.`, {
      path: "algorithm.kl_ctrl.horizon",
    });
  return {
    coef,
    update(kl, steps) {
      const error = Math.min(Math.max(kl / target_kl - 1, -0.2), 0.2);
      return adaptiveKlController(coef * (1 + (error * steps) / horizon), options);
    },
  };
}
