/** Preferences of files, encoded and trained on: the recipe of `grpu dpo`. */
import { planPreference } from "../../../engine/algorithm/mod.ts";
import { DPO_FIELDS, dpoSetting } from "../../config/fields/dpo.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { type PlacedPreference, type PreferenceKeys, preferenceExamples } from "../../data/preference.ts";
import { type DpoOptions, dpo, totalDpoSteps } from "../../loop/dpo/dpo.ts";
import { type EncodedPreference, encodePreferences } from "../../loop/dpo/encode.ts";
import { openBackend } from "../model/backend.ts";
import { type RowTraining, rowRecipe } from "../row_recipe.ts";

export const dpoRecipe = rowRecipe({ name: "dpo", training: preferenceTraining });

function preferenceTraining(config: Tree): RowTraining<PlacedPreference, EncodedPreference> {
  const loss = lossOf(config);
  const { unit } = planPreference(loss).loss;
  return {
    open: openBackend,
    title: `preference training (${loss.loss_type})`,
    read: (rows) => preferenceExamples(rows, keysOf(config), unit),
    answersOf: ({ answers }) => answers,
    encode(examples, options) {
      const { preferences: rows, ...counts } = encodePreferences(examples, options);
      return { rows, ...counts, unanswered: 0 };
    },
    rowsOf: ({ rows }) => rows,
    start(options) {
      const dpoOptions: DpoOptions = { ...options, loss };
      return { steps: totalDpoSteps(dpoOptions), run: (more) => dpo({ ...dpoOptions, ...more }) };
    },
  };
}

const SETTINGS = Object.keys(DPO_FIELDS).filter((path) => /^dpo\.(?!loss_type$)/.test(path));

/** The settings that are given; those that are null keep the loss's own default. */
function lossOf(config: Tree): NonNullable<DpoOptions["loss"]> {
  const entries = SETTINGS.map((path) => [path.slice("dpo.".length), dpoSetting(config, path as "dpo.beta")] as const);
  const settings = Object.fromEntries(entries.filter(([, value]) => value !== null));
  return { loss_type: dpoSetting(config, "dpo.loss_type"), settings };
}

function keysOf(config: Tree): PreferenceKeys {
  return {
    prompt: dpoSetting(config, "data.prompt_key"),
    chosen: dpoSetting(config, "data.chosen_key"),
    rejected: dpoSetting(config, "data.rejected_key"),
    completion: dpoSetting(config, "data.completion_key"),
    label: dpoSetting(config, "data.label_key"),
    tools: dpoSetting(config, "data.tools_key"),
    enableThinking: dpoSetting(config, "data.enable_thinking_key"),
    promptType: dpoSetting(config, "data.prompt_type"),
    systemPrompt: dpoSetting(config, "data.system_prompt") ?? undefined,
    variables: dpoSetting(config, "data.apply_chat_template_kwargs"),
  };
}
