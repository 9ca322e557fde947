/** The tokens whose log-probs a request wants at places of its prompt: `target_prompt_logprobs`, dense or sparse. */
import { z } from "zod";
import type { PromptTargets } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { bytesOf, ProtobufWriter } from "../../../leaves/protobuf.ts";
import { DTYPE } from "./forward_backward.ts";

/** Cells that a request may list, those without a token included. */
export const MOST_PROMPT_CELLS = 32_768;
/** A cell that wants nothing. */
const NOTHING = -1;

const count = z.number().int().min(0);

/** Token ids of shape [prompt length - 1, K]: row i stands for the prompt's token i + 1. */
export const PROMPT_TARGETS = z.object({
  data: z.array(z.number().int()),
  dtype: z.literal("int64", "it must be int64"),
  shape: z.array(count).nullish(),
  /** Compressed rows: where each row's cells start, and each cell's column. */
  sparse_crow_indices: z.array(count).nullish(),
  sparse_col_indices: z.array(count).nullish(),
});

export type PromptTargetTensor = z.output<typeof PROMPT_TARGETS>;

/**
 * The targets that the tensor names.
 * @throws ConfigError for a tensor that does not fit the prompt, names no token, or one outside the vocabulary.
 */
export function promptTargets(
  tensor: PromptTargetTensor,
  of: { readonly promptLength: number; readonly vocabSize: number },
): PromptTargets {
  const { data } = tensor;
  const rows = rowStarts(tensor, of.promptLength - 1);
  const named = [...data.keys()].filter((cell) => data[cell] !== NOTHING);
  const outside = named.find((cell) => data[cell]! < 0 || data[cell]! >= of.vocabSize);
  if (outside !== undefined)
    throw wrong(`must hold token ids in [0, ${of.vocabSize}), or -1 for none (${data[outside]})`);
  if (named.length === 0) throw wrong("must name at least one token");
  const positions = new Uint32Array(named.length);
  let row = 0;
  for (const [r, cell] of named.entries()) {
    while (rows(row + 1) <= cell) row++;
    positions[r] = row + 1;
  }
  return { positions, tokens: Uint32Array.from(named, (cell) => data[cell]!) };
}

/** Returns where each row's cells start. */
function rowStarts(tensor: PromptTargetTensor, length: number): (row: number) => number {
  const { data, shape, sparse_crow_indices: crow, sparse_col_indices: columns } = tensor;
  if (data.length > MOST_PROMPT_CELLS)
    throw wrong(
      `may have ${MOST_PROMPT_CELLS} cells (${data.length}). Send only the cells that name a token, as a sparse tensor`,
    );
  if (shape?.length !== 2 || shape[0] !== length)
    throw wrong(`must have the shape [${length}, K], a row for each token of the prompt but its first ([${shape}])`);
  const width = shape[1]!;
  if (!crow || !columns) {
    if (crow || columns || data.length !== length * width)
      throw wrong(`of shape [${shape}] must have ${length * width} cells, or row starts and columns (${data.length})`);
    return (row) => row * width;
  }
  const ascends = crow.every((start, i) => start >= (crow[i - 1] ?? 0));
  if (crow.length !== length + 1 || crow[0] !== 0 || crow[length] !== data.length || !ascends)
    throw wrong(`must have ${length + 1} row starts that ascend from 0 to ${data.length}`);
  if (columns.length !== data.length || columns.some((column) => column >= width))
    throw wrong(`must have a column in [0, ${width}) for each of its ${data.length} cells`);
  return (row) => crow[row]!;
}

/** A tensor of the same shape and layout with the log-probs, 0 where a cell named no token. */
export function encodeTargetLogprobs(tensor: PromptTargetTensor, logprobs: Float32Array): ProtobufWriter {
  const { data, shape, sparse_crow_indices: crow, sparse_col_indices: columns } = tensor;
  let r = 0;
  const values = bytesOf(Float32Array.from(data, (id) => (id === NOTHING ? 0 : logprobs[r++]!)));
  const indices = (of: readonly number[]) => bytesOf(BigInt64Array.from(of, BigInt));
  const message = new ProtobufWriter();
  if (crow && columns)
    message.message(2, new ProtobufWriter().bytes(1, values).bytes(2, indices(crow)).bytes(3, indices(columns)));
  else message.bytes(1, values);
  message.varint(3, DTYPE.float32);
  for (const size of shape!) message.varint(4, size);
  return message;
}

function wrong(why: string): ConfigError {
  return new ConfigError(`Cannot sample: target_prompt_logprobs ${why}.`, { path: "target_prompt_logprobs" });
}
