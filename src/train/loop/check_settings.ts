/** Refuses, before anything runs, names and arguments that would fail in the first step. */

import type { Backend } from "../../engine/contract/backend.ts";
import type { Tokenizer } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { aggregationFinding } from "../config/rules/aggregation.ts";
import { gdpoFinding } from "../config/rules/gdpo.ts";
import { greedyFinding } from "../config/rules/remax.ts";
import type { Finding } from "../config/rules/rules.ts";
import { getAt, type Tree, type YamlValue } from "../config/yaml/tree.ts";
import type { EstimateAdvantages } from "./contract.ts";
import { algorithmOf } from "./roles.ts";
import type { LoopSettings } from "./settings.ts";
import { playsGreedy } from "./stages/greedy.ts";
import { groupings, rejections } from "./stages/hooks.ts";
import { lossSettings } from "./stages/loss_settings.ts";
import { REJECTION_MODES } from "./stages/reject.ts";

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
    if (estimator === "gdpo") refuse(gdpoFinding(readerOf(settings), estimator_args));
    estimate.check?.(estimator, estimator_args);
    lossSettings(loss, { algorithm, loss_args });
  }
  follow(aggregationFinding, settings);
  if (playsGreedy(settings)) follow(greedyFinding, settings);
}

/** A rule of configurations, for programs and for roles with an estimator of their own. */
function follow(
  rule: (read: (path: string) => YamlValue | undefined) => Finding | undefined,
  settings: LoopSettings,
): void {
  refuse(rule(readerOf(settings)));
}

function readerOf(settings: LoopSettings): (path: string) => YamlValue | undefined {
  return (path) => getAt(settings as unknown as Tree, path.replace(/^rllm\./, ""));
}

function refuse(found: Finding | undefined): void {
  if (found) throw new ConfigError(found.message, { path: found.path });
}

/**
 * Checks what the critic needs: that there is one where an estimator reads its values, and the decays of its optimiser.
 * @throws {ConfigError} that names the setting
 */
export function checkCritic(settings: LoopSettings, { critic, name }: Backend): void {
  if (!critic && usesValues(settings) && !settings.trainer.val_only)
    throw new ConfigError(
      `Cannot estimate gae: the backend ${name} has no critic. Choose an estimator without one, such as grpo, or train with rllm/backend=local (in a program: LocalBackend.open(folder, { critic: {} })).`,
      { path: "rllm.algorithm.adv_estimator" },
    );
  const { betas } = settings.critic.optim;
  const isDecay = (value: unknown) => typeof value === "number" && value >= 0 && value < 1;
  if (Array.isArray(betas) && betas.length === 2 && betas.every(isDecay)) return;
  throw new ConfigError(
    `Cannot set critic.optim.betas: it takes two numbers from 0 to below 1 (${JSON.stringify(betas)}).`,
    { path: "critic.optim.betas" },
  );
}

/** Whether the estimator of any role reads a critic's values. */
export function usesValues({ algorithm }: Pick<LoopSettings, "algorithm">): boolean {
  const roles = ["", ...Object.keys(algorithm.traj_group_adv_estimator_map)];
  return roles.some((role) => algorithmOf(role, algorithm).estimator === "gae");
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
