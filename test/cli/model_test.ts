import { cpSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { diskFile } from "../../src/engine/model/files/disk.ts";
import { openSafetensors } from "../../src/engine/model/files/safetensors.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";

async function openGolden() {
  const file = await diskFile(sharedPath("golden/model/stories260k.safetensors"));
  if (file) return openSafetensors(file);
  throw new Error("the golden figures are gone");
}

const MODEL = sharedPath("models/stories260k");

describe.skipIf(!hasShared)("grpu model on the published figures", () => {
  test("score prints log-probabilities and entropies of tokens[1..]", async () => {
    const golden = await openGolden();
    const sequences = await Promise.all([0, 1].map(async (i) => [...(await golden.readIntegers(`base.${i}.tokens`))]));
    const input = sequences.map((tokens) => JSON.stringify({ tokens })).join("\n");
    const { out, err, code } = await grpu(
      ["model", "score", "--model", MODEL, "--input", "-", "--device", "cpu", "--json"],
      { input },
    );
    expect([code, err]).toEqual([0, ""]);
    const lines = out
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as { logprobs: number[]; entropy: number[] });
    for (const [i, line] of lines.entries()) {
      const expected = {
        logprobs: await golden.read(`base.${i}.logprobs`),
        entropy: await golden.read(`base.${i}.entropy`),
      };
      expect(line.logprobs).toHaveLength(sequences[i]!.length - 1);
      expect(line.entropy).toHaveLength(sequences[i]!.length - 1);
      for (let t = 0; t < line.logprobs.length; t++) {
        expect(Math.abs(line.logprobs[t]! - expected.logprobs[t]!)).toBeLessThan(1e-4);
        expect(Math.abs(line.entropy[t]! - expected.entropy[t]!)).toBeLessThan(1e-4);
      }
    }
  });

  test("generate at temperature 0 gives the published continuation", async () => {
    const golden = await openGolden();
    const [prompt, tokens] = [await golden.readIntegers("greedy.prompt"), await golden.readIntegers("greedy.tokens")];
    const count = Math.min(tokens.length - prompt.length, 24);
    const { out } = await grpu(
      ["model", "generate", "--model", MODEL, "--tokens", prompt.join(), "--max-tokens", String(count)].concat([
        "--temperature",
        "0",
        "--device",
        "cpu",
        "--json",
      ]),
    );
    const made = JSON.parse(out) as { tokens: number[]; logprobs: number[] };
    expect(made.tokens).toEqual([...tokens.slice(prompt.length, prompt.length + count)]);
    expect(made.logprobs).toHaveLength(count);
  });

  test("sample keeps the space between a prompt and what follows it", async () => {
    const options = ["--max-tokens", "4", "--temperature", "0", "--device", "cpu"];
    const { out } = await grpu(["sample", "--model", MODEL, "--prompt", "Once", ...options]);
    expect(out).toBe("Once upon a time,\n");
  });

  test("sample continues every prompt of a file, n times each", async () => {
    const file = join(temporaryFolder("prompts"), "rows.jsonl");
    writeFileSync(file, '{"prompt":"Once"}\n{"question":"The dog"}\n');
    const options = ["--model", MODEL, "--max-tokens", "4", "--temperature", "3", "--device", "cpu", "--json"];
    const sampled = async (...args: string[]) => {
      const { out, err, code } = await grpu(["sample", ...options, ...args]);
      return {
        err,
        code,
        rows: out
          .split("\n")
          .filter(Boolean)
          .map((line) => JSON.parse(line)),
      };
    };
    const { rows, code, err } = await sampled("--prompts", file, "--n", "2");
    expect(code, err).toBe(0);
    expect(rows.map(({ prompt }) => prompt)).toEqual(["Once", "Once", "The dog", "The dog"]);
    expect(new Set(rows.map(({ text }) => text)).size).toBe(4);
    // The first prompt's samples are those of this prompt alone.
    expect(rows.slice(0, 2)).toEqual((await sampled("--prompt", "Once", "--n", "2")).rows);
    writeFileSync(file, '{"prompt":"Once"}\n{"text":"The dog"}\n');
    const refused = await sampled("--prompts", file);
    expect(refused.err).toMatch(/the row has no text as prompt, instruction or question \(it has text\)/);
    expect(refused.err).toContain("rows.jsonl:2");
    for (const none of [[], ["--prompt", "Once", "--prompts", file]])
      expect((await sampled(...none)).err).toMatch(/give --prompt TEXT or --prompts FILE, one of the two/);
  });

  test("sample uses what generation_config.json recommends, says so, and flags override it", async () => {
    const dir = join(temporaryFolder("recommended"), "model");
    cpSync(MODEL, dir, { recursive: true });
    const config = { eos_token_id: [2, 3], temperature: 1.5, top_k: 1, repetition_penalty: 1.1, do_sample: true };
    writeFileSync(join(dir, "generation_config.json"), JSON.stringify(config));
    const sample = (...flags: string[]) =>
      grpu(["sample", "--model", dir, "--prompt", "Once", "--max-tokens", "4", "--device", "cpu", ...flags]);
    const { out, err } = await sample();
    // Only the most likely token is left, whatever the temperature.
    expect(out).toBe("Once upon a time,\n");
    expect(err).toContain(`temperature=1.5 top_k=1 (${dir}/generation_config.json; flags override them)`);
    expect(err).toContain("warning: repetition_penalty=1.1 of");
    const free = await sample("--top-k", "0", "--temperature", "30", "--seed", "3");
    expect(free.err).not.toContain("top_k=1");
    expect(free.out).not.toBe(out);
  });

  test("show prints the shape, the types, the sizes and the stop tokens", async () => {
    const { out, code } = await grpu(["model", "show", MODEL, "--json"]);
    expect(code).toBe(0);
    const facts = JSON.parse(out);
    expect(facts).toMatchObject({
      kind: "model",
      architecture: "llama",
      layers: 5,
      hidden_size: 64,
      vocabulary: 512,
      dtype: ["F32"],
      files: 1,
      tokenizer: "512 tokens",
      stop_tokens: ["2 </s>"],
      chat_template: null,
    });
    expect(facts.bytes).toBe(facts.parameters * 4);
    const lines = (await grpu(["model", "show", MODEL])).out;
    expect(lines).toMatch(/^architecture +llama$/m);
    expect(lines).toMatch(/^bytes_by_dtype +F32=\d+$/m);
    expect(lines).toMatch(/^chat_template +none$/m);
  });

  test("score names the line that it cannot read", async () => {
    const args = ["model", "score", "--model", MODEL, "--input", "-", "--device", "cpu"];
    const { err, code } = await grpu(args, { input: '{"tokens":[1]}\n{"token":[1]}\n' });
    expect(err).toMatch(/Cannot score the line.*-:2/s);
    expect(code).toBe(4);
  });
});

test("a folder that is no model is refused by name", async () => {
  const { err, code } = await grpu(["sample", "--model", "/nowhere", "--prompt", "x", "--device", "cpu"]);
  expect(err).toMatch(/\/nowhere/);
  expect(code).toBe(4);
});
