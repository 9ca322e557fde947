/** The bytes of each token of a tokenizer.json, by the rules of its decoder. */
import { BYTE_CHARACTERS } from "./tokenizer_alphabet.ts";

interface Decoder {
  readonly type?: string;
  readonly decoders?: readonly Decoder[];
}

interface TokenizerJson {
  readonly decoder?: Decoder | null;
  readonly added_tokens?: readonly { readonly id: number; readonly content: string; readonly special?: boolean }[];
}

/** Decoders whose steps work on each token by itself. A `Strip` at the start of a text alone is one of SentencePiece's. */
const BY_TOKEN = ["ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"];

/** `undefined` for decoders that look at a token's neighbours, such as WordPiece. */
export function tokenBytesOf(
  json: unknown,
  vocabulary: ReadonlyMap<string, number>,
): ((id: number) => Uint8Array | undefined) | undefined {
  const { decoder, added_tokens = [] } = (json ?? {}) as TokenizerJson;
  const steps = decoder ? stepsOf(decoder) : [];
  if (steps.length === 0 || steps.some((step) => !BY_TOKEN.includes(step))) return undefined;
  const bytesOf = steps.includes("ByteLevel") ? byteLevel() : sentencePiece(steps);
  const added = new Map(added_tokens.map((token) => [token.id, token]));
  let texts: Map<number, string> | undefined;
  return (id) => {
    const known = added.get(id);
    if (known) return known.special ? undefined : new TextEncoder().encode(known.content);
    texts ??= new Map(Array.from(vocabulary, ([text, of]) => [of, text]));
    const text = texts.get(id);
    return text === undefined ? undefined : bytesOf(text);
  };
}

function stepsOf({ type, decoders }: Decoder): string[] {
  return type === "Sequence" ? (decoders ?? []).flatMap(stepsOf) : [String(type)];
}

/** GPT-2's: a printable character for each byte. */
function byteLevel(): (text: string) => Uint8Array {
  const byteOf = new Map(BYTE_CHARACTERS.map((character, byte) => [character.codePointAt(0)!, byte]));
  // A vocabulary has 100,000 tokens and more, which are all asked for before the first constrained reply.
  return (text) => {
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) {
      const byte = byteOf.get(text.charCodeAt(i));
      if (byte === undefined) return mixed(text, byteOf);
      bytes[i] = byte;
    }
    return bytes;
  };
}

/** Characters that stand for no byte stand for themselves, as in the decoder. */
function mixed(text: string, byteOf: ReadonlyMap<number, number>): Uint8Array {
  return Uint8Array.from(
    [...text].flatMap((it) => byteOf.get(it.codePointAt(0)!) ?? [...new TextEncoder().encode(it)]),
  );
}

/** `▁` for a space, `<0x0A>` for a byte that no character has. */
function sentencePiece(steps: readonly string[]): (text: string) => Uint8Array {
  const hasBytes = steps.includes("ByteFallback");
  return (text) => {
    const byte = hasBytes ? /^<0x([0-9A-Fa-f]{2})>$/.exec(text)?.[1] : undefined;
    return byte ? Uint8Array.of(Number.parseInt(byte, 16)) : new TextEncoder().encode(text.replaceAll("\u2581", " "));
  };
}
