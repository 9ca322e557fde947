/** The chat template that a setting or an option names. */
import { PLAIN_CHAT_TEMPLATE, type TextTokenizer, withChatTemplate } from "../../../engine/model/files/tokenizer.ts";
import { readText } from "../files.ts";

/** The tokenizer with another chat template, where one is named. */
export function withTemplate(tokenizer: TextTokenizer, named: string | undefined): TextTokenizer {
  if (named === undefined) return tokenizer;
  if (named === "plain") return withChatTemplate(tokenizer, PLAIN_CHAT_TEMPLATE);
  return withChatTemplate(tokenizer, readText(named, "chat template"), named);
}
