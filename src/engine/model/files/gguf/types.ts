/** ggml's types of a tensor's elements: its number of each, and the bytes of a block of elements. */

interface BlockType {
  readonly code: number;
  /** Elements of a block, which lie in one row. */
  readonly block: number;
  readonly bytes: number;
}

const QUANTIZED = {
  Q4_0: { code: 2, block: 32, bytes: 18 },
  Q4_1: { code: 3, block: 32, bytes: 20 },
  Q5_0: { code: 6, block: 32, bytes: 22 },
  Q5_1: { code: 7, block: 32, bytes: 24 },
  Q8_0: { code: 8, block: 32, bytes: 34 },
  Q2_K: { code: 10, block: 256, bytes: 84 },
  Q3_K: { code: 11, block: 256, bytes: 110 },
  Q4_K: { code: 12, block: 256, bytes: 144 },
  Q5_K: { code: 13, block: 256, bytes: 176 },
  Q6_K: { code: 14, block: 256, bytes: 210 },
} as const satisfies Readonly<Record<string, BlockType>>;

/** Blocks of small integers with scales. */
export type QuantizedType = keyof typeof QUANTIZED;

export const GGML_TYPES = {
  F32: { code: 0, block: 1, bytes: 4 },
  F16: { code: 1, block: 1, bytes: 2 },
  BF16: { code: 30, block: 1, bytes: 2 },
  ...QUANTIZED,
} as const satisfies Readonly<Record<string, BlockType>>;

export type GgmlType = keyof typeof GGML_TYPES;

export const isQuantized = (type: GgmlType): type is QuantizedType => type in QUANTIZED;

/** Names of further types, for messages. */
const OTHERS: Readonly<Record<number, string>> = {
  ...{ 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S" },
  ...{ 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M" },
  ...{ 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4" },
};

/** The type of a number, or a name for the message that refuses it. */
export function ggmlType(code: number): { readonly type?: GgmlType; readonly name: string } {
  const found = (Object.keys(GGML_TYPES) as GgmlType[]).find((name) => GGML_TYPES[name].code === code);
  return found ? { type: found, name: found } : { name: OTHERS[code] ?? `number ${code}` };
}

/** Bytes of as many elements, which are whole blocks. */
export function bytesOfElements(count: number, type: GgmlType): number {
  const { block, bytes } = GGML_TYPES[type];
  return (count / block) * bytes;
}
