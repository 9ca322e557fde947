/**
 * A decoder of the Llama and Qwen families that trains and samples, and model folders in Hugging Face's layout.
 *
 * Stable in 0.x: `openModelFolder`, `saveModelFolder`, `httpFolder`, `LanguageModel.load`, the tokenizers. A minor
 * version may change the rest.
 * @module
 */

export type { ModelConfig } from "./config.ts";
export { type Exported, type ExportOptions, exportFolder } from "./export.ts";
export { parseModelConfig } from "./files/config_json.ts";
export type { FileSource, FolderWriter } from "./files/file_source.ts";
export { type ModelFolder, openModelFolder, openTokenizer } from "./files/folder.ts";
export { type HttpFolderOptions, httpFolder } from "./files/http_folder.ts";
export { blobFolder, MemoryFolder } from "./files/memory_folder.ts";
export type { ByteReader, FolderReader } from "./files/reader.ts";
export {
  byteTokenizer,
  characterTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "./files/tokenizer.ts";
export { LanguageModel, type LanguageModelOptions } from "./language_model.ts";
export { parameterCount } from "./layers.ts";
export {
  ATTENTION_TARGETS,
  LORA_DEFAULTS,
  type LoraConfig,
  type LoraOptions,
  loraConfig,
  loraTargets,
  MLP_TARGETS,
  UNEMBED_TARGET,
} from "./lora.ts";
export { loadModel, type OpenedModel, openModel } from "./open_model.ts";
export { type SaveModelOptions, saveAdapterFolder, saveModelFolder } from "./save_model.ts";
