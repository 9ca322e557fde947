/** Every family that loads, against transformers, on the kernels' references: tiny models whose figures are stored (fixtures/families/make.py). */
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { parseModelConfig } from "../../../src/engine/model/files/config_json.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { FAMILIES } from "../../fixtures/families.ts";
import { familyPasses } from "../../fixtures/family_checks.ts";

test("fresh norms change nothing, also where the model stores weights less one", () => {
  const values = async (architecture: string) => {
    const [, { config }] = FAMILIES.find(([, { config }]) => config.model_type === architecture)!;
    const model = LanguageModel.create(new CpuDevice(), parseModelConfig(config));
    return (await model.base.readTensors()).get("model.norm.weight")!;
  };
  return Promise.all([
    expect(values("gemma3_text")).resolves.toEqual(new Float32Array(32)),
    expect(values("smollm3")).resolves.toEqual(new Float32Array(32).fill(1)),
  ]);
});

describe("families on cpu", () => familyPasses(new CpuDevice()));
