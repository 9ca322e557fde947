/** Classes of the library whose published types do not name them. */
import * as library from "@huggingface/tokenizers";

type Kind<T> = new (...config: readonly unknown[]) => T;
/** Splits pieces into tokens of a vocabulary. */
interface Model {
  encode(pieces: readonly string[]): string[];
}
interface Normalizer {
  normalize(text: string): string;
}
interface Decoder {
  decode_chain(tokens: readonly string[]): string[];
}

export const {
  Unigram,
  WordPiece,
  BertNormalizer,
  PrecompiledNormalizer,
  SplitPreTokenizer,
  BPEDecoder,
  CTCDecoder,
  WordPieceDecoder,
} = library as unknown as {
  readonly Unigram: Kind<Model>;
  readonly WordPiece: Kind<Model>;
  readonly BertNormalizer: Kind<Normalizer>;
  readonly PrecompiledNormalizer: Kind<Normalizer>;
  readonly SplitPreTokenizer: Kind<{ readonly pattern: RegExp }>;
  readonly BPEDecoder: Kind<Decoder>;
  readonly CTCDecoder: Kind<Decoder>;
  readonly WordPieceDecoder: Kind<Decoder>;
};
