/** Which attention kernels suit an adapter and a shape of heads. */
import type { DeviceInfo } from "../../compute/device.ts";
import type { Constants } from "../../compute/kernel.ts";
import { attention, attentionBackwardKeys, attentionBackwardQueries, headConstants } from "./attention.ts";
import {
  attentionBackwardKeysSubgroup,
  attentionBackwardQueriesSubgroup,
  attentionSubgroup,
} from "./attention_subgroup.ts";
import { attentionDecode } from "./cache.ts";

export interface HeadShape {
  readonly heads: number;
  readonly keyHeads: number;
  readonly headWidth: number;
}

/** The kernels of one family. Bindings, params and results are the same in all; so are `constants` for each kernel. */
export interface AttentionKernels {
  readonly forward: typeof attention;
  readonly backwardQueries: typeof attentionBackwardQueries;
  readonly backwardKeys: typeof attentionBackwardKeys;
  readonly constants: Constants;
  readonly decode: typeof attentionDecode;
  readonly decodeConstants: Constants;
}

/** Wider heads compile for seconds where loops over them unroll on a software driver. */
const WIDEST_UNROLLED = 32;

/**
 * Chooses the family: `subgroup` on software drivers with 8 lanes, else one thread per token.
 * @throws RangeError for a head width that is not a multiple of 4 up to 128.
 */
export function chooseAttention(
  info: Pick<DeviceInfo, "family" | "subgroupSize">,
  { heads, keyHeads, headWidth }: HeadShape,
): AttentionKernels {
  const constants = headConstants(headWidth);
  const HEADS = info.family === "scalar" && (heads / keyHeads) % 2 === 0 ? 2 : 1;
  const decoding = { decode: attentionDecode, decodeConstants: { ...constants, HEADS } };
  if (info.family === "scalar" && info.subgroupSize === 8 && headWidth <= WIDEST_UNROLLED)
    return {
      forward: attentionSubgroup,
      backwardQueries: attentionBackwardQueriesSubgroup,
      backwardKeys: attentionBackwardKeysSubgroup,
      constants: { ...constants, HEADS },
      ...decoding,
    };
  return {
    forward: attention,
    backwardQueries: attentionBackwardQueries,
    backwardKeys: attentionBackwardKeys,
    constants,
    ...decoding,
  };
}
