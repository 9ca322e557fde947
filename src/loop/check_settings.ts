/** Refuses, before anything runs, names and arguments that would fail in the first step. */
import type { Tokenizer } from "../contract/text.ts";
import { ConfigError } from "../errors.ts";
import type { EstimateAdvantages } from "./contract.ts";
import type { LoopSettings } from "./settings.ts";
import { groupings, rejections } from "./stages/hooks.ts";
import { lossSettings } from "./stages/loss_settings.ts";
import { REJECTION_MODES } from "./stages/reject.ts";
import { algorithmOf } from "./stages/roles.ts";

/**
 * Checks the estimator, the loss and their arguments for the run and for each role, and the names of hooks.
 * @throws {ConfigError} that names the setting and what it could be.
 */
export function checkSettings(settings: LoopSettings, estimate: EstimateAdvantages): void {
  const { algorithm, rejection_sample } = settings;
  const { traj_grouping_hook, traj_group_adv_estimator_map } = algorithm;
  if (traj_grouping_hook !== null) groupings.find(traj_grouping_hook);
  const { mode } = rejection_sample;
  if (mode !== null && !REJECTION_MODES.includes(mode)) rejections.find(mode);
  for (const role of ["", ...Object.keys(traj_group_adv_estimator_map)]) {
    const { estimator, estimator_args, loss, loss_args } = algorithmOf(role, algorithm);
    estimate.check?.(estimator, estimator_args);
    lossSettings(loss, { algorithm, loss_args });
  }
}

/**
 * @throws {ConfigError} when thinking is disabled but the model's chat template has no switch for it.
 */
export function checkThinking({ disable_thinking }: LoopSettings, tokenizer: Tokenizer | undefined): void {
  if (!disable_thinking || tokenizer?.chatTemplate?.includes("enable_thinking")) return;
  throw new ConfigError(
    "Cannot disable thinking: the model's chat template has no enable_thinking. Remove the setting, or give another template with model.chat_template.",
    { path: "rllm.disable_thinking" },
  );
}
