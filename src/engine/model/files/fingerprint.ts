/** Identifies a model by its shape and a sample of its weights. */
import type { ModelConfig } from "../config.ts";
import type { TensorFiles } from "./tensor_files.ts";

/** Elements read from each end of a tensor. Training changes nearly every element. */
const ENDS = 32;

/**
 * SHA-256, in hex, of the shape in `config.json` and of both ends of every tensor as f32. It does not depend on the
 * folder's name or on files without weights.
 */
export async function fingerprintOf({
  config,
  tensors,
  read,
}: TensorFiles & { readonly config: ModelConfig }): Promise<string> {
  const parts: Uint8Array[] = [new TextEncoder().encode(shapeText(config))];
  for (const [name, { shape }] of [...tensors].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const size = shape.reduce((product, each) => product * each, 1);
    const length = Math.min(ENDS, size);
    parts.push(new TextEncoder().encode(`\n${name} ${shape}\n`));
    for (const start of [0, size - length]) parts.push(floatBytes(await read(name, { start, length })));
  }
  return sha256(parts);
}

/** SHA-256 of the concatenated parts, in hex. */
export async function sha256(parts: readonly Uint8Array[]): Promise<string> {
  const whole = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  const digest = await crypto.subtle.digest("SHA-256", whole);
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The bytes of an array, without a copy. */
export function floatBytes({ buffer, byteOffset, byteLength }: Float32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** Differences of two configurations, each `key: one, other`. Empty when a forward pass is the same for both. */
export function configDifferences(config: ModelConfig, other: ModelConfig): string[] {
  const [a, b] = [shapeOf(config), shapeOf(other)];
  const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
  return Array.from(keys)
    .filter((key) => JSON.stringify(a[key]) !== JSON.stringify(b[key]))
    .map((key) => `${key}: ${JSON.stringify(a[key])}, ${JSON.stringify(b[key])}`);
}

/** The fields that a forward pass depends on. */
function shapeOf({ contextLength, eosTokenIds, bosTokenId, padTokenId, ...shape }: ModelConfig) {
  return shape as Readonly<Record<string, unknown>>;
}

function shapeText(config: ModelConfig): string {
  const entries = Object.entries(shapeOf(config)).sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify(entries.filter(([, value]) => value !== undefined));
}
