/** The estimators and losses that a recipe can take. */
import { estimatorNames } from "../../../src/engine/algorithm/advantage/estimators.ts";
import { lossNames } from "../../../src/engine/algorithm/loss/losses.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import type { LoopSettings } from "../../../src/train/loop/settings.ts";
import { estimateAdvantages } from "../../../src/train/loop/stages/estimate.ts";
import { lossSettings } from "../../../src/train/loop/stages/loss_settings.ts";

/** By setting: the names that need nothing which a run of these settings lacks. */
export function choicesFor({ algorithm }: LoopSettings): Readonly<Record<string, readonly string[]>> {
  const estimates = (name: string) => estimateAdvantages(...EXAMPLE, { name, ...OPTIONS });
  return {
    // The plain name means rLLM's estimator, where it has one of its own.
    "rllm.algorithm.adv_estimator": estimatorNames().filter(
      (name) => !name.startsWith("rllm.") && works(() => estimates(name)),
    ),
    "rllm.algorithm.loss_fn": lossNames().filter((name) =>
      works(() => lossSettings(name, { algorithm, loss_args: {} })),
    ),
  };
}

/** Two groups of two attempts: what each trajectory of a run has, and no more. */
const EXAMPLE = [Float32Array.of(1, 0, 0, 1), Uint32Array.of(0, 0, 1, 1)] as const;
const OPTIONS = {
  norm_adv_by_std_in_grpo: true,
  settings: {},
  lengths: Uint32Array.of(1, 2, 1, 2),
  baselines: Float32Array.of(0, 0, 1, 1),
};

function works(use: () => unknown): boolean {
  try {
    use();
    return true;
  } catch (error) {
    if (error instanceof ConfigError || error instanceof RangeError) return false;
    throw error;
  }
}
