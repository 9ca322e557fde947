/** Controllers of the KL coefficient: fixed, or adapted to a target. */
import { ConfigError } from "../../../leaves/errors.ts";

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
 * Moves the coefficient so that the KL approaches `target_kl`: by a factor within 1 +- 0.2 steps / horizon each step.
 * @throws {ConfigError} for a horizon that is not above 0
 * @see Ziegler et al. 2019, https://arxiv.org/abs/1909.08593
 */
export function adaptiveKlController(
  coef: number,
  options: { readonly target_kl: number; readonly horizon: number },
): KlController {
  const { target_kl, horizon } = options;
  if (!(horizon > 0))
    throw new ConfigError(`Cannot adapt the KL coefficient: horizon must be above 0 (${horizon}).`, {
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
