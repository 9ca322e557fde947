/**
 * The decoder's page: the model from top to bottom, recorded on a device over packed sequences.
 *
 *     x = embedding[tokens]
 *     each layer, each of its blocks:  x += block(norm(x)), or x += norm(block(norm(x))) where the family has norms of outputs
 *     log-probabilities = log softmax(norm(x) head^T): head.ts, for the rows that are needed
 *
 * What a block computes is its kind's: blocks/kinds.ts. T tokens, C channels, V vocabulary. Activations are row-major, [T, width].
 *
 * The backward pass is train/backward.ts; one decoding step over a cache is generate/decode_step.ts.
 */
import type { Buffer, Device } from "../compute/device.ts";
import type { BlockContext, KeysVisitor } from "./blocks/block.ts";
import { type Block, blockKind, type Layer } from "./blocks/kinds.ts";
import { Residual } from "./blocks/residual.ts";
import type { ModelConfig } from "./config.ts";
import type { BlockState, ForwardState, Kept, LayerState } from "./forward_state.ts";
import { scaleInPlace } from "./kernels/elementwise.ts";
import { blocksOf, layersOf } from "./layers.ts";
import { Norms } from "./norms.ts";
import type { PackedInput } from "./packed_input.ts";
import { RopeTables } from "./rope_tables.ts";
import type { Scratch } from "./scratch.ts";
import { EMBEDDING, UNEMBED, type Weights } from "./weights.ts";

/** Most tokens of a pass, and of one sequence, of a model on a device. */
export function passLimits(device: Device, config: ModelConfig): { passLength: number; contextLength: number } {
  const widest = blocksOf(config).map((block) => blockKind(block).widest(block));
  const passLength = Math.floor(device.info.limits.maxBindingBytes / (4 * Math.max(config.hiddenSize, ...widest)));
  return { passLength, contextLength: Math.min(config.contextLength, passLength) };
}

export class Transformer {
  readonly device: Device;
  readonly config: ModelConfig;
  /** Name of the output matrix. */
  readonly head: string;
  readonly layers: readonly Layer[];
  /** Context that the blocks compute with. */
  readonly context: BlockContext;
  /** Most tokens in a pass: one binding covers the widest rows of a block that takes all of them. Others run in parts. */
  readonly passLength: number;
  /** Most targets in a pass: one binding covers a value of each. */
  readonly passTargets: number;
  /** Longest sequence: the model's context, or the length of a pass where that is less. */
  readonly contextLength: number;

  constructor(device: Device, config: ModelConfig) {
    this.device = device;
    this.config = config;
    this.head = config.tied ? EMBEDDING : UNEMBED;
    const { passLength, contextLength } = passLimits(device, config);
    this.passLength = passLength;
    this.passTargets = Math.floor(device.info.limits.maxBindingBytes / 4);
    this.contextLength = contextLength;
    this.layers = layersOf(config);
    const { hiddenSize } = config;
    const norms = new Norms(device, config);
    const residual = new Residual(device, { width: hiddenSize, norms });
    const ropes = new RopeTables(device, { blocks: this.blocks.filter(isRotated), contextLength });
    this.context = { device, hiddenSize, norms, ropes, residual };
  }

  /** Blocks of all layers, in the order of the forward pass. */
  get blocks(): readonly Block[] {
    return this.layers.flatMap(({ blocks }) => blocks);
  }

  get norms(): Norms {
    return this.context.norms;
  }

  get ropes(): RopeTables {
    return this.context.ropes;
  }

  /** The context length, for messages. */
  get contextText(): string {
    const isCut = this.contextLength < this.config.contextLength;
    const reason = isCut ? ", the most that one binding of this device covers" : "";
    return `${this.contextLength} tokens${reason}`;
  }

  /** Runs the layers. What is kept for a backward pass, and `hidden`, stay alive in `scratch`. */
  forward(
    weights: Weights,
    run: { input: PackedInput; scratch: Scratch; keep?: Kept; visit?: KeysVisitor },
  ): ForwardState {
    const { input, scratch, keep = "nothing", visit } = run;
    const layers: LayerState[] = [];
    let x = scratch.floats(input.count * this.config.hiddenSize, "residual");
    this.embed(weights, { tokens: input.tokens, out: x, count: input.count });
    for (const layer of this.layers) {
      const blocks: BlockState[] = [];
      const first = x;
      for (const block of layer.blocks) {
        const at = { block, x, input, scratch, keep: keep === "activations", visit };
        const { out, state } = blockKind(block).forward(this.context, weights, at);
        blocks.push({ x, state });
        if (keep === "nothing" || (keep === "inputs" && x !== first)) scratch.free(x);
        x = out;
      }
      if (keep !== "nothing") layers.push({ x: first, ...(keep === "activations" && { blocks }) });
    }
    return { input, layers, hidden: x };
  }

  /** Embeddings of the tokens, [count, C], times the model's factor. */
  embed(weights: Weights, io: { tokens: Buffer; out: Buffer; count: number }): void {
    weights.embed(io);
    this.scaleEmbedding(io.out, io.count);
  }

  /** The factor of the embeddings on [count, C], in place; its gradient is the same. */
  scaleEmbedding(x: Buffer, count: number): void {
    const { embeddingScale: scale, hiddenSize } = this.config;
    if (scale === undefined) return;
    this.device.dispatch(scaleInPlace, { buffers: { x }, params: { length: count * hiddenSize, scale } });
  }

  release(): void {
    this.ropes.release();
  }
}

function isRotated(block: Block): block is Extract<Block, { headDim: number }> {
  return "headDim" in block;
}
