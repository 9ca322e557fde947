import type { OpenDeviceOptions } from "../../../engine/compute/open.ts";
import type { ModelConfig } from "../../../engine/model/config.ts";
import type { LanguageModelOptions } from "../../../engine/model/language_model.ts";
import { type LoraConfig, loraTargets } from "../../../engine/model/lora.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";

export function templateOf(config: Tree): string | undefined {
  return setting(config, "model.chat_template") ?? undefined;
}

/** @param model absent for a new one, whose output matrix is separate */
export function readLora(config: Tree, model?: Pick<ModelConfig, "tied">): LoraConfig | undefined {
  const rank = setting(config, "model.lora_rank");
  if (rank === 0) return undefined;
  const targets = loraTargets({
    attn: setting(config, "model.train_attn"),
    mlp: setting(config, "model.train_mlp"),
    unembed: setting(config, "model.train_unembed") ?? model?.tied !== true,
  });
  return { rank, alpha: setting(config, "model.lora_alpha"), targets };
}

/** The device that the settings choose, and how much of its memory. */
export function deviceOptions(config: Tree): OpenDeviceOptions {
  return {
    device: setting(config, "device"),
    adapter: setting(config, "device_adapter") ?? undefined,
    backend: setting(config, "device_backend") ?? undefined,
    toggles: setting(config, "device_toggles"),
    products: setting(config, "device_products"),
    memoryBudgetBytes: setting(config, "memory_budget_bytes") ?? undefined,
  };
}

/** How the settings say that a model is held and computed. What they leave open is chosen by what fits. */
export function memoryOptions(config: Tree): LanguageModelOptions {
  const fold = setting(config, "model.fold_adapter");
  const checkpointing = setting(config, "training.gradient_checkpointing");
  return {
    dtype: setting(config, "model.dtype"),
    quantization: setting(config, "model.quantization") ?? undefined,
    foldAdapter: fold === "auto" ? fold : fold === "true",
    maxTokensPerPass: setting(config, "training.max_tokens_per_pass") ?? undefined,
    gradientCheckpointing: checkpointing === "auto" ? checkpointing : checkpointing === "true",
    maxBatchedTokens: setting(config, "rollout.max_num_batched_tokens") ?? undefined,
    speculative: speculativeOptions(config),
    cache: {
      dtype: setting(config, "rollout.kv_cache_dtype"),
      maxSequences: setting(config, "rollout.max_num_seqs") ?? undefined,
    },
  };
}

function speculativeOptions(config: Tree): LanguageModelOptions["speculative"] {
  const method = setting(config, "rollout.speculative_config.method");
  if (method === null) return undefined;
  return {
    method,
    numSpeculativeTokens: setting(config, "rollout.speculative_config.num_speculative_tokens"),
    promptLookupMax: setting(config, "rollout.speculative_config.prompt_lookup_max") ?? undefined,
    promptLookupMin: setting(config, "rollout.speculative_config.prompt_lookup_min") ?? undefined,
  };
}
