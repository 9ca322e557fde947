/** Packed sequences on a device: the input of a forward pass. */
import type { Buffer } from "../compute/device.ts";
import type { PackedTokens } from "../contract/backend.ts";
import type { Scratch } from "./scratch.ts";

/** T tokens with their place in their sequences. */
export interface PackedInput {
  /** T. */
  readonly count: number;
  /** [T] each, u32. */
  readonly tokens: Buffer;
  /** Index of each token in its sequence. */
  readonly positions: Buffer;
  /** First token of each token's sequence, and the one after its last. */
  readonly sequenceStart: Buffer;
  readonly sequenceEnd: Buffer;
  /** The tokens on the host, for the gradient of the embedding. */
  readonly ids: Uint32Array;
}

/** Uploads the sequences tokens[offsets[i] .. offsets[i+1]). `first`: tokens of the first one before these, default 0. */
export function packInput(scratch: Scratch, at: PackedTokens & { readonly first?: number }): PackedInput {
  const { tokens, offsets, first = 0 } = at;
  const count = tokens.length;
  const [positions, start, end] = [new Uint32Array(count), new Uint32Array(count), new Uint32Array(count)];
  for (let i = 0; i + 1 < offsets.length; i++)
    for (let t = offsets[i]!; t < offsets[i + 1]!; t++) {
      positions[t] = t - offsets[i]! + (i === 0 ? first : 0);
      start[t] = offsets[i]!;
      end[t] = offsets[i + 1]!;
    }
  return {
    count,
    tokens: scratch.upload(tokens, "tokens"),
    positions: scratch.upload(positions, "positions"),
    sequenceStart: scratch.upload(start, "sequence starts"),
    sequenceEnd: scratch.upload(end, "sequence ends"),
    ids: tokens,
  };
}

/** Tokens of the longest of the sequences tokens[offsets[i] .. offsets[i+1]). */
export function longestSequence(offsets: Uint32Array): number {
  let longest = 0;
  for (let i = 0; i + 1 < offsets.length; i++) longest = Math.max(longest, offsets[i + 1]! - offsets[i]!);
  return longest;
}
