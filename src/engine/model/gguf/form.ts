/** The types of a GGUF file's matrices. */
import type { GgufType } from "./container.ts";

/** Type of the matrices; vectors are f32. */
export type GgufForm = "f32" | "bf16" | "f16" | "q8_0";

/** `fileType` is `llama_ftype`, the type of most tensors. */
export const GGUF_FORMS: Readonly<Record<GgufForm, { readonly matrix: GgufType; readonly fileType: number }>> = {
  f32: { matrix: "F32", fileType: 0 },
  bf16: { matrix: "BF16", fileType: 32 },
  f16: { matrix: "F16", fileType: 1 },
  q8_0: { matrix: "Q8_0", fileType: 7 },
};
