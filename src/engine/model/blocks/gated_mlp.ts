/**
 * The gated MLP: out = x + (act(gate) up) W_down^T with [gate | up] = norm(x) W_gate_up^T. T tokens, C channels, F its width. Its rows
 * are taken in runs, so that gate and up of all tokens need not fit one binding.
 */
import type { Buffer, Device } from "../../compute/device.ts";
import type { GradientSink } from "../gradient_sink.ts";
import { GATED } from "../kernels/geglu.ts";
import { bufferRows, type RowRun, rowRuns } from "../row_windows.ts";
import { Scratch } from "../scratch.ts";
import type { Weights } from "../weights.ts";
import type { AnyBlock, BlockContext, BlockKind, BlockTensor, ForwardResult } from "./block.ts";
import type { Product } from "./residual.ts";

export interface GatedMlpBlock extends AnyBlock {
  readonly kind: "gated_mlp";
  /** The names of the tensors of a model folder, without `.weight` and `.bias`. */
  readonly tensors: { readonly gate: string; readonly up: string; readonly down: string };
  readonly gateUp: Product;
  /** F. */
  readonly width: number;
  readonly activation: keyof typeof GATED;
}

/** [gate | up] of each run of rows, [rows, 2 F]. */
export type GatedMlpState = readonly Buffer[];

/** The projections that an adapter can be put on, by the last parts of their names. */
export const MLP_TARGETS = ["gate_proj", "up_proj", "down_proj"] as const;

/**
 * Gate and up of one run stay below this. It is the least that WebGPU guarantees for a binding, so that every device cuts alike and
 * adds up the gradients of weights in the same order.
 */
const MAX_RUN_BYTES = 128 * 2 ** 20;

/** Rows of one run. */
interface RunRows {
  readonly block: GatedMlpBlock;
  readonly x: Buffer;
  readonly rows: number;
  readonly scratch: Scratch;
}

export const gatedMlpKind: BlockKind<GatedMlpBlock, GatedMlpState> = {
  weights,

  cost: ({ width }, hiddenSize) => ({ matrixElements: 3 * width * hiddenSize }),

  widest: () => 0,

  forward(context, weights, at): ForwardResult<GatedMlpState> {
    const { block, input, scratch, keep } = at;
    const { hiddenSize: C } = context;
    const out = scratch.floats(input.count * C, "residual");
    const state = runsOf(context, block, input.count).map((run) => {
      const runWeights = weights.ofRows?.(run) ?? weights;
      const [x, y] = [bufferRows(at.x, run, C), bufferRows(out, run, C)];
      return forwardRun(context, runWeights, { block, x, y, rows: run.rows, scratch, keep });
    });
    return { out, state: keep ? state : undefined };
  },

  backward(context, weights, at): void {
    const { hiddenSize: C, device } = context;
    for (const [i, run] of runsOf(context, at.block, at.input.count).entries())
      Scratch.during(device, (scratch) => {
        const [x, grad] = [bufferRows(at.x, run, C), bufferRows(at.grad, run, C)];
        const { block, sink } = at;
        backwardRun(context, weights, { block, sink, x, grad, rows: run.rows, gateUp: at.state?.[i], scratch });
      });
  },

  step(context, weights, at): void {
    const { hiddenSize: C, device } = context;
    for (const run of runsOf(context, at.block, at.rows.count)) {
      const [x, y] = [bufferRows(at.x, run, C), bufferRows(at.out, run, C)];
      const runWeights = weights.ofRows?.(run) ?? weights;
      Scratch.during(device, (scratch) =>
        stepRun(context, runWeights, { block: at.block, x, y, rows: run.rows, scratch }),
      );
    }
  },
};

function weights(block: GatedMlpBlock, C: number): BlockTensor[] {
  const { tensors, width: F, gateUp, output, inputNorm } = block;
  const parts = [
    [tensors.gate, "ffn_gate"],
    [tensors.up, "ffn_up"],
  ] as const;
  return [
    { name: inputNorm, shape: [C], role: "norm", gguf: "ffn_norm" },
    ...parts.map(([name, gguf]) => {
      return { name: `${name}.weight`, shape: [F, C], role: "matrix", fused: gateUp.matrix, gguf } as const;
    }),
    ...parts.flatMap(([name, gguf]) =>
      gateUp.bias === undefined
        ? []
        : [{ name: `${name}.bias`, shape: [F], role: "bias", fused: gateUp.bias, gguf } as const],
    ),
    { name: output.matrix, shape: [C, F], role: "matrix", isOutput: true, gguf: "ffn_down" },
    ...(output.bias === undefined ? [] : [{ name: output.bias, shape: [C], role: "bias", gguf: "ffn_down" } as const]),
    ...(output.norm === undefined
      ? []
      : [{ name: output.norm, shape: [C], role: "norm", gguf: "post_ffw_norm" } as const]),
  ];
}

/** The runs of rows, one after another. */
function runsOf(
  { device, hiddenSize: sliced }: { device: Device; hiddenSize: number },
  { width }: GatedMlpBlock,
  tokens: number,
): RowRun[] {
  return rowRuns(device, tokens, { width: 2 * width, sliced, mostBytes: MAX_RUN_BYTES });
}

