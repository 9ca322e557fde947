/** Conversations, responses and texts of files, encoded and trained on: the recipe of `grpu sft`. */
import { sftSetting } from "../../config/fields/sft.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { type PlacedExample, type SupervisedKeys, supervisedExamples } from "../../data/supervised.ts";
import { type EncodedRow, encodeRows } from "../../loop/sft/encode.ts";
import { sft, totalSftSteps } from "../../loop/sft/sft.ts";
import { openBackend } from "../model/backend.ts";
import { type RowTraining, rowRecipe } from "../row_recipe.ts";

export const sftRecipe = rowRecipe({ name: "sft", training: supervisedTraining });

function supervisedTraining(config: Tree): RowTraining<PlacedExample, EncodedRow> {
  return {
    open: openBackend,
    title: "supervised fine-tuning",
    read: (rows) => supervisedExamples(rows, keysOf(config)),
    answersOf: (example) => [example],
    encode: (examples, options) =>
      encodeRows(examples, { ...options, trainOn: sftSetting(config, "data.train_on_what") }),
    rowsOf: (row) => [row],
    start: (options) => ({ steps: totalSftSteps(options), run: (more) => sft({ ...options, ...more }) }),
  };
}

function keysOf(sft: Tree): SupervisedKeys {
  return {
    messages: sftSetting(sft, "data.messages_key"),
    tools: sftSetting(sft, "data.tools_key"),
    enableThinking: sftSetting(sft, "data.enable_thinking_key"),
    prompt: sftSetting(sft, "data.prompt_key"),
    response: sftSetting(sft, "data.response_key"),
    text: sftSetting(sft, "data.text_key"),
    promptType: sftSetting(sft, "data.prompt_type"),
    systemPrompt: sftSetting(sft, "data.system_prompt") ?? undefined,
    variables: sftSetting(sft, "data.apply_chat_template_kwargs"),
  };
}
