/** A model that the configuration describes, from random weights: its shape and its tokenizer. */
import { LocalBackend } from "../../backend/local/backend.ts";
import { fittingOptions } from "../../backend/local/plan/fit.ts";
import type { Device } from "../../compute/device.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { ConfigError } from "../../errors.ts";
import type { ModelConfig } from "../../model/files/config.ts";
import { byteTokenizer, characterTokenizer, type TextTokenizer } from "../../model/files/tokenizer.ts";
import { LanguageModel } from "../../model/language_model.ts";
import { promptOf } from "../../task/rollout.ts";
import { readLora, templateOf, withTemplate } from "./model_settings.ts";
import { plannedWork } from "./plan_settings.ts";
import type { Session } from "./session.ts";

/** A new model trains all its weights. */
export const FIXED_OF_NEW_MODELS: readonly string[] = ["model.lora_rank"];

export async function createModel(device: Device, session: Session): Promise<LocalBackend> {
  const { config } = session;
  const lora = readLora(config);
  if (lora) {
    throw new ConfigError("Cannot train an adapter on a new model: set model.lora_rank=0, or model.name to a folder.", {
      path: "model.lora_rank",
    });
  }
  const tokenizer = withTemplate(plainTokenizer(session), templateOf(config));
  const shape = newModelShape(session);
  const model = { config: shape, typeOf: () => undefined };
  const work = plannedWork(config, { model, isTrained: true, fixedSettings: FIXED_OF_NEW_MODELS });
  const options = { ...(await fittingOptions(device, work)), seed: setting(config, "training.seed") };
  const make = () => LanguageModel.create(device, shape, options);
  return new LocalBackend({ model: make(), remake: async () => make(), tokenizer, name: "new model" });
}

export function newContextLength(config: Tree): number {
  const longest = setting(config, "rllm.data.max_prompt_length") + setting(config, "rllm.data.max_response_length");
  return Math.min(setting(config, "training.max_length"), longest);
}

/** The shape of the model that a configuration describes. */
export function newModelShape(session: Session): ModelConfig {
  const { config } = session;
  const tokenizer = plainTokenizer(session);
  return {
    architecture: "llama",
    vocabSize: tokenizer.vocabSize,
    hiddenSize: setting(config, "model.init.hidden_size"),
    intermediateSize: setting(config, "model.init.intermediate_size"),
    layers: setting(config, "model.init.layers"),
    heads: setting(config, "model.init.heads"),
    kvHeads: setting(config, "model.init.kv_heads"),
    headDim: setting(config, "model.init.head_dim"),
    contextLength: newContextLength(config),
    rmsNormEps: 1e-5,
    ropeTheta: 10000,
    tied: false,
    qkNorm: false,
    qkvBias: false,
    eosTokenIds: [...tokenizer.eosTokenIds],
  };
}

/**
 * The tokens of a model that this configuration made are those of its checkpoint.
 * @throws ConfigError where the configuration names others.
 */
export function checkTokenizer(
  session: Session,
  { tokenizer, checkpoint }: { tokenizer: TextTokenizer | undefined; checkpoint: string },
): void {
  const saved = tokenizer?.files()["tokenizer.json"];
  const isNamed = session.isGiven("model.init.alphabet") && setting(session.config, "model.init.alphabet") !== null;
  const isByte = setting(session.config, "model.init.tokenizer") === "byte";
  const wasByte = saved === byteTokenizer().files()["tokenizer.json"];
  const isOther = isByte !== wasByte || (isNamed && saved !== plainTokenizer(session).files()["tokenizer.json"]);
  if (!isOther) return;
  throw new ConfigError(
    `Cannot open the checkpoint ${checkpoint}: its tokens are not those of the configuration (${tokenizer?.vocabSize ?? 0} tokens, and ${plainTokenizer(session).vocabSize}). Remove model.init.alphabet and model.init.tokenizer from the configuration.`,
    { path: isByte !== wasByte ? "model.init.tokenizer" : "model.init.alphabet" },
  );
}

function plainTokenizer(session: Session): TextTokenizer {
  const isBytes = setting(session.config, "model.init.tokenizer") === "byte";
  return isBytes ? byteTokenizer() : characterTokenizer(alphabetOf(session));
}

/** Characters for a new model's tokenizer: those of the setting, the environment, or the data. */
function alphabetOf({ config, environment, tasks, examples }: Session): string {
  const given = setting(config, "model.init.alphabet") ?? environment.alphabet;
  if (given) return given;
  const texts = [
    ...[...tasks.train, ...tasks.val].map(promptOf),
    ...examples.flatMap((each) => ("messages" in each ? [each.messages] : [each.prompt, each.response])),
  ];
  const plain = texts.map((text) => (typeof text === "string" ? text : text.map(({ content }) => content).join("")));
  const letters = new Set(plain.join(""));
  return [...letters].sort().join("");
}
