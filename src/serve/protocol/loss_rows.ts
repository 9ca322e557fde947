/** From the data of a forward_backward request to the packed rows of a loss. */
import type { LossRows } from "../../contract/engine.ts";
import { ConfigError } from "../../errors.ts";
import type { Datum, TensorMessage } from "./forward_backward.ts";

/** Packs the data. @throws ConfigError naming the datum that breaks a rule. */
export function rowsOf(data: readonly Datum[]): LossRows {
  const offsets = new Uint32Array(data.length + 1);
  const names = [...new Set(data.flatMap(({ inputs }) => [...inputs.keys()]))];
  for (const [i, datum] of data.entries()) offsets[i + 1] = offsets[i]! + lengthOf(datum, { i, names });
  const total = offsets[data.length]!;
  const [tokens, targets] = [new Uint32Array(total), new Uint32Array(total)];
  const inputs = Object.fromEntries(
    names.filter((name) => name !== "target_tokens").map((name) => [name, new Float32Array(total)]),
  );
  for (const [i, datum] of data.entries()) {
    let at = offsets[i]!;
    for (const chunk of datum.chunks) {
      tokens.set(chunk.tokens, at);
      at += chunk.tokens.length;
    }
    for (const [name, { values }] of datum.inputs)
      if (name === "target_tokens") targets.set(tokenIds(values as BigInt64Array, i), offsets[i]);
      else inputs[name]!.set(values as Float32Array, offsets[i]);
  }
  return { tokens, offsets, targets, inputs };
}

/** Tokens of a datum whose tensors all fit them. */
function lengthOf({ chunks, inputs }: Datum, { i, names }: { i: number; names: readonly string[] }): number {
  const other = chunks.find(({ kind }) => kind !== "text");
  if (other) throw wrong(i, `it has a chunk of type ${other.kind}, and this server's models read only text.`);
  const length = chunks.reduce((sum, { tokens }) => sum + tokens.length, 0);
  if (length === 0) throw wrong(i, "its model_input has no tokens.");
  if (!inputs.has("target_tokens")) throw wrong(i, "its loss_fn_inputs must have target_tokens.");
  for (const name of names) {
    const tensor = inputs.get(name);
    if (!tensor) throw wrong(i, `it has no ${name}, which other data of the request have.`);
    checkTensor(tensor, { i, name, length });
  }
  return length;
}

function checkTensor(
  { values, isSparse, shape }: TensorMessage,
  { i, name, length }: { i: number; name: string; length: number },
): void {
  const isTarget = name === "target_tokens";
  if (!(values instanceof (isTarget ? BigInt64Array : Float32Array)))
    throw wrong(i, `${name} must be ${isTarget ? "int64" : "float32"}.`);
  const isVector = !isSparse && shape.length <= 1;
  if (isVector && values.length === length && (shape[0] ?? length) === length) return;
  const given = `${isSparse ? "sparse " : ""}[${shape}] with ${values.length} elements`;
  throw wrong(
    i,
    `${name} must be dense with one element per token of model_input, [${length}] (${given}). Several targets per position are not supported.`,
  );
}

/** Ids above 32 bits become the largest 32-bit id, which is outside every vocabulary. */
function tokenIds(values: BigInt64Array, i: number): Uint32Array {
  // Reads 32-bit halves, low before high: indexing the array itself allocates a bigint per token.
  const halves = new Uint32Array(values.buffer, values.byteOffset, 2 * values.length);
  const ids = new Uint32Array(values.length);
  for (let t = 0; t < ids.length; t++) {
    const high = halves[2 * t + 1]!;
    if (high >= 2 ** 31) throw wrong(i, `target_tokens must be token ids (${values[t]}).`);
    ids[t] = high === 0 ? halves[2 * t]! : 2 ** 32 - 1;
  }
  return ids;
}

function wrong(i: number, why: string): ConfigError {
  return new ConfigError(`Cannot train on datum ${i}: ${why}`);
}
