/** Chooses the attention kernels for an adapter and a shape of heads. */

import type { DeviceInfo } from "../../compute/device.ts";
import type { Constants } from "../../compute/kernel.ts";
import { attention, attentionBackwardKeys, attentionBackwardQueries, headConstants } from "./attention.ts";
import { attentionStepChunks } from "./attention_chunks.ts";
import { type attentionStep, STEP_MULTIPLE } from "./attention_step.ts";
import {
  attentionBackwardKeysSubgroup,
  attentionBackwardQueriesSubgroup,
  attentionSubgroup,
} from "./attention_subgroup.ts";
import {
  attentionBackwardKeysTiled,
  attentionBackwardQueriesTiled,
  attentionDecodeTiled,
  attentionStepTiled,
  attentionTiled,
  decodeConstants,
  TILED_BYTES,
  tiledConstants,
} from "./attention_tiled.ts";
import { attentionDecode } from "./cache.ts";
import { MAX_HEAD_WIDTH } from "./head_width.ts";

export interface HeadShape {
  readonly heads: number;
  readonly keyHeads: number;
  readonly headWidth: number;
}

/** The kernels of one family. All families have the same bindings, params and results. */
export interface AttentionKernels {
  readonly forward: typeof attention;
  readonly backwardQueries: typeof attentionBackwardQueries;
  readonly backwardKeys: typeof attentionBackwardKeys;
  /** Constants of `forward` and `backwardQueries`. */
  readonly constants: Constants;
  readonly backwardKeysConstants: Constants;
  /** Kernel by the type of the cache. */
  readonly decode: typeof attentionDecode;
  /** Constants of `decode`, `step` and `split`. */
  readonly decodeConstants: Constants;
  /** `ropeAppend` and `decode` in one dispatch, with their bits. Absent: they are two. */
  readonly step?: typeof attentionStep | undefined;
  /** `step` but for the fold over chunks of keys, which `attentionMerge` does. */
  readonly split?: typeof attentionStepChunks | undefined;
}

/** Wider heads take many seconds to compile on software drivers that unroll the loops over them. */
const WIDEST_UNROLLED = 32;

/**
 * Chooses the family: `tiled` on GPUs and for wide heads, `subgroup` on software drivers with 8 lanes, otherwise one thread per
 * token. A family that needs more workgroup memory than the adapter has is not chosen.
 * @throws RangeError for a head width that is not a multiple of 4 up to 256.
 */
export function chooseAttention(info: AdapterTraits, shape: HeadShape): AttentionKernels {
  const { heads, keyHeads, headWidth } = shape;
  const constants = headConstants(headWidth);
  const narrow = headWidth <= WIDEST_UNROLLED;
  if (info.limits.maxWorkgroupStorageBytes >= TILED_BYTES && (info.family === "tiled" || !narrow)) {
    const { queries, keys } = tiledConstants(constants);
    return {
      ...TILED,
      constants: queries,
      backwardKeysConstants: keys,
      decodeConstants: decodeConstants(shape, info.limits),
      step: headWidth % STEP_MULTIPLE === 0 ? attentionStepTiled : undefined,
      split: headWidth % STEP_MULTIPLE === 0 ? attentionStepChunks : undefined,
    };
  }
  // The kernels' arrays hold two heads of half the greatest width.
  const isPaired = info.family === "scalar" && (heads / keyHeads) % 2 === 0 && headWidth <= MAX_HEAD_WIDTH / 2;
  const HEADS = isPaired ? 2 : 1;
  const bundled = { ...constants, HEADS };
  return info.family === "scalar" && info.subgroupSize === 8 && narrow
    ? { ...SUBGROUP, constants: bundled, backwardKeysConstants: bundled, decodeConstants: bundled }
    : { ...PLAIN, constants, backwardKeysConstants: constants, decodeConstants: bundled };
}

type AdapterTraits = Pick<DeviceInfo, "family" | "subgroupSize"> & {
  readonly limits: Pick<DeviceInfo["limits"], "maxWorkgroupStorageBytes">;
};

const PLAIN = {
  forward: attention,
  backwardQueries: attentionBackwardQueries,
  backwardKeys: attentionBackwardKeys,
  decode: attentionDecode,
};

const SUBGROUP = {
  forward: attentionSubgroup,
  backwardQueries: attentionBackwardQueriesSubgroup,
  backwardKeys: attentionBackwardKeysSubgroup,
  decode: attentionDecode,
};

const TILED = {
  forward: attentionTiled,
  backwardQueries: attentionBackwardQueriesTiled,
  backwardKeys: attentionBackwardKeysTiled,
  decode: attentionDecodeTiled,
};
