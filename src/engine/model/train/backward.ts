/** The backward pass of transformer.ts, recorded on a device. */
import type { Buffer, Device } from "../../compute/device.ts";
import { blockKind, type Layer } from "../blocks/kinds.ts";
import type { BlockState, ForwardState } from "../forward_state.ts";
import type { GradientSink } from "../gradient_sink.ts";
import { embeddingBackward, groupByToken } from "../kernels/embedding.ts";
import type { PackedInput } from "../packed_input.ts";
import { rowWindows } from "../row_windows.ts";
import { Scratch } from "../scratch.ts";
import type { Transformer } from "../transformer.ts";
import { EMBEDDING, type Weights } from "../weights.ts";

export class BackwardPass {
  private readonly model: Transformer;
  private readonly device: Device;

  constructor(model: Transformer) {
    this.model = model;
    this.device = model.device;
  }

  /**
   * Gradients of everything below the final norm.
   * @param run.hiddenGrad of `state.hidden`, [T, C]; overwritten.
   */
  run(weights: Weights, run: { state: ForwardState; hiddenGrad: Buffer; sink: GradientSink }): void {
    const { state, hiddenGrad: grad, sink } = run;
    const { input } = state;
    for (const [index, kept] of [...state.layers.entries()].reverse())
      Scratch.during(this.device, (scratch) => {
        const layer = this.model.layers[index]!;
        const states = kept.blocks ?? this.repeat(weights, { layer, x: kept.x, input, scratch });
        for (const [i, block] of [...layer.blocks.entries()].reverse())
          blockKind(block).backward(this.model.context, weights, { block, ...states[i]!, input, grad, sink, scratch });
      });
    const table = sink.slot(EMBEDDING);
    if (!table) return;
    this.model.scaleEmbedding(grad, input.count);
    const { vocabSize: rowCount } = this.model.config;
    this.scatterRows(grad, { table, rowCount, groups: groupByToken(input.ids) });
  }

  /** The blocks' inputs and states of a layer whose input alone was kept. The last block computes its state again itself. */
  private repeat(
    weights: Weights,
    { layer, x: first, input, scratch }: { layer: Layer; x: Buffer; input: PackedInput; scratch: Scratch },
  ): BlockState[] {
    const states: BlockState[] = [];
    let x = first;
    for (const block of layer.blocks.slice(0, -1)) {
      const at = { block, x, input, scratch, keep: true };
      const { out, state } = blockKind(block).forward(this.model.context, weights, at);
      states.push({ x, state });
      x = out;
    }
    return [...states, { x, state: undefined }];
  }

  /** table[rows[u]] += the sum of the rows of `grad` at the positions of group u. */
  scatterRows(
    grad: Buffer,
    to: {
      table: Buffer;
      rowCount: number;
      groups: { rows: Uint32Array; offsets: Uint32Array; positions: Uint32Array };
    },
  ): void {
    const { rows, offsets, positions } = to.groups;
    const width = this.model.config.hiddenSize;
    Scratch.during(this.device, (scratch) => {
      const groups = {
        rows: scratch.upload(rows, "rows"),
        offsets: scratch.upload(offsets, "row offsets"),
        positions: scratch.upload(positions, "row positions"),
      };
      for (const table of rowWindows(this.device, to.table, { rows: to.rowCount, width }))
        this.device.dispatch(embeddingBackward, {
          buffers: { ...groups, outGrad: grad, tableGrad: table.buffer },
          params: { rows: rows.length, width, first_row: table.first, row_count: table.rows },
        });
    });
  }
}
