/** A decoding step's attention in one dispatch: q and k are turned, k and v kept in the cache, each row attends to its keys. */
import type { Buffer } from "../../compute/device.ts";
import type { attentionStep } from "../kernels/attention_step.ts";
import type { Layer } from "../layers.ts";
import { attentionScale } from "../qkv_layout.ts";
import type { Transformer } from "../transformer.ts";
import { cacheBuffers, type StepInput } from "./step_input.ts";

/** out [rows, H D] from qkv [rows, (H + 2 KV) D], which is not turned. Records only. */
export function attendStep(
  { config, attention, device, ropes }: Transformer,
  kernel: typeof attentionStep,
  at: Omit<StepInput, "scratch"> & { readonly layer: Layer; readonly qkv: Buffer; readonly out: Buffer },
): void {
  const { cache, layer, rows, shift, qkv, out } = at;
  device.dispatch(kernel[cache.dtype], {
    buffers: { ...cacheBuffers({ cache, layer: layer.index, rows }), qkv, angles: ropes.table(layer.index), out },
    params: {
      rows: rows.count,
      heads: config.heads,
      key_heads: config.kvHeads,
      row_pages: rows.rowPages,
      shift,
      window: layer.window,
      rotates: layer.rotates ? 1 : 0,
      scale: attentionScale(config),
    },
    constants: attention.decodeConstants,
  });
}
