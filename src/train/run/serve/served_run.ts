/** A session as a service serves it to a cluster: its tasks, its rollout, the tokenizer of the model that the cluster trains. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { ServedRun } from "../../../cluster/rewards/service.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { openTokenizer } from "../../../engine/model/files/folder.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";
import { withTemplate } from "../model/chat_template.ts";
import { templateOf } from "../model/model_settings.ts";
import type { RunSession } from "../session.ts";

export interface ServedRunOptions {
  /** Folder of the tokenizer. Default: that of `model.tokenizer`, or of `model.name`. */
  readonly tokenizer?: string | undefined;
}

/**
 * Returns the parts of a run that `openService` takes.
 * @throws {ConfigError} for a folder without a tokenizer, and where a run needs one and none is found
 */
export async function servedRun(session: RunSession, options: ServedRunOptions = {}): Promise<ServedRun> {
  const { config, tasks, rollout, evaluate, asksPrompt: isSingleTurn } = session;
  const tokenizer = await tokenizerOf(config, options);
  const needsTokens = !isSingleTurn || evaluate !== undefined || tasks.train.some(({ messages }) => messages);
  if (!tokenizer && needsTokens)
    throw new ConfigError(
      "Cannot serve the run: its agents, its evaluator or its conversations need the model's tokenizer, and there is none. Give the folder of its tokenizer.json: with rllm/backend=verl as model.tokenizer, for a service of its own with --tokenizer, else as model.name.",
      { path: "model.name" },
    );
  const longest = setting(config, "rllm.data.max_prompt_length") + setting(config, "rllm.data.max_response_length");
  const name = setting(config, "model.name") ?? "cluster";
  const settings = settingsFromConfig(config);
  return { tasks, rollout, evaluate, isSingleTurn, settings, tokenizer, model: { name, contextLength: longest } };
}

async function tokenizerOf(config: Tree, { tokenizer }: ServedRunOptions): Promise<Tokenizer | undefined> {
  const folder = tokenizer ?? setting(config, "model.name") ?? null;
  if (folder === null || (tokenizer === undefined && !existsSync(join(folder, "tokenizer.json")))) return undefined;
  const found = await openTokenizer(folder);
  if (found) return withTemplate(found, templateOf(config));
  throw new ConfigError("Cannot use the tokenizer: the folder has no tokenizer.json. Name another folder.", {
    file: folder,
  });
}
