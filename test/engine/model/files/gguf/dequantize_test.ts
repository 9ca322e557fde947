/** Blocks that the Python package `gguf` 0.19.0 dequantised: three random ones of each type. */
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { dequantize } from "../../../../../src/engine/model/files/gguf/dequantize.ts";
import {
  GGML_TYPES,
  ggmlType,
  isQuantized,
  type QuantizedType,
} from "../../../../../src/engine/model/files/gguf/types.ts";

const recorded: Readonly<Record<QuantizedType, { blocks: string; values: string }>> = JSON.parse(
  readFileSync(new URL("../../../../fixtures/gguf/blocks.json", import.meta.url), "utf8"),
);
const bytesOf = (text: string) => new Uint8Array(Buffer.from(text, "base64"));

test.each(Object.entries(recorded))("%s has the package's bits", (type, { blocks, values }) => {
  const found = dequantize(bytesOf(blocks), type as QuantizedType);
  expect(new Uint32Array(found.buffer)).toEqual(new Uint32Array(bytesOf(values).buffer));
});

test("every quantised type is recorded", () => {
  const quantised = Object.keys(GGML_TYPES).filter((type) => isQuantized(type as never));
  expect(Object.keys(recorded).sort()).toEqual(quantised.sort());
});

test.each([
  [12, "Q4_K"],
  [16, "IQ2_XXS"],
  [99, "number 99"],
])("the type %d is called %s", (code, name) => {
  expect(ggmlType(code).name).toBe(name);
});
