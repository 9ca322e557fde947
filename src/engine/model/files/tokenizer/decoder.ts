/** How tokens become a text again: the decoders of tokenizer.json. */
import { BYTE_CHARACTERS } from "../tokenizer_alphabet.ts";
import { choiceOf, flag, flattenSteps, type TokenizerStep, text } from "./json.ts";
import { BPEDecoder, CTCDecoder, WordPieceDecoder } from "./library.ts";
import { replaceMatches, stepPattern } from "./pattern.ts";

export type Decoder = (tokens: readonly string[]) => string[];

const DECODERS: Readonly<Record<string, (step: TokenizerStep) => Decoder>> = {
  ByteLevel: () => (tokens) => [textOf(tokens.map(bytesOfCharacters))],
  ByteFallback: () => byteFallback,
  Fuse: () => (tokens) => [tokens.join("")],
  Metaspace(step) {
    const sign = text(step, "replacement", "\u2581");
    const old = flag(step, "add_prefix_space", true) ? "always" : "never";
    const drops = choiceOf(step, "prepend_scheme", ["always", "never", "first"], old) !== "never";
    return (tokens) => tokens.map((token, i) => token.replaceAll(sign, drops && i === 0 ? "" : " "));
  },
  Replace(step) {
    const [find, by] = [stepPattern(step), text(step, "content")];
    return (tokens) => tokens.map((token) => replaceMatches(token, find, by));
  },
  Strip(step) {
    const [content, start, stop] = [text(step, "content"), Number(step.start ?? 0), Number(step.stop ?? 0)];
    return (tokens) => tokens.map((token) => stripped(token, { content, start, stop }));
  },
  WordPiece: fromLibrary(WordPieceDecoder),
  BPEDecoder: fromLibrary(BPEDecoder),
  CTC: fromLibrary(CTCDecoder),
};

function fromLibrary(Kind: typeof BPEDecoder) {
  return (step: TokenizerStep): Decoder => {
    const decoder = new Kind(step);
    return (tokens) => decoder.decode_chain(tokens);
  };
}

const BYTE_OF = new Map(BYTE_CHARACTERS.map((character, byte) => [character.charCodeAt(0), byte]));
const encoder = new TextEncoder();
const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
const strictUtf8 = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** The byte of each character; the text's own bytes where one of its characters stands for none. */
export function bytesOfCharacters(token: string): Uint8Array {
  const bytes = new Uint8Array(token.length);
  for (let i = 0; i < token.length; i++) {
    const byte = BYTE_OF.get(token.charCodeAt(i));
    if (byte === undefined) return encoder.encode(token);
    bytes[i] = byte;
  }
  return bytes;
}

function textOf(parts: readonly Uint8Array[]): string {
  const bytes = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return utf8.decode(bytes);
}

/** `<0x0A>` is a byte. */
export function byteOfToken(token: string): number | undefined {
  const [, digits] = /^<0x([0-9A-Fa-f]{2})>$/.exec(token) ?? [];
  return digits === undefined ? undefined : Number.parseInt(digits, 16);
}

/** A run of bytes becomes the text that it is, or one U+FFFD a byte. */
function byteFallback(tokens: readonly string[]): string[] {
  const out: string[] = [];
  let run: number[] = [];
  const close = () => {
    if (run.length > 0) out.push(...decodedRun(run));
    run = [];
  };
  for (const token of tokens) {
    const byte = byteOfToken(token);
    if (byte !== undefined) run.push(byte);
    else {
      close();
      out.push(token);
    }
  }
  close();
  return out;
}

function decodedRun(run: readonly number[]): string[] {
  try {
    return [strictUtf8.decode(Uint8Array.from(run))];
  } catch {
    return run.map(() => "\uFFFD");
  }
}

function stripped(token: string, options: { content: string; start: number; stop: number }): string {
  const characters = Array.from(token);
  let [from, to] = [0, characters.length];
  while (from < options.start && characters[from] === options.content) from++;
  while (characters.length - to < options.stop && to > 0 && characters[to - 1] === options.content) to--;
  return characters.slice(from, to).join("");
}

/** Creates the decoder. Without one, tokens are joined by spaces. @throws for an unknown type. */
export function createDecoder(json: TokenizerStep | null | undefined): (tokens: readonly string[]) => string {
  if (!json) return (tokens) => tokens.join(" ");
  const steps = flattenSteps(json, "decoders").map((step) => {
    const create = Object.hasOwn(DECODERS, step.type) ? DECODERS[step.type] : undefined;
    if (!create) throw new Error(`decoder ${JSON.stringify(step.type)} is not known`);
    return create(step);
  });
  return (tokens) => steps.reduce<readonly string[]>((at, step) => step(at), tokens).join("");
}
