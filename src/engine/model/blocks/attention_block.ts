/** An attention block as data, and its kernels on an adapter. */
import type { DeviceInfo } from "../../compute/device.ts";
import { type AttentionKernels, chooseAttention } from "../kernels/attention_choice.ts";
import type { Rope } from "../rope.ts";
import type { AnyBlock } from "./block.ts";
import type { HeadCounts } from "./qkv_layout.ts";
import type { Product } from "./residual.ts";

/** Grouped-query attention with a fused projection. */
export interface AttentionBlock extends AnyBlock, HeadCounts {
  readonly kind: "attention";
  /** The names of the tensors of a model folder, without `.weight` and `.bias`. */
  readonly tensors: { readonly q: string; readonly k: string; readonly v: string };
  readonly qkv: Product;
  /** Names of the norms over each head of q and of k. */
  readonly headNorms?: { readonly q: string; readonly k: string } | undefined;
  /** Factor of q k. */
  readonly scale: number;
  /** Tokens that a query sees, its own included; Infinity for the whole sequence. */
  readonly window: number;
  /** Rotary positions; absent where q and k are not rotated. */
  readonly rope?: Rope | undefined;
}

const chosen = new WeakMap<DeviceInfo, Map<string, AttentionKernels>>();

/** The kernels for a block's heads on an adapter. */
export function attentionKernels(info: DeviceInfo, { heads, kvHeads, headDim }: HeadCounts): AttentionKernels {
  const byShape = chosen.get(info) ?? new Map<string, AttentionKernels>();
  chosen.set(info, byShape);
  const key = `${heads} ${kvHeads} ${headDim}`;
  const kernels = byShape.get(key) ?? chooseAttention(info, { heads, keyHeads: kvHeads, headWidth: headDim });
  byShape.set(key, kernels);
  return kernels;
}
