/** Opens the model of a recipe: a new one of the task's characters, or the one that a person gave. */

import type { Device } from "../../../src/engine/compute/device.ts";
import { blobFolder } from "../../../src/engine/model/files/memory_folder.ts";
import {
  characterTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "../../../src/engine/model/files/tokenizer.ts";
import { type ModelMark, openModel } from "../../../src/engine/model/open_model.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import type { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import type { Tree } from "../../../src/train/config/yaml/tree.ts";
import { readLora, templateOf } from "../../../src/train/run/model/model_settings.ts";
import { newBackend, trainable } from "../../../src/train/run/model/trained_model.ts";
import type { Environment } from "../../../src/train/task/rollout.ts";
import type { StartRequest } from "../protocol.ts";
import { recipeNamed } from "../recipes.ts";

export interface ModelRequest extends Pick<StartRequest, "recipe" | "model"> {
  readonly config: Tree;
  readonly environment: Environment;
}

export interface Opened {
  readonly backend: LocalBackend;
  readonly tokenizer: TextTokenizer;
  /** Of an adapter's base. */
  readonly base?: ModelMark;
}

/** @throws {ConfigError} for a folder that is missing or cannot be read, naming the file */
export async function openBackend(device: Device, request: ModelRequest): Promise<Opened> {
  const { config, environment, recipe, model } = request;
  if (!recipeNamed(recipe)!.needsModel) {
    const tokenizer = templated(characterTokenizer(environment.alphabet!), config);
    return { backend: await newBackend(device, { config, tokenizer }), tokenizer };
  }
  if (!model) throw new ConfigError("Cannot train: this task needs a pretrained model. Give the page its folder.");
  const opened = await openModel(blobFolder(model.name, model.files));
  if (!opened.tokenizer)
    throw new ConfigError("Cannot train: the model folder has no tokenizer.json. Add it, and give the folder again.", {
      file: model.name,
    });
  const tokenizer = templated(opened.tokenizer, config);
  const lora = readLora(config, opened.files.config);
  return { backend: await trainable(device, { opened, tokenizer, lora, config }), tokenizer, base: opened.mark };
}

/** The recipes name no template file. */
function templated(tokenizer: TextTokenizer, config: Tree): TextTokenizer {
  return templateOf(config) === "plain" ? withChatTemplate(tokenizer, PLAIN_CHAT_TEMPLATE) : tokenizer;
}
