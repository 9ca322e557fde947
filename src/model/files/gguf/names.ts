/** llama.cpp's names of tensors, and Hugging Face's. */

const OUTSIDE: Readonly<Record<string, string>> = {
  "model.embed_tokens.weight": "token_embd.weight",
  "model.norm.weight": "output_norm.weight",
  "lm_head.weight": "output.weight",
};

/** Names of a layer's tensors. */
const INSIDE: Readonly<Record<string, string>> = {
  input_layernorm: "attn_norm",
  "self_attn.q_proj": "attn_q",
  "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output",
  "self_attn.q_norm": "attn_q_norm",
  "self_attn.k_norm": "attn_k_norm",
  post_attention_layernorm: "ffn_norm",
  "mlp.gate_proj": "ffn_gate",
  "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
};

/** Gemma's four norms. */
const WITH_OUTPUT_NORMS: Readonly<Record<string, string>> = {
  ...INSIDE,
  post_attention_layernorm: "post_attention_norm",
  pre_feedforward_layernorm: "ffn_norm",
  post_feedforward_layernorm: "post_ffw_norm",
};

/** `blk.0.attn_q.weight` for `model.layers.0.self_attn.q_proj.weight`. */
export function ggufName(name: string, { outputNorms }: { readonly outputNorms?: boolean | undefined }): string {
  const [, layer, module, part] = /^model\.layers\.(\d+)\.(.+)\.(weight|bias)$/.exec(name) ?? [];
  if (module === undefined) return OUTSIDE[name]!;
  return `blk.${layer}.${(outputNorms ? WITH_OUTPUT_NORMS : INSIDE)[module]}.${part}`;
}

/** The inverse of {@link ggufName}; undefined for a tensor that Hugging Face's layout does not have, such as rope_freqs. */
export function hubName(name: string, { outputNorms }: { outputNorms: boolean }): string | undefined {
  const [, layer, module, part] = /^blk\.(\d+)\.(.+)\.(weight|bias)$/.exec(name) ?? [];
  if (module === undefined) return nameOf(OUTSIDE, name);
  const layerName = nameOf(outputNorms ? WITH_OUTPUT_NORMS : INSIDE, module);
  return layerName && `model.layers.${layer}.${layerName}.${part}`;
}

function nameOf(table: Readonly<Record<string, string>>, value: string): string | undefined {
  return Object.entries(table).find(([, name]) => name === value)?.[0];
}
