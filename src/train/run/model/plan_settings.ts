/** A configuration's settings about the memory of its run: how the model is held, and the most that is done at a time. */

import type { LossSpec } from "../../../engine/contract/backend.ts";
import type { LoraConfig } from "../../../engine/model/lora.ts";
import type { PlanRequest } from "../../backend/local/plan/rehearsal.ts";
import type { RunShape } from "../../backend/local/plan/run_shape.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { isTeacherOnly, topkSpec, usesReference, wantedOf } from "../../loop/distill/choices.ts";
import { algorithmOf } from "../../loop/roles.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";
import { playsGreedy } from "../../loop/stages/greedy.ts";
import { lossSpec } from "../../loop/stages/loss_settings.ts";
import { batchSizeOf } from "../../loop/state.ts";
import { memoryOptions } from "./model_settings.ts";

/** The work of a configured run on a model. */
export function plannedWork(
  config: Tree,
  {
    model,
    lora,
    isTrained,
    fixedSettings,
    critic,
  }: Pick<PlanRequest, "model" | "fixedSettings" | "critic"> & { lora?: LoraConfig | undefined; isTrained: boolean },
): Omit<PlanRequest, "info" | "budget"> {
  return {
    model,
    fixedSettings,
    critic,
    options: { ...memoryOptions(config), ...(lora && { lora }), ...(!isTrained && { frozen: true }) },
    shape: runShape(config, { isTrained }),
  };
}

/** The most that a run samples and trains on at a time: every prompt and every reply as long as the settings allow. */
function runShape(config: Tree, { isTrained }: { isTrained: boolean }): RunShape {
  const settings = settingsFromConfig(config);
  const { data, rollout, async_training } = settings;
  // A validation set that is one batch waits for slots.
  const validated = Math.max(data.val_batch_size, 1) * rollout.n_val;
  const [prompts, groupSize] = isTrained ? [batchSizeOf(settings), rollout.n] : [1, rollout.n_val];
  // Of each prompt, beside its group.
  const greedy = Number(playsGreedy(settings));
  const promptTokens = data.max_prompt_length;
  const room = setting(config, "training.max_length") - promptTokens;
  return {
    prompts,
    groupSize,
    sampled: isTrained ? Math.max(prompts * (groupSize + greedy), validated) : validated,
    promptTokens,
    replyTokens: Math.max(Math.min(longestReply(settings, isTrained), room), 1),
    isTrained,
    usesReference: isTrained && usesReference(settings),
    overlaps: isTrained && async_training.enable,
    loss: mainLoss(settings),
    topk: wantedOf(settings.distillation) === "top" ? topkWork(settings) : undefined,
  };
}

function longestReply({ rollout }: ReturnType<typeof settingsFromConfig>, isTrained: boolean): number {
  return isTrained ? Math.max(rollout.train.max_tokens, rollout.val.max_tokens) : rollout.val.max_tokens;
}

function topkWork(settings: ReturnType<typeof settingsFromConfig>): RunShape["topk"] {
  const { topk: k } = settings.distillation.distillation_loss;
  return { loss: topkSpec(mainLoss(settings), settings), k, isAlone: isTeacherOnly(settings) };
}

/** The loss of roles without one of their own. */
function mainLoss(settings: ReturnType<typeof settingsFromConfig>): LossSpec {
  const { loss: name, loss_args } = algorithmOf("", settings.algorithm);
  return lossSpec({ name, loss_args }, settings);
}