/** @returns [gate | up], which is freed unless it is kept */
function forwardRun(context: BlockContext, weights: Weights, at: RunRows & { y: Buffer; keep: boolean }): Buffer {
  const { block, x, y, rows, scratch, keep } = at;
  const { normed, inverse } = context.norms.rows(weights, { name: block.inputNorm, x, rows, scratch });
  const gateUp = project(context, weights, { block, x: normed, rows, scratch });
  scratch.free(normed, inverse);
  const active = activate(context, gateUp, { block, rows, scratch });
  context.residual.add(weights, { output: block.output, x, input: active, y, rows, scratch });
  scratch.free(active);
  if (!keep) scratch.free(gateUp);
  return gateUp;
}

/** [gate | up] = x W_gate_up^T (+ bias), [rows, 2 F]. */
function project({ residual }: BlockContext, weights: Weights, { block, x, rows, scratch }: RunRows): Buffer {
  const width = 2 * block.width;
  const gateUp = scratch.floats(rows * width, "gate and up");
  residual.multiply(weights, { product: block.gateUp, x, y: gateUp, rows, width });
  return gateUp;
}

/** act(gate) up, [rows, F]. */
function activate({ device }: BlockContext, gateUp: Buffer, { block, rows, scratch }: Omit<RunRows, "x">): Buffer {
  const { width, activation } = block;
  const active = scratch.floats(rows * width, "activation");
  device.dispatch(GATED[activation].forward, { buffers: { gateUp, out: active }, params: { rows, width } });
  return active;
}

interface RunGradient extends RunRows {
  readonly grad: Buffer;
  readonly gateUp: Buffer | undefined;
  readonly sink: GradientSink;
}

function backwardRun(context: BlockContext, weights: Weights, at: RunGradient): void {
  const { block, x, rows, scratch, sink } = at;
  const { device, norms, residual } = context;
  const { width: F, output, gateUp: product, inputNorm } = block;
  const norm = norms.rows(weights, { name: inputNorm, x, rows, scratch });
  const gateUp = at.gateUp ?? project(context, weights, { block, x: norm.normed, rows, scratch });
  const dy = outputGradient(context, weights, { ...at, gateUp });
  const activeGrad = scratch.floats(rows * F, "gradient");
  weights.applyBackward(output.matrix, { dy, dx: activeGrad, m: rows });
  const gateUpGrad = scratch.floats(rows * 2 * F, "gradient");
  device.dispatch(GATED[block.activation].backward, {
    buffers: { gateUp, outGrad: activeGrad, gateUpGrad },
    params: { rows, width: F },
  });
  scratch.free(gateUp);
  // The kernel has put the activations in place of their gradient.
  residual.outputWeights(dy, { output, input: activeGrad, rows, sink, scratch });
  scratch.free(activeGrad);
  residual.biasGradient(gateUpGrad, { bias: product.bias, rows, width: 2 * F, sink, scratch });
  residual.normedGradient(weights, at, { ...norm, matrix: product.matrix, dy: gateUpGrad, norm: inputNorm });
}

/** The gradient of the last product, whose input is computed again for a norm between it and the residual stream. */
function outputGradient(context: BlockContext, weights: Weights, at: RunGradient & { gateUp: Buffer }): Buffer {
  const { block, gateUp, scratch } = at;
  let active: Buffer | undefined;
  const input = () => {
    active = activate(context, gateUp, at);
    return active;
  };
  const dy = context.residual.outputGradient(weights, { ...at, output: block.output, input });
  if (active) scratch.free(active);
  return dy;
}

/** y = x + mlp(norm(x)) of few rows, in as few dispatches as the device has kernels for. */
function stepRun(context: BlockContext, weights: Weights, at: RunRows & { y: Buffer }): void {
  const { block, x, y, rows, scratch } = at;
  const { norms, residual } = context;
  const { output, activation, inputNorm } = block;
  const isPlain = activation === "silu" && output.norm === undefined && !output.bias;
  if (isPlain && weights.fuses(output.matrix, { part: "swiglu_input", m: rows })) {
    const { normed } = norms.rows(weights, { name: inputNorm, x, rows, scratch });
    const gateUp = project(context, weights, { block, x: normed, rows, scratch });
    weights.apply(output.matrix, { x: gateUp, y, m: rows, addend: x, input: { kind: "swiglu" } });
    return;
  }
  const active = activatedRun(context, weights, { block, x, rows, scratch });
  residual.add(weights, { output, x, input: active, y, rows, scratch });
}

/** act(gate) up of norm(x), [rows, F]; for few rows of a GPU in one dispatch. */
function activatedRun(context: BlockContext, weights: Weights, at: RunRows): Buffer {
  const { block, x, rows, scratch } = at;
  const { width, activation, gateUp: product, inputNorm: norm } = block;
  const { matrix, bias } = product;
  if (activation === "silu" && bias === undefined && weights.fuses(matrix, { part: "swiglu_output", m: rows })) {
    const y = scratch.floats(rows * width, "activation");
    context.residual.multiplyNormed(weights, { norm, product, x, y, rows, width, scratch, output: { kind: "swiglu" } });
    return y;
  }
  const gateUp = scratch.floats(rows * 2 * width, "gate and up");
  context.residual.multiplyNormed(weights, { norm, product, x, y: gateUp, rows, width: 2 * width, scratch });
  const active = activate(context, gateUp, at);
  scratch.free(gateUp);
  return active;
}
