/**
 * Hugging Face's tokenizer.json, step by step as the `tokenizers` library in Rust. Its port to JavaScript, whose models
 * are used, differs in what white space is, in normal forms, in added tokens and in how pieces are split and joined.
 */
import { ConfigError } from "../../../leaves/errors.ts";
import { tokenBytesOf } from "./token_bytes.ts";
import { addedTokens, finderOf, isNormalized, soughtText, type TextSection } from "./tokenizer/added_tokens.ts";
import { createDecoder } from "./tokenizer/decoder.ts";
import type { TokenizerJson } from "./tokenizer/json.ts";
import { createVocabularyModel, type VocabularyModel } from "./tokenizer/model.ts";
import { createNormalizer, type Normalizer } from "./tokenizer/normalizer.ts";
import { createPostProcessor } from "./tokenizer/post_processor.ts";
import { createPreTokenizer, type PreTokenizer, type TextPiece } from "./tokenizer/pre_tokenizer.ts";
import type { TokenizerCore, TokenizerFiles } from "./tokenizer_core.ts";

/** @throws ConfigError for a tokenizer.json that cannot be read. */
export function hubTokenizer(files: TokenizerFiles, config: Record<string, unknown>): TokenizerCore {
  const name = files.folder ? `${files.folder}/tokenizer.json` : "tokenizer.json";
  checkIds(files.tokenizer, name);
  try {
    return build(files.tokenizer as TokenizerJson, config);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new ConfigError(`Cannot read the tokenizer: ${reason.replace(/\.$/, "")}.`, { file: name });
  }
}

function build(json: TokenizerJson, config: Record<string, unknown>): TokenizerCore {
  if (typeof json?.model !== "object" || json.model === null) throw new Error("it has no model");
  const model = createVocabularyModel(json.model);
  const added = addedTokens(json, config, model.idOf);
  const normalizer = createNormalizer(json.normalizer);
  const steps: EncodingSteps = {
    model,
    first: { normalizer, preTokenizer: createPreTokenizer(json.pre_tokenizer) },
    continued: {
      normalizer: createNormalizer(json.normalizer, { isMarked: false }),
      preTokenizer: createPreTokenizer(json.pre_tokenizer, { isMarked: false }),
    },
    findWritten: finderOf(
      added.filter((token) => !isNormalized(token)),
      ({ content }) => content,
    ),
    findNormalized: finderOf(added.filter(isNormalized), (token) => soughtText(token, normalizer)),
  };
  const postProcess = createPostProcessor(json.post_processor);
  const texts = new Map([
    ...model.texts,
    ...added.map((token) => [token.id, isNormalized(token) ? soughtText(token, normalizer) : token.content] as const),
  ]);
  const ids = new Map(added.map(({ id, content }) => [content, id]));
  const special = new Set(added.filter((token) => token.special).map(({ id }) => id));
  let largest = -1;
  for (const id of texts.keys()) if (id > largest) largest = id;
  const decode = createDecoder(json.decoder);
  const cleaned = cleansUp(json, config) ? cleanUp : (text: string) => text;
  return {
    vocabSize: largest + 1,
    encode(text, { addSpecialTokens = true, continues = false } = {}) {
      const ids = encodeText(text, steps, continues);
      return addSpecialTokens ? postProcess(ids) : ids;
    },
    decode(tokens, { skipSpecialTokens = true } = {}) {
      const kept = skipSpecialTokens ? tokens.filter((id) => !special.has(id)) : tokens;
      return cleaned(decode(kept.flatMap((id) => texts.get(id) ?? [])));
    },
    tokenId: (token) => ids.get(token) ?? model.idOf(token),
    tokenBytes: tokenBytesOf(json, { texts, special }),
  };
}

interface TextSteps {
  readonly normalizer: Normalizer | undefined;
  readonly preTokenizer: PreTokenizer | undefined;
}

interface EncodingSteps {
  readonly model: VocabularyModel;
  readonly first: TextSteps;
  /** Steps without the mark of a first word. */
  readonly continued: TextSteps;
  /** Added tokens in a text as it is written, and once it is normalized. */
  readonly findWritten: (text: string) => TextSection[];
  readonly findNormalized: (text: string) => TextSection[];
}

function encodeText(text: string, options: EncodingSteps, continues: boolean): number[] {
  const out: number[] = [];
  for (const section of options.findWritten(text)) {
    if ("token" in section) {
      out.push(section.token.id);
      continue;
    }
    const steps = continues && section.start === 0 ? options.continued : options.first;
    const normalized = steps.normalizer ? steps.normalizer(section.text) : section.text;
    for (const part of options.findNormalized(normalized)) {
      if ("token" in part) out.push(part.token.id);
      else {
        const isFirst = section.start === 0 && part.start === 0 && !continues;
        const { preTokenizer } = part.start === 0 ? steps : options.first;
        encodePiece({ text: part.text, isFirst }, { preTokenizer, model: options.model, out });
      }
    }
  }
  return out;
}

function encodePiece(
  whole: TextPiece,
  options: { preTokenizer: PreTokenizer | undefined; model: VocabularyModel; out: number[] },
): void {
  for (const piece of options.preTokenizer ? options.preTokenizer([whole]) : [whole])
    for (const id of options.model.encode(piece.text)) options.out.push(id);
}

/**
 * Whether decoding drops spaces before punctuation (" .5" becomes ".5"). The rule is transformers': absent means no, and BPE
 * tokenizers never do, because their tokens contain the spaces. The `tokenizers` library has no such step.
 * @see transformers 5.23, `TokenizersBackend._decode`
 */
function cleansUp(json: TokenizerJson, config: Record<string, unknown>): boolean {
  const { type, merges } = json.model;
  const isBpe = type === "BPE" || (type === undefined && merges !== undefined);
  const isForced = config.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output === true;
  return config.clean_up_tokenization_spaces === true && (!isBpe || isForced);
}

function cleanUp(text: string): string {
  return text
    .replace(/ ([.?!,])/g, "$1")
    .replaceAll(" ' ", "'")
    .replace(/ (n't|'m|'s|'ve|'re)/g, "$1");
}

/** Above any real vocabulary. Masks and tables are as long as the largest id. */
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
