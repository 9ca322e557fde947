import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import { PLAIN_CHAT_TEMPLATE, type TextTokenizer, withChatTemplate } from "../../model/files/tokenizer.ts";
import { type LoraConfig, loraTargets } from "../../model/lora.ts";
import { readText } from "../files.ts";

export function templateOf(config: Tree): string | undefined {
  return setting(config, "model.chat_template") ?? undefined;
}

/** The tokenizer with another chat template, where one is named. */
export function withTemplate(tokenizer: TextTokenizer, named: string | undefined): TextTokenizer {
  if (named === undefined) return tokenizer;
  const source = named === "plain" ? PLAIN_CHAT_TEMPLATE : readText(named, "chat template");
  return withChatTemplate(tokenizer, source);
}

export function readLora(config: Tree): LoraConfig | undefined {
  const rank = setting(config, "model.lora_rank");
  if (rank === 0) return undefined;
  const targets = loraTargets({
    attn: setting(config, "model.train_attn"),
    mlp: setting(config, "model.train_mlp"),
    unembed: setting(config, "model.train_unembed"),
  });
  return { rank, alpha: setting(config, "model.lora_alpha"), targets };
}
