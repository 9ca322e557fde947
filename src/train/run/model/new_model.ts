/** A model that the configuration describes, from random weights: its shape and its tokenizer. */
import { existsSync } from "node:fs";
import type { Device } from "../../../engine/compute/device.ts";
import type { ModelConfig } from "../../../engine/model/config.ts";
import { openTokenizer } from "../../../engine/model/files/folder.ts";
import { byteTokenizer, characterTokenizer, type TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { LocalBackend } from "../../backend/local/backend.ts";
import { setting } from "../../config/schema.ts";
import { promptOf } from "../../task/rollout.ts";
import { locate, nearestFile } from "../files.ts";
import type { ModelSession } from "../session.ts";
import { withTemplate } from "./chat_template.ts";
import { templateOf } from "./model_settings.ts";
import { newBackend, newModelShape } from "./trained_model.ts";

export async function createLocalModel(device: Device, session: ModelSession): Promise<LocalBackend> {
  return newBackend(device, { config: session.config, tokenizer: await tokenizerOf(session) });
}

/** The tokenizer of a new model, with the template of the settings. */
export async function tokenizerOf(session: ModelSession): Promise<TextTokenizer> {
  return withTemplate(await newTokenizer(session), templateOf(session.config));
}

/** The shape of the model that a configuration describes, before any weights. */
export async function describeNewModel(session: ModelSession): Promise<ModelConfig> {
  return newModelShape(session.config, await newTokenizer(session));
}

/**
 * The tokens of a model that this configuration made are those of its checkpoint.
 * @throws ConfigError where the configuration names others.
 */
export async function checkTokenizer(
  session: ModelSession,
  { tokenizer, checkpoint }: { tokenizer: TextTokenizer | undefined; checkpoint: string },
): Promise<void> {
  const saved = tokenizer?.files()["tokenizer.json"];
  const isNamed = session.isGiven("model.init.alphabet") && setting(session.config, "model.init.alphabet") !== null;
  const kind = setting(session.config, "model.init.tokenizer");
  const wasByte = saved === byteTokenizer().files()["tokenizer.json"];
  const isOtherKind = kind === "byte" ? !wasByte : kind === "char" && wasByte;
  // The alphabet of characters may have been that of other data.
  const isExact = isNamed || kind !== "char";
  if (!isOtherKind && (!isExact || saved === (await newTokenizer(session)).files()["tokenizer.json"])) return;
  const freshTokenizer = await newTokenizer(session);
  throw new ConfigError(
    `Cannot open the checkpoint ${checkpoint}: its tokens are not those of the configuration (${tokenizer?.vocabSize ?? 0} tokens, and ${freshTokenizer.vocabSize}). Remove model.init.alphabet and model.init.tokenizer from the configuration.`,
    { path: isOtherKind || kind !== "char" ? "model.init.tokenizer" : "model.init.alphabet" },
  );
}

/** The tokenizer that `model.init.tokenizer` describes. @throws ConfigError for a folder without a tokenizer.json */
async function newTokenizer(session: ModelSession): Promise<TextTokenizer> {
  const kind = setting(session.config, "model.init.tokenizer");
  if (kind === "byte") return byteTokenizer();
  return kind === "char" ? characterTokenizer(alphabetOf(session)) : tokenizerIn(kind);
}

async function tokenizerIn(folder: string): Promise<TextTokenizer> {
  const place = locate(folder);
  const tokenizer = existsSync(place) ? await openTokenizer(place, []) : undefined;
  if (tokenizer) return tokenizer;
  throw new ConfigError(
    `Cannot make a tokenizer: model.init.tokenizer is neither char nor byte nor a folder with a tokenizer.json (${folder}).${nearestFile(folder)} Correct it.`,
    { path: "model.init.tokenizer" },
  );
}

/** Characters for a new model's tokenizer: those of the setting, the environment, or the data as the chat template writes it. */
function alphabetOf(session: ModelSession): string {
  const { config, environment, tasks, examples } = session;
  const alphabet = setting(config, "model.init.alphabet") ?? environment.alphabet;
  if (alphabet) return alphabet;
  const texts = [
    ...[...tasks.train, ...tasks.val].map(promptOf),
    ...examples.flatMap((each) => ("messages" in each ? [each.messages] : [each.prompt, each.response])),
  ];
  const plain = texts.map((text) => (typeof text === "string" ? text : text.map(({ content }) => content).join("")));
  const letters = new Set([...plain, ...renderedTexts(session)].join(""));
  return [...letters].sort().join("");
}

/** The template may add characters: names of roles, marks. An example that it refuses is named where it is encoded. */
function renderedTexts({ config, examples }: ModelSession): string[] {
  const tokenizer = withTemplate(byteTokenizer(), templateOf(config));
  return examples.flatMap((each) => {
    const isWhole = "messages" in each;
    const messages = isWhole ? each.messages : each.prompt;
    if (typeof messages === "string" || !tokenizer.renderChat) return [];
    const { tools, variables } = each;
    try {
      const { text } = tokenizer.renderChat(messages, { tools, variables, addGenerationPrompt: !isWhole });
      // Special tokens need no characters; bytes that come back are those of the rest.
      return [tokenizer.decode(tokenizer.encode(text))];
    } catch {
      return [];
    }
  });
}
