import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { readGenerationConfig } from "../../../../src/engine/model/files/generation_config.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";

const root = temporaryFolder("generation");
let made = 0;

function read(config: unknown) {
  const dir = join(root, `${made++}`);
  mkdirSync(dir);
  if (config !== undefined) writeFileSync(join(dir, "generation_config.json"), JSON.stringify(config));
  return readGenerationConfig(dir);
}

test.each([
  [undefined, [], {}, []],
  [{}, [], {}, []],
  [{ eos_token_id: 2 }, [2], {}, []],
  [{ eos_token_id: [151645, 151643], pad_token_id: 151643 }, [151645, 151643], {}, []],
  [
    { temperature: 0.7, top_p: 0.8, top_k: 20, repetition_penalty: 1.05, do_sample: true },
    [],
    { temperature: 0.7, top_p: 0.8, top_k: 20 },
    ["repetition_penalty=1.05"],
  ],
  [{ temperature: null, top_p: 1, repetition_penalty: 1, min_p: 0.1 }, [], { top_p: 1 }, ["min_p=0.1"]],
])("%j", async (config, eosTokenIds, sampling, ignored) => {
  expect(await read(config)).toMatchObject({ eosTokenIds, sampling, ignored });
});

test.each([
  [{ temperature: "hot" }, /temperature is out of range \("hot"\).*generation_config\.json, temperature/],
  [{ top_p: 0 }, /top_p is out of range \(0\)/],
  [{ top_k: 1.5 }, /top_k is out of range/],
  [{ eos_token_id: "</s>" }, /eos_token_id must be a token id/],
  [[1], /are not a JSON object/],
])("refuses %j", async (config, why) => {
  await expect(read(config)).rejects.toThrow(why);
});
