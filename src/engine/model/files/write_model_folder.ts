/** Writes a model folder in Hugging Face's layout, whole or not at all. */
import { ConfigError } from "../../../leaves/errors.ts";
import type { ModelConfig } from "../config.ts";
import { weightShapes } from "../layers.ts";
import { modelConfigJson } from "./config_json.ts";
import type { FolderWriter } from "./file_source.ts";
import type { TensorSource } from "./safetensors_write.ts";
import { type ShardOptions, WEIGHT_FILE, weightFiles } from "./shards.ts";
import type { TextTokenizer } from "./tokenizer.ts";
import { writeFiles } from "./writer.ts";

export interface WriteModelOptions extends ShardOptions {
  readonly config: ModelConfig;
  /** Weights by their Hugging Face names, see {@link weightShapes}. */
  readonly tensors: readonly TensorSource[];
  readonly tokenizer?: TextTokenizer | undefined;
  /** Further files by name. */
  readonly extra?: Readonly<Record<string, string>>;
}

/**
 * Writes a model folder that {@link openModelFolder} and transformers read. Existing files stay whole until all new
 * ones are on the disk.
 * @throws ConfigError when the weights do not match the configuration, or the disk is full.
 */
export async function writeModelFolder(to: string | FolderWriter, options: WriteModelOptions): Promise<void> {
  checkSources(options);
  const { config, tensors, tokenizer, extra, dtype } = options;
  const json = modelConfigJson(config, dtype === "BF16" ? "bfloat16" : "float32");
  const texts = { ...tokenizer?.files(), ...extra, "config.json": `${JSON.stringify(json, null, 2)}\n` };
  const weights = weightFiles(tensors, options);
  await writeFiles(to, [...weights, ...Object.entries(texts).map(([name, content]) => ({ name, content }))]);
  if (typeof to !== "string") return;
  const { removeFiles } = await import("./disk.ts");
  const written = new Set(weights.map(({ name }) => name));
  // Readers disagree on which weights they take where a folder has whole and sharded ones.
  await removeFiles(to, (name) => WEIGHT_FILE.test(name) && !written.has(name));
}

function checkSources({ config, tensors }: WriteModelOptions): void {
  const shapes = new Map(tensors.map((tensor) => [tensor.name, tensor.shape]));
  for (const [name, shape] of weightShapes(config)) {
    if (`${shapes.get(name)}` === `${shape}` && shapes.delete(name)) continue;
    throw new ConfigError(
      `Cannot save the model: tensor ${name} must be [${shape}] (${shapes.get(name) ?? "missing"}).`,
    );
  }
  const other = shapes.keys().next().value;
  if (other !== undefined) throw new ConfigError(`Cannot save the model: it has no tensor ${other}.`);
}
