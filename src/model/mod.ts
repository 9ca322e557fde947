/**
 * A decoder of the Llama and Qwen families that trains and samples, and model folders in Hugging Face's layout.
 *
 * Stable in 0.x: `openModelFolder`, `saveModelFolder`, `httpFolder`, `LanguageModel.load`, the tokenizers. A minor
 * version may change the rest.
 * @module
 */
export { type ModelConfig, parameterCount, parseModelConfig } from "./files/config.ts";
export {
  type FolderReader,
  type ModelFolder,
  openModelFolder,
  openTokenizer,
  type SaveModelOptions,
  saveModelFolder,
} from "./files/folder.ts";
export { type HttpFolderOptions, httpFolder } from "./files/http.ts";
export type { ByteReader } from "./files/safetensors.ts";
export {
  byteTokenizer,
  characterTokenizer,
  PLAIN_CHAT_TEMPLATE,
  type TextTokenizer,
  withChatTemplate,
} from "./files/tokenizer.ts";
export { LanguageModel, type LanguageModelOptions } from "./language_model.ts";
export { loadModel, type OpenedModel, openModel } from "./open_model.ts";
export {
  ATTENTION_TARGETS,
  type LoraConfig,
  type LoraOptions,
  loraConfig,
  MLP_TARGETS,
} from "./train/lora_adapter.ts";
