/** Packs the data of a forward_backward request into the rows of a loss. */
import type { LossRows } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { RequestDatum, TensorMessage } from "./forward_backward.ts";
import { Refusal } from "./outcome.ts";

/** Targets of one request: its sparse tensors may name more than its body has bytes for. */
export const MOST_TARGETS = 2 ** 22;
/** Values of all targets and inputs, where the body has fewer bytes. */
export const MOST_VALUES = 2 * MOST_TARGETS;
const VALUE_BYTES = 4;
/** Weight of the tokens of a datum without weights, where other data have them. */
const DEFAULT_WEIGHT = 1;

const TARGETS = "target_tokens";

/** A datum's size: its tokens, and the targets after each; undefined for a vector, which has one. */
interface Shape {
  readonly length: number;
  readonly width: number | undefined;
}

/** The names of the data's inputs in addition to the targets. */
export function inputNames(data: readonly RequestDatum[]): string[] {
  return [...new Set(data.flatMap(({ inputs }) => [...inputs.keys()]))].filter((name) => name !== TARGETS);
}

/**
 * Memory that packing takes for targets and inputs beyond the bytes of their body. Looks only at shapes, so that it says so
 * before anything is packed: a sparse tensor of some bytes may stand for gigabytes.
 * @throws Refusal 400 where a sparse tensor makes that more than a request may take.
 */
export function lossRowBytes(data: readonly RequestDatum[], body: { readonly length: number }): number {
  const names = [TARGETS, ...inputNames(data)];
  const cells = data.map(({ inputs }) => Math.max(0, ...[...inputs.values()].map(cellsOf)));
  const values = names.length * cells.reduce((sum, count) => sum + count, 0);
  const beyond = Math.max(0, VALUE_BYTES * values - body.length);
  if (beyond === 0 || values <= MOST_VALUES) return beyond;
  const i = cells.indexOf(Math.max(...cells));
  const [name, { shape }] = [...data[i]!.inputs].find(([, tensor]) => cellsOf(tensor) === cells[i])!;
  throw new Refusal(
    400,
    `Cannot train on datum ${i}: its ${name.slice(0, 100)} of shape [${shape}] is one of ${names.length} loss_fn_inputs, which take more than ${MOST_VALUES} values in this request (${values}). Give fewer targets per position, or split the batch into several requests.`,
  );
}

function cellsOf({ values, sparse, shape }: TensorMessage): number {
  return sparse ? shape.reduce((product, size) => product * size, 1) : values.length;
}

/** Packs the data, whose {@link inputNames} the loss has. @throws ConfigError naming the datum that breaks a rule. */
export function packLossRows(data: readonly RequestDatum[]): LossRows {
  const names = inputNames(data);
  const shapes = shapesOf(data, [TARGETS, ...names]);
  const offsets = sumsOf(shapes.map(({ length }) => length));
  const isMatrix = shapes[0]?.width !== undefined;
  const targetOffsets = isMatrix ? sumsOf(shapes.map(({ length, width }) => length * width!)) : offsets;
  const count = targetOffsets[data.length]!;
  const [tokens, targets] = [new Uint32Array(offsets[data.length]!), new Uint32Array(count)];
  const inputs = Object.fromEntries(
    names.map((name) => [name, new Float32Array(count).fill(name === "weights" ? DEFAULT_WEIGHT : 0)]),
  );
  for (const [i, datum] of data.entries()) {
    let at = offsets[i]!;
    for (const chunk of datum.chunks) {
      tokens.set(chunk.tokens, at);
      at += chunk.tokens.length;
    }
    for (const [name, tensor] of datum.inputs) {
      const values = denseValues(tensor, { i, name, shape: shapes[i]! });
      if (name === TARGETS) targets.set(tokenIds(values as BigInt64Array, i), targetOffsets[i]);
      else inputs[name]!.set(values as Float32Array, targetOffsets[i]);
    }
  }
  return { tokens, offsets, targets, inputs, ...(isMatrix && { targetOffsets }) };
}

/** Targets per position of each sequence, [N]; undefined where each position has one, as a vector. */
export function widthsOf({ offsets, targetOffsets }: LossRows): number[] | undefined {
  if (!targetOffsets) return undefined;
  return Array.from(
    { length: offsets.length - 1 },
    (_, i) => (targetOffsets[i + 1]! - targetOffsets[i]!) / (offsets[i + 1]! - offsets[i]!),
  );
}

