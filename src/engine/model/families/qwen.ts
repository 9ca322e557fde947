/** Common parts of Qwen2 and Qwen3: sliding layers from `max_window_layers` on, where they are turned on. */
import type { ModelConfig } from "../config.ts";
import type { Keys, RawConfig } from "./keys.ts";
import { readActivation, readLayerTypes, readRope, writeLayerTypes, writeRope } from "./parts.ts";

export const QWEN_DEFAULTS: RawConfig = { rope_theta: 10_000, sliding_window: 4096, max_window_layers: 28 };

export function readQwen(keys: Keys) {
  const isUsed = keys.flag("use_sliding_window");
  const first = isUsed && keys.get("layer_types") === undefined ? keys.whole("max_window_layers") : 0;
  return {
    ...readLayerTypes(keys, { isUsed, isSliding: (layer) => layer >= first }),
    ...readActivation(keys, "hidden_act"),
    ...readRope(keys),
  };
}

export function writeQwen(config: ModelConfig): RawConfig {
  return {
    ...writeRope(config),
    hidden_act: config.activation ?? "silu",
    use_sliding_window: config.slidingWindow !== undefined,
    ...(config.slidingWindow !== undefined && writeLayerTypes(config)),
  };
}
