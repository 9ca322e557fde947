/** Adapters made by PEFT (fixtures/peft/make.py), against the log-probs of PEFT and transformers. */
import { cpSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, onTestFinished, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { writeFolder } from "../../../src/engine/model/files/disk.ts";
import { openModelFolder } from "../../../src/engine/model/files/folder.ts";
import { readAdapterShape } from "../../../src/engine/model/files/peft.ts";
import { encodeSafetensors } from "../../../src/engine/model/files/safetensors_write.ts";
import { openTensors } from "../../../src/engine/model/files/tensor_files.ts";
import { loadModel, openBase, openModel } from "../../../src/engine/model/open_model.ts";
import { EMBEDDING } from "../../../src/engine/model/weights.ts";
import { saveLocalCheckpoint } from "../../../src/train/backend/local/checkpoint.ts";
import { LocalEngine } from "../../../src/train/backend/local/engine.ts";
import { writeForeignAdapter } from "../../fixtures/foreign_adapter.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { expectClose } from "../../fixtures/numbers.ts";
import { hasShared, sharedPath } from "../../fixtures/shared.ts";

const PLACE = fileURLToPath(new URL("../../fixtures/peft/", import.meta.url));
const BASE = sharedPath("models/tiny-qwen3");
const EXPECTED = JSON.parse(readFileSync(join(PLACE, "expected.json"), "utf8")) as Record<string, number[][]>;
const ROWS = pack(EXPECTED.tokens!);
const TOLERANCE = { relative: 0, absolute: 1e-4 };

/** Without first tokens, which have no log-prob. */
const scored = (logprobs: Float32Array) => logprobs.filter((_, t) => !ROWS.offsets.includes(t));

describe.skipIf(!hasShared)("an adapter that PEFT made", () => {
  const device = new CpuDevice();

  test.each(["all", "pattern", "layers"])("(%s) is the same policy as in PEFT", async (name) => {
    const model = await loadModel(device, await openModel(join(PLACE, name), { base: BASE }));
    const { logprobs } = await model.logprobs(ROWS, { policy: "current", temperature: 1 });
    expectClose(scored(logprobs), EXPECTED[name]!.flat(), TOLERANCE);
    expect(Math.abs(EXPECTED[name]![0]![2]! - EXPECTED.base![0]![2]!)).toBeGreaterThan(0.01);

    const engine = await LocalEngine.open({ device, folder: BASE });
    const policy = await engine.openPolicy(join(PLACE, name));
    const prompts = await policy.scorePrompts(EXPECTED.tokens!, { topk: 0 });
    expectClose(
      Float32Array.from(prompts.flatMap(({ logprobs: own }) => [...own.subarray(1)])),
      EXPECTED[name]!.flat(),
      TOLERANCE,
    );
  });

  test.each(["all", "pattern", "layers"])(
    "(%s) can be trained further, and is saved as the same policy",
    async (name) => {
      const dir = mkdtempSync(join(tmpdir(), "grpu-peft-"));
      onTestFinished(() => rmSync(dir, { recursive: true }));
      const from = join(PLACE, name);
      const base = await openBase(from, { base: BASE });
      const model = await loadModel(device, base, { lora: await readAdapterShape(from) });
      const { openAdapter } = await import("../../../src/engine/model/files/peft.ts");
      model.adapter?.load(await openAdapter(from), from);
      model.refresh();
      await saveLocalCheckpoint(dir, { model, base: base.mark });
      const again = await loadModel(device, await openModel(dir));
      const { logprobs } = await again.logprobs(ROWS, { policy: "current", temperature: 1 });
      expectClose(scored(logprobs), EXPECTED[name]!.flat(), TOLERANCE);
    },
  );

  test("opens with a copy of its base's output matrix, and is refused with a different one", async () => {
    const dir = mkdtempSync(join(tmpdir(), "grpu-peft-"));
    onTestFinished(() => rmSync(dir, { recursive: true }));
    const { adapter } = await writeForeignAdapter(dir, {
      rank: 2,
      alpha: 2,
      targets: ["q_proj"],
      base: BASE,
    });
    const base = await openModelFolder(BASE);
    const table = await base.read(base.config.tied ? EMBEDDING : "lm_head.weight");
    const { tensors, read } = await openTensors(adapter, "adapter_model");
    for (const change of [0, 1]) {
      const output = table.map((value, i) => (i === 7 ? value + change : value));
      const sources = await Promise.all(
        [...tensors].map(async ([name, { shape }]) => ({ name, shape, data: await read(name) })),
      );
      const copy = join(dir, `copy${change}`);
      cpSync(adapter, copy, { recursive: true });
      const own = {
        name: "base_model.model.lm_head.base_layer.weight",
        shape: [output.length],
        data: output,
      };
      await writeFolder(copy, [{ name: "adapter_model.safetensors", content: encodeSafetensors([...sources, own]) }]);
      const opening = openModel(copy, { base: BASE });
      if (change === 0) expect((await opening).adapters).toHaveLength(1);
      else await expect(opening).rejects.toThrow(/weights for lm_head that differ.*merge_and_unload/);
    }
  });
});
