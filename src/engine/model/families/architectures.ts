/** The families of models that load, and what is said of others. */
import type { Architecture } from "./architecture.ts";
import { gemma3 } from "./gemma3.ts";
import { llama } from "./llama.ts";
import { mistral } from "./mistral.ts";
import { qwen2 } from "./qwen2.ts";
import { qwen3 } from "./qwen3.ts";
import { smollm3 } from "./smollm3.ts";

/** Architectures by `model_type`. */
export const ARCHITECTURES: ReadonlyMap<string, Architecture> = new Map(
  [gemma3, llama, mistral, qwen2, qwen3, smollm3].map((architecture) => [architecture.type, architecture]),
);

/** Obstacles of well-known families that do not load. */
export const OBSTACLES: readonly (readonly [types: RegExp, obstacle: string])[] = [
  [/moe|mixtral|^dbrx$|^deepseek|^gpt_oss$|^llama4/, "a mixture of experts"],
  [/^gemma2$/, "soft-capped logits"],
  [/^gemma3$/, "a model of text and images; Gemma 3's text models are gemma3_text"],
  [/^gemma3n|^gemma4|vl|vision|llava|audio|omni|idefics|paligemma/, "a model of more than text"],
  [/^phi|^gpt_|^gptj|^glm|^stablelm$|^persimmon$/, "rotary positions over a part of each head, or fused projections"],
  [/mamba|rwkv|jamba|^recurrent|^lfm|^zamba|^qwen3_next/, "layers without attention"],
];
