/** Hugging Face's tokenizer.json, read by their library. */
import { Tokenizer as HubTokenizer } from "@huggingface/tokenizers";
import { ConfigError } from "../../errors.ts";
import { tokenBytesOf } from "./token_bytes.ts";
import type { TokenizerCore, TokenizerFiles } from "./tokenizer_core.ts";

/** @throws ConfigError for a tokenizer.json that cannot be read. */
export function hubTokenizer(files: TokenizerFiles, config: Record<string, unknown>): TokenizerCore {
  const name = files.folder ? `${files.folder}/tokenizer.json` : "tokenizer.json";
  const hub = buildHub(files.tokenizer, { config, name });
  const clean_up_tokenization_spaces = cleansUp(files.tokenizer, config);
  let largest = -1;
  for (const id of hub.get_vocab(true).values()) if (id > largest) largest = id;
  return {
    vocabSize: largest + 1,
    encode: (text, { addSpecialTokens = true } = {}) => hub.encode(text, { add_special_tokens: addSpecialTokens }).ids,
    decode: (ids, { skipSpecialTokens = true } = {}) =>
      ids.length === 0
        ? ""
        : hub.decode([...ids], { skip_special_tokens: skipSpecialTokens, clean_up_tokenization_spaces }),
    tokenId: (token) => hub.token_to_id(token),
    tokenBytes: tokenBytesOf(files.tokenizer, hub.get_vocab(true)),
  };
}

/**
 * Whether decoding drops spaces before punctuation (" .5" becomes ".5"). The rule is transformers': absent means no, and BPE
 * tokenizers never do, because their tokens contain the spaces. The `tokenizers` library has no such step.
 * @see transformers 5.23, `TokenizersBackend._decode`
 */
function cleansUp(json: unknown, config: Record<string, unknown>): boolean {
  const { type, merges } = (json as { model?: { type?: unknown; merges?: unknown } } | null)?.model ?? {};
  const isBpe = type === "BPE" || (type === undefined && merges !== undefined);
  const isForced = config.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output === true;
  return config.clean_up_tokenization_spaces === true && (!isBpe || isForced);
}

/** Above any real vocabulary. The library allocates lists as long as the largest id. */
const MOST_IDS = 2 ** 24;

function checkIds(json: unknown, file: string): void {
  const { model, added_tokens } = (json ?? {}) as { model?: { vocab?: unknown }; added_tokens?: unknown };
  const { vocab } = model ?? {};
  const named = typeof vocab === "object" && vocab !== null && !Array.isArray(vocab) ? Object.values(vocab) : [];
  const added = Array.isArray(added_tokens) ? added_tokens.map((token) => token?.id) : [];
  const isId = (id: unknown) => Number.isInteger(id) && (id as number) >= 0 && (id as number) < MOST_IDS;
  for (const id of [...named, ...added])
    if (!isId(id))
      throw new ConfigError(
        `Cannot read the tokenizer: ids must be whole numbers in [0, ${MOST_IDS}) (${JSON.stringify(id)?.slice(0, 80)}).`,
        { file },
      );
}

function buildHub(json: unknown, at: { config: object; name: string }): HubTokenizer {
  checkIds(json, at.name);
  try {
    return new HubTokenizer(json as object, at.config);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(`Cannot read the tokenizer: ${reason}.`, { file: at.name });
  }
}