/** @throws ConfigError for data of different ranks, or more targets than a request may have. */
function shapesOf(data: readonly RequestDatum[], names: readonly string[]): Shape[] {
  const shapes = data.map((datum, i) => shapeOf(datum, { i, names }));
  const isMatrix = shapes[0]?.width !== undefined;
  const other = shapes.findIndex(({ width }) => (width !== undefined) !== isMatrix);
  if (other >= 0)
    throw wrong(other, "its target_tokens must have as many dimensions as those of the request's other data.");
  const count = shapes.reduce((sum, { length, width = 1 }) => sum + length * width, 0);
  if (count <= MOST_TARGETS || !isMatrix) return shapes;
  throw new ConfigError(
    `Cannot train on the request: it has more than ${MOST_TARGETS} targets (${count}). Split the batch into several requests.`,
  );
}

/** The size of a datum whose tensors all fit it. */
function shapeOf({ chunks, inputs }: RequestDatum, { i, names }: { i: number; names: readonly string[] }): Shape {
  const other = chunks.find(({ kind }) => kind !== "text");
  if (other)
    throw wrong(
      i,
      `it has a chunk of type ${other.kind}, and this server's models read only text. Send chunks of type encoded_text.`,
    );
  const length = chunks.reduce((sum, { tokens }) => sum + tokens.length, 0);
  if (length === 0) throw wrong(i, "its model_input has no tokens.");
  const targets = inputs.get(TARGETS);
  if (!targets) throw wrong(i, "its loss_fn_inputs must have target_tokens.");
  const width = targets.shape.length === 2 ? targets.shape[1]! : undefined;
  if (width !== undefined && width < 1) throw wrong(i, `its target_tokens must name a token per position (${width}).`);
  for (const name of names) {
    const tensor = inputs.get(name);
    if (tensor) checkTensor(tensor, { i, name, shape: { length, width } });
    else if (name !== "weights") throw wrong(i, `it has no ${name}, which other data of the request have.`);
  }
  return { length, width };
}

function checkTensor(
  { values, sparse, shape }: TensorMessage,
  { i, name, shape: { length, width } }: { i: number; name: string; shape: Shape },
): void {
  const isTarget = name === TARGETS;
  if (!(values instanceof (isTarget ? BigInt64Array : Float32Array)))
    throw wrong(i, `${name} must be ${isTarget ? "int64" : "float32"}.`);
  const wanted = width === undefined ? [length] : [length, width];
  // A vector may come without its shape.
  const fits = shape.length === 0 ? width === undefined : shape.join() === wanted.join();
  const isWhole = sparse ? width !== undefined : values.length === length * (width ?? 1);
  if (fits && isWhole) return;
  const found = `${sparse ? "sparse " : ""}[${shape}] with ${values.length} elements`;
  throw wrong(
    i,
    `${name} must have one element per token${width === undefined ? "" : " and target"}, [${wanted}] (${found}).`,
  );
}

/** All cells of a matrix, 0 where a sparse one names none. @throws ConfigError for indices outside it. */
function denseValues(
  { values, sparse }: TensorMessage,
  { i, name, shape: { length, width = 1 } }: { i: number; name: string; shape: Shape },
): TensorMessage["values"] {
  if (!sparse) return values;
  const { crow, col } = sparse;
  const bad = (what: string) => wrong(i, `the sparse ${name} must have ${what}.`);
  if (col.length !== values.length) throw bad(`a column per value (${col.length} of ${values.length})`);
  if (crow.length !== length + 1 || crow[0] !== 0n || crow[length] !== BigInt(values.length))
    throw bad(`${length + 1} row starts from 0 to ${values.length}`);
  const dense = values instanceof BigInt64Array ? new BigInt64Array(length * width) : new Float32Array(length * width);
  for (let row = 0; row < length; row++) {
    const [start, end] = [Number(crow[row]), Number(crow[row + 1])];
    if (start > end || end > values.length) throw bad("row starts that ascend");
    for (let at = start; at < end; at++) {
      const column = Number(col[at]);
      if (column < 0 || column >= width) throw bad(`columns in [0, ${width}) (${column})`);
      dense[row * width + column] = values[at]!;
    }
  }
  return dense;
}

function sumsOf(sizes: readonly number[]): Uint32Array {
  const sums = new Uint32Array(sizes.length + 1);
  for (const [i, size] of sizes.entries()) sums[i + 1] = sums[i]! + size;
  return sums;
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
