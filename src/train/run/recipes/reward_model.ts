/** Pairs of files, encoded and trained on: the recipe of `grpu reward-model`. */

import type { RewardModel } from "../../../engine/contract/reward_model.ts";
import { rewardModelSetting } from "../../config/fields/reward_model.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { type PlacedPreference, type PreferenceKeys, preferenceExamples } from "../../data/preference.ts";
import { type EncodedPreference, encodePreferences } from "../../loop/dpo/encode.ts";
import {
  type RewardModelRunOptions,
  totalRewardModelSteps,
  trainRewardModel,
} from "../../loop/reward_model/reward_model.ts";
import { openRewardModel } from "../model/reward_model.ts";
import { quoted } from "../quoted.ts";
import { type RowTraining, rowRecipe } from "../row_recipe.ts";

export const rewardModelRecipe = rowRecipe({ name: "reward-model", training: pairTraining });

function pairTraining(config: Tree): RowTraining<PlacedPreference, EncodedPreference, RewardModel> {
  const center = rewardModelSetting(config, "reward_model.center_rewards_coefficient");
  const loss = { center_rewards_coefficient: center ?? undefined };
  return {
    title: "reward model",
    open: openRewardModel,
    read: (rows) => preferenceExamples(rows, keysOf(config), "pair"),
    answersOf: ({ answers }) => answers,
    encode(examples, options) {
      const { preferences: rows, ...counts } = encodePreferences(examples, options);
      return { rows, ...counts, unanswered: 0 };
    },
    rowsOf: ({ rows }) => rows,
    start(options) {
      const runOptions: RewardModelRunOptions = { ...options, loss };
      return { steps: totalRewardModelSteps(runOptions), run: (more) => trainRewardModel({ ...runOptions, ...more }) };
    },
    command: (model) => ["use", `train run.yaml reward_model.enable=true reward_model.model.path=${quoted(model)}`],
  };
}

function keysOf(config: Tree): PreferenceKeys {
  return {
    prompt: rewardModelSetting(config, "data.prompt_key"),
    chosen: rewardModelSetting(config, "data.chosen_key"),
    rejected: rewardModelSetting(config, "data.rejected_key"),
    margin: rewardModelSetting(config, "data.margin_key"),
    // Of labelled rows, which a reward model does not take.
    completion: "",
    label: "",
    tools: rewardModelSetting(config, "data.tools_key"),
    enableThinking: rewardModelSetting(config, "data.enable_thinking_key"),
    promptType: rewardModelSetting(config, "data.prompt_type"),
    systemPrompt: rewardModelSetting(config, "data.system_prompt") ?? undefined,
    variables: rewardModelSetting(config, "data.apply_chat_template_kwargs"),
  };
}
