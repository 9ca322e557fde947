/** The weights of a model before training: drawn, or read from a model folder. */

import { mulberry32, normals } from "../../leaves/random.ts";
import type { Device } from "../compute/device.ts";
import type { ModelConfig } from "./config.ts";
import type { ModelFolder } from "./files/folder.ts";
import { startLoading } from "./files/loading.ts";
import { fusedParts, type Part } from "./fused_parts.ts";
import { initialScore } from "./initial_score.ts";
import { packedFormats, type StorageOptions } from "./storage_format.ts";
import { StoredWeights } from "./stored_weights.ts";
import { EMBEDDING, SCORE } from "./weights.ts";

/**
 * Fresh weights: matrices normal with deviation 1/sqrt(in), those that write into the residual stream smaller by
 * sqrt(2 layers), embeddings 0.02, norms one, biases zero.
 */
export function drawWeights(
  device: Device,
  config: ModelConfig,
  { seed = 0, ...storage }: StorageOptions & { seed?: number | undefined } = {},
): StoredWeights {
  const formats = packedFormats(fusedParts(config), { ...storage, typeOf: () => undefined });
  const weights = new StoredWeights(device, config, { formats });
  const next = mulberry32(seed);
  for (const part of weights.parts) weights.writeTensor(part, initialValues(part, { config, next }));
  return weights;
}

function initialValues(part: Part, { config, next }: { config: ModelConfig; next: () => number }): Float32Array {
  const { role, rows, columns } = part;
  const length = rows * columns;
  if (role === "norm") return new Float32Array(length).fill(config.unitOffsetNorms ? 0 : 1);
  if (role === "bias") return new Float32Array(length);
  return normals(length, { next, deviation: initialDeviation(part, config) });
}

function initialDeviation({ tensor, columns, isOutput }: Part, { layers }: ModelConfig): number {
  if (tensor === EMBEDDING) return 0.02;
  return 1 / Math.sqrt(columns) / (isOutput ? Math.sqrt(2 * layers) : 1);
}

interface LoadingOptions extends StorageOptions {
  readonly untied?: boolean;
  readonly label?: string;
  /** Gives a model without a scalar head one, drawn from this seed. */
  readonly scoreSeed?: number;
  readonly pieceElements?: number;
}

/** Elements that are read at a time, so that host memory holds a piece of a tensor. */
const PIECE_ELEMENTS = 2 ** 24;

/**
 * Reads a model folder's weights onto a device.
 * @param options.untied gives a model with a tied output matrix a separate one, equal to the embedding table.
 * @param options.scoreSeed puts a scalar head in place of the output matrix; a folder that has one keeps its values.
 * @param options.pieceElements elements read at a time, a multiple of 64. Default 2^24.
 */
export async function loadWeights(
  device: Device,
  folder: ModelFolder,
  { untied = false, pieceElements = PIECE_ELEMENTS, label, scoreSeed, ...storage }: LoadingOptions = {},
): Promise<StoredWeights> {
  const isUntied = folder.config.tied && untied;
  const isScored = scoreSeed !== undefined;
  const config = { ...folder.config, ...(isUntied && { tied: false }), ...(isScored && { scoreHead: true }) };
  const sourceOf = (tensor: string) => (isUntied && tensor === "lm_head.weight" ? EMBEDDING : tensor);
  const typeOf = (tensor: string) => folder.tensors.get(sourceOf(tensor))?.dtype;
  const formats = packedFormats(fusedParts(config), { ...storage, typeOf });
  const weights = new StoredWeights(device, config, { formats, ...(label !== undefined && { label }) });
  try {
    const isDrawn = isScored && !folder.config.scoreHead;
    if (isDrawn) weights.values.write(SCORE, initialScore(config, mulberry32(scoreSeed)));
    const parts = weights.parts.filter(({ tensor }) => !isDrawn || tensor !== SCORE);
    await readInto(weights, { folder, parts, sourceOf, pieceElements });
    return weights;
  } catch (error) {
    // The next attempt must not find less memory.
    weights.release();
    throw error;
  }
}

async function readInto(
  weights: StoredWeights,
  from: {
    folder: ModelFolder;
    parts: readonly Part[];
    sourceOf: (tensor: string) => string;
    pieceElements: number;
  },
): Promise<void> {
  const { folder, parts, sourceOf, pieceElements } = from;
  // With no recorded work before them, writes go straight to the device, without a second copy in host memory.
  await weights.device.submit();
  const infoOf = ({ tensor }: Part) => folder.tensors.get(sourceOf(tensor));
  const sizeOf = (part: Part) => infoOf(part)?.byteLength ?? 0;
  const report = startLoading(folder.name, parts.map(sizeOf));
  for (const part of parts) {
    const source = sourceOf(part.tensor);
    const isPublished = infoOf(part)?.dtype === "BF16" && weights.formatOf(part.fused) === "bfloat16";
    for (let start = 0; start < part.rows * part.columns; start += pieceElements) {
      const range = { start, length: Math.min(pieceElements, part.rows * part.columns - start) };
      if (isPublished) weights.writeBfloat16(part, await folder.readBytes(source, range), start);
      else weights.writeTensor(part, await folder.read(source, range), start);
    }
    report(sizeOf(part));
  }
}
