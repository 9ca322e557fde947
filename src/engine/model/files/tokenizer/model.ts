/** How a piece of text becomes tokens of the vocabulary: the models of tokenizer.json, the rarer ones by the library. */
import { Bpe, type BpeJson, byteToken } from "./bpe.ts";
import { Unigram, WordPiece } from "./library.ts";

export interface VocabularyModel {
  /** Ids of a piece; what is not in the vocabulary is the unknown token, or nothing where there is none. */
  encode(piece: string): readonly number[];
  idOf(token: string): number | undefined;
  /** Text by id. */
  readonly texts: ReadonlyMap<number, string>;
}

interface ModelJson extends BpeJson {
  readonly type?: string;
  readonly vocab?: unknown;
  readonly unk_id?: number | null;
}

/** @throws for a model that cannot be read. */
export function createVocabularyModel(json: ModelJson): VocabularyModel {
  const type = json.type ?? guessedType(json);
  if (type === "BPE") return bpe(json);
  if (type === "Unigram") return unigram(json);
  if (type === "WordPiece") {
    const model = new WordPiece(json);
    return over(idsIn(json), { split: (piece) => model.encode([piece]), unknown: json.unk_token });
  }
  if (type === "WordLevel") return over(idsIn(json), { split: (piece) => [piece], unknown: json.unk_token });
  throw new Error(`the model must be BPE, Unigram, WordPiece or WordLevel (${JSON.stringify(type)})`);
}

/** Old files have no type. */
function guessedType({ vocab, merges, continuing_subword_prefix }: ModelJson): string | undefined {
  if (Array.isArray(vocab)) return "Unigram";
  if (merges !== undefined) return "BPE";
  return continuing_subword_prefix === undefined ? undefined : "WordPiece";
}

function bpe(json: ModelJson): VocabularyModel {
  const ids = idsIn(json);
  const model = new Bpe(json, ids);
  return { encode: (piece) => model.encode(piece), idOf: (token) => ids.get(token), texts: textsOf(ids) };
}

function unigram(json: ModelJson): VocabularyModel {
  const model = new Unigram({ ...json, unk_id: json.unk_id ?? undefined });
  const entries = json.vocab as readonly (readonly [string, number])[];
  const ids = new Map(entries.map(([text], id) => [text, id]));
  const bytesOf = (text: string) => Array.from(new TextEncoder().encode(text), byteToken);
  const split = (piece: string) =>
    json.byte_fallback
      ? model.encode([piece]).flatMap((text) => {
          const bytes = ids.has(text) ? [] : bytesOf(text);
          return bytes.length > 0 && bytes.every((byte) => ids.has(byte)) ? bytes : [text];
        })
      : model.encode([piece]);
  const unknown = typeof json.unk_id === "number" ? entries[json.unk_id]?.[0] : undefined;
  return over(ids, { split, unknown, fuses: true });
}

function idsIn({ vocab }: ModelJson): Map<string, number> {
  if (typeof vocab !== "object" || vocab === null || Array.isArray(vocab))
    throw new Error("the model's vocab must be an object");
  return new Map(Object.entries(vocab as Record<string, number>));
}

function over(
  ids: ReadonlyMap<string, number>,
  options: { split: (piece: string) => readonly string[]; unknown: string | null | undefined; fuses?: boolean },
): VocabularyModel {
  const unknown = typeof options.unknown === "string" ? ids.get(options.unknown) : undefined;
  return {
    encode(piece) {
      const out: number[] = [];
      for (const token of options.split(piece)) {
        const id = ids.get(token) ?? unknown;
        if (id !== undefined && !(options.fuses && id === unknown && out.at(-1) === unknown)) out.push(id);
      }
      return out;
    },
    idOf: (token) => ids.get(token),
    texts: textsOf(ids),
  };
}

const textsOf = (ids: ReadonlyMap<string, number>) => new Map(Array.from(ids, ([text, id]) => [id, text] as const));
