/** What fits where: the published shapes, and the table that docs/memory.md prints. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { type ModelName, planOf, tableRow } from "../../../scripts/plan_table.ts";
import type { LanguageModelOptions } from "../../../src/engine/model/language_model.ts";

const LORA = { rank: 16 };
const PAGE = readFileSync(new URL("../../../docs/memory.md", import.meta.url), "utf8");

/** 8 prompts of 256 tokens, 8 replies of 768 tokens to each. A GB is 10^9 bytes. */
const FIT: readonly (readonly [ModelName, number, LanguageModelOptions])[] = [
  ["Qwen2.5-0.5B", 4, { lora: LORA }],
  ["Qwen3-0.6B", 4, { lora: LORA }],
  ["Llama-3.2-1B", 8, { lora: LORA }],
  ["Qwen2.5-1.5B", 8, { lora: LORA }],
  ["Qwen3-1.7B", 8, { lora: LORA }],
  ["Qwen2.5-3B", 12, { lora: LORA, quantization: "nf4" }],
  ["SmolLM3-3B", 12, { lora: LORA, quantization: "nf4" }],
  ["Qwen2.5-0.5B", 12, {}],
];

describe("published shapes", () => {
  test.each(FIT)("%s trains in %d GB with %j", async (name, gigabytes, options) => {
    const { plan } = await planOf(name, { budget: gigabytes * 1e9, tries: [options] });
    expect(plan.fits).toBe(true);
    expect(plan.peakBytes).toBeLessThanOrEqual(gigabytes * 1e9);
    expect(plan.tokensPerPass).toBeGreaterThanOrEqual(2048);
    expect(plan.slots).toBeGreaterThanOrEqual(8);
  });

  test("the page's table is what the script prints (the smallest and a middling model of each)", async () => {
    for (const [kind, name] of [
      ["adapter", "SmolLM2-135M"],
      ["adapter", "Qwen3-1.7B"],
      ["whole", "Qwen2.5-0.5B"],
    ] as const)
      expect(PAGE.slice(PAGE.indexOf(`<!-- ${kind} -->`))).toContain(`\n${await tableRow(name, kind)}\n`);
  });
});
