/**
 * Two published models as GGUF files (scripts/fetch_models.mjs) against figures of transformers 5.23 on the same weights in float32, and
 * token ids of llama.cpp: test/fixtures/gguf/published.json. Skipped where the files are not there; REQUIRE_MODELS=1 fails instead.
 */
import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { diskFile } from "../../../src/engine/model/files/disk.ts";
import { ggufFolder } from "../../../src/engine/model/files/gguf/folder.ts";
import { loadModel, openModel } from "../../../src/engine/model/open_model.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { expectClose } from "../../fixtures/numbers.ts";

interface Figures {
  readonly rows: readonly {
    readonly text: string;
    readonly ids: readonly number[];
    readonly logprobs: readonly number[];
  }[];
  /** Texts and llama.cpp's ids. */
  readonly ids: readonly (readonly [string, readonly number[]])[];
  /** "Once upon a time" and 20 tokens. */
  readonly greedy: readonly number[];
}

const FIGURES: Readonly<Record<string, Figures>> = JSON.parse(
  readFileSync(new URL("../../fixtures/gguf/published.json", import.meta.url), "utf8"),
);
const pathOf = (file: string) => fileURLToPath(new URL(`../../../.cache/models/${file}`, import.meta.url));

describe.each(Object.entries(FIGURES))("%s", (file, figures) => {
  const isThere = existsSync(pathOf(file));
  if (!isThere && process.env.REQUIRE_MODELS === "1")
    throw new Error(`REQUIRE_MODELS=1, and there is no ${pathOf(file)}. Run node scripts/fetch_models.mjs.`);
  if (!isThere) console.warn(`tests of ${file} are skipped: node scripts/fetch_models.mjs fetches it`);

  test.skipIf(!isThere)("texts have the ids of transformers and llama.cpp", async () => {
    const { tokenizer } = await openModel(pathOf(file));
    for (const { text, ids } of figures.rows) expect(tokenizer!.encode(text), text).toEqual(ids);
    for (const [text, ids] of figures.ids) expect(tokenizer!.encode(text), text).toEqual(ids);
  });

  test.skipIf(!isThere || !gpuDevice).each([
    ["float32", 2e-4],
    ["bfloat16", 0.12],
  ] as const)("in %s, log-probs are within %d, and greedy tokens the same", async (dtype, absolute) => {
    const folder = await ggufFolder([(await diskFile(pathOf(file)))!], { name: file, dtype });
    const opened = await openModel(folder);
    const model = await loadModel(gpuDevice!, opened);
    const rows = figures.rows.filter(({ ids }) => ids.length > 1);
    const packed = pack(rows.map(({ ids }) => [...ids]));
    const { logprobs } = await model.logprobs(packed, { policy: "current", temperature: 1 });
    const expected = Float64Array.from(rows.flatMap((row) => [0, ...row.logprobs]));
    // The first token of a row has no log-prob.
    const known = logprobs.map((value, i) => (packed.offsets.includes(i) ? 0 : value));
    expectClose(known, expected, { relative: 0, absolute }, "log-probs");
    const prompt = opened.tokenizer!.encode("Once upon a time");
    const params = { max_tokens: 20, temperature: 0, top_p: 1, top_k: -1, stop_token_ids: [] };
    const [drawn] = await model.sample([{ prompt_ids: prompt, params, seed: 0 }], { weightVersion: 0 });
    expect([...prompt, ...drawn!.tokens]).toEqual(figures.greedy);
    model.release();
  });
});
