/**
 * Bodies compressed with zstd. Frame headers are checked before anything is allocated, because the decoder trusts them.
 * @see RFC 8878
 */
import { yieldToEventLoop } from "./event_loop.ts";
import { Refusal } from "./refusal.ts";

/** Limits of one request. */
export const ZSTD_LIMITS = {
  frames: 16,
  blocks: 65_536,
  /** The largest window that every decoder must support (RFC 8878, 3.1.1.1.2). */
  windowBytes: 8 * 2 ** 20,
} as const;
const MOST_BLOCK_BYTES = 128 * 2 ** 10;
const MAGIC = 0xfd2fb528;

interface Frame {
  readonly bytes: Uint8Array;
  /** Bytes of its content, exactly or at most. */
  readonly size: number;
  readonly isExact: boolean;
}

/** The reference decoder, as WebAssembly. */
interface Decoder {
  init(): Promise<void>;
  decode(frame: Uint8Array, size: number): Uint8Array;
}
let decoder: Promise<Decoder> | undefined;

/**
 * Decompresses frame after frame into `take`.
 * @param options.limit of all frames together, bytes.
 * @throws Refusal 413 beyond the limit, 422 for damaged content or a frame beyond {@link ZSTD_LIMITS}.
 */
export async function decompress(
  bytes: Uint8Array,
  options: {
    readonly limit: number;
    readonly tooLarge: () => Refusal;
    readonly take: (piece: Uint8Array) => void;
  },
): Promise<void> {
  const frames = framesOf(bytes);
  const stated = frames.reduce((sum, { size, isExact }) => sum + (isExact ? size : 0), 0);
  if (stated > options.limit) throw options.tooLarge();
  decoder ??= openDecoder();
  const zstd = await decoder;
  let left = options.limit;
  for (const frame of frames) {
    const piece = decodeFrame(zstd, frame, left);
    if (piece === undefined) throw frame.size > left ? options.tooLarge() : damaged("its content is damaged");
    left -= piece.length;
    options.take(piece);
    await yieldToEventLoop();
  }
}

async function openDecoder(): Promise<Decoder> {
  const { ZSTDDecoder } = await import("zstddec");
  const zstd = new ZSTDDecoder();
  await zstd.init();
  return zstd;
}

/** The frame's content; undefined when it is damaged or larger than `most`. */
function decodeFrame(zstd: Decoder, { bytes, size, isExact }: Frame, most: number): Uint8Array | undefined {
  if (size === 0) return new Uint8Array();
  if (isExact && size > most) return undefined;
  const content = zstd.decode(bytes, Math.min(size, most));
  // The decoder returns nothing when it fails.
  return isExact ? (content.length === size ? content : undefined) : content.length > 0 ? content : undefined;
}

/** @throws Refusal 422 */
function framesOf(bytes: Uint8Array): Frame[] {
  const frames: Frame[] = [];
  let blocks = 0;
  for (let at = 0; at < bytes.length; ) {
    if (frames.length === ZSTD_LIMITS.frames) throw damaged(`it may hold ${ZSTD_LIMITS.frames} frames at most`);
    const walked = walkFrame(bytes, { from: at, blocks: ZSTD_LIMITS.blocks - blocks });
    frames.push({ ...walked, bytes: bytes.subarray(at, walked.end) });
    blocks += walked.blocks;
    at = walked.end;
  }
  if (frames.length === 0) throw damaged("it is empty");
  return frames;
}

function walkFrame(bytes: Uint8Array, { from, blocks: most }: { from: number; blocks: number }) {
  const header = readHeader(bytes, from);
  let [at, atMost, blocks] = [header.end, 0, 0];
  for (let isLast = false; !isLast; blocks++) {
    if (blocks === most) throw damaged(`it may hold ${ZSTD_LIMITS.blocks} blocks at most`);
    const block = number(bytes, { at, length: 3 });
    const [type, length] = [(block >>> 1) & 3, block >>> 3];
    isLast = (block & 1) === 1;
    if (type === 3 || length > MOST_BLOCK_BYTES) throw damaged("a block is invalid");
    atMost += type === 2 ? MOST_BLOCK_BYTES : length;
    at += 3 + (type === 1 ? 1 : length);
  }
  const end = at + (header.hasChecksum ? 4 : 0);
  if (end > bytes.length) throw damaged("it is cut off");
  return { end, blocks, size: header.size ?? atMost, isExact: header.size !== undefined };
}

function readHeader(bytes: Uint8Array, from: number) {
  if (number(bytes, { at: from, length: 4 }) !== MAGIC) throw damaged("a frame must begin with zstd's magic number");
  const flags = number(bytes, { at: from + 4, length: 1 });
  if (flags & 3) throw damaged("it must not need a dictionary");
  if (flags & 8) throw damaged("a reserved bit is set");
  const isSingle = (flags & 32) !== 0;
  const sizeLength = [isSingle ? 1 : 0, 2, 4, 8][flags >>> 6]!;
  const sizeAt = from + (isSingle ? 5 : 6);
  const size =
    sizeLength === 0 ? undefined : number(bytes, { at: sizeAt, length: sizeLength }) + (sizeLength === 2 ? 256 : 0);
  const window = isSingle ? (size ?? 0) : windowOf(number(bytes, { at: from + 5, length: 1 }));
  if (window > ZSTD_LIMITS.windowBytes)
    throw damaged(`its window is larger than ${ZSTD_LIMITS.windowBytes} bytes (${window}). Compress at a lower level`);
  return { end: sizeAt + sizeLength, size, hasChecksum: (flags & 4) !== 0 };
}

function windowOf(descriptor: number): number {
  const base = 2 ** (10 + (descriptor >>> 3));
  return base + (base / 8) * (descriptor & 7);
}

/** Little-endian; beyond 2^53 as the nearest number. */
function number(bytes: Uint8Array, { at, length }: { at: number; length: number }): number {
  if (at + length > bytes.length) throw damaged("it is cut off");
  let value = 0;
  for (let i = length - 1; i >= 0; i--) value = value * 256 + bytes[at + i]!;
  return value;
}

function damaged(why: string): Refusal {
  return new Refusal(422, `Cannot read the body as zstd: ${why}.`);
}
