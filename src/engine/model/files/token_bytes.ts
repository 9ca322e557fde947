/** The bytes of each token of a tokenizer.json, by the rules of its decoder. */
import { byteOfToken, bytesOfCharacters, createDecoder } from "./tokenizer/decoder.ts";
import { flattenSteps, type TokenizerJson, type TokenizerStep } from "./tokenizer/json.ts";

/** Decoders whose steps work on each token by itself. A `Strip` at the start of a text alone is one of SentencePiece's. */
const BY_TOKEN = ["ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"];
/** Steps that look at the whole text, or that bytes are read before. */
const WHOLE = ["ByteFallback", "Fuse", "Strip"];

/** `undefined` for decoders that look at a token's neighbours, such as WordPiece. */
export function tokenBytesOf(
  { decoder }: Pick<TokenizerJson, "decoder">,
  { texts, special }: { texts: ReadonlyMap<number, string>; special: ReadonlySet<number> },
): ((id: number) => Uint8Array | undefined) | undefined {
  const steps = flattenSteps(decoder, "decoders");
  if (steps.length === 0 || steps.some(({ type }) => !BY_TOKEN.includes(type))) return undefined;
  const bytesOf = steps.some(({ type }) => type === "ByteLevel") ? bytesOfCharacters : sentencePiece(steps);
  return (id) => {
    const text = special.has(id) ? undefined : texts.get(id);
    return text === undefined ? undefined : bytesOf(text);
  };
}

/** `▁` for a space, `<0x0A>` for a byte that no character has; added tokens too. */
function sentencePiece(steps: readonly TokenizerStep[]): (text: string) => Uint8Array {
  const hasBytes = steps.some(({ type }) => type === "ByteFallback");
  const decoders = steps
    .filter(({ type }) => !WHOLE.includes(type))
    // That of a whole text drops the sign at its start.
    .map((step) => createDecoder(step.type === "Metaspace" ? { ...step, prepend_scheme: "never" } : step));
  const encoder = new TextEncoder();
  return (text) => {
    const byte = hasBytes ? byteOfToken(text) : undefined;
    return byte === undefined
      ? encoder.encode(decoders.reduce((at, decode) => decode([at]), text))
      : Uint8Array.of(byte);
  };
}
