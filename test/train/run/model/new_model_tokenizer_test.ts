/** `model.init.tokenizer`: a new model on the tokens of a folder. */
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { openTokenizer } from "../../../../src/engine/model/files/folder.ts";
import { byteTokenizer, characterTokenizer } from "../../../../src/engine/model/files/tokenizer.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { metricsOf } from "../../../fixtures/run_metrics.ts";
import { smallRun } from "../../../fixtures/small_run.ts";

const dir = temporaryFolder("tokenizers");
const ALPHABET = "0123456789+=";

/** A folder with a tokenizer of single characters. */
function folderOf(name: string, alphabet: string, template?: string): string {
  const folder = join(dir, name);
  mkdirSync(folder);
  const files = characterTokenizer(alphabet).files();
  const all = template === undefined ? files : { ...files, "chat_template.jinja": template };
  for (const [file, text] of Object.entries(all)) writeFileSync(join(folder, file), text);
  return folder;
}

describe("a folder for model.init.tokenizer", () => {
  test("trains as the same tokens that the configuration spells, and its files go with the checkpoint", async () => {
    const template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    const folder = folderOf("own", ALPHABET, template);
    const own = await smallRun(join(dir, "from_folder"), [`model.init.tokenizer=${folder}`]);
    const spelt = await smallRun(join(dir, "spelt"), [`model.init.alphabet='${ALPHABET}'`]);
    expect([own.code, spelt.code], own.err).toEqual([0, 0]);
    expect(metricsOf(join(dir, "from_folder"))).toEqual(metricsOf(join(dir, "spelt")));
    const checkpoint = join(dir, "from_folder", "global_step_2");
    const saved = await openTokenizer(checkpoint, []);
    expect(saved?.chatTemplate).toBe(template);
    const given = await openTokenizer(folder, []);
    expect(saved?.files()["tokenizer.json"]).toBe(given?.files()["tokenizer.json"]);
  });

  test("a checkpoint goes on with its own tokens, and is refused to others", async () => {
    const run = join(dir, "from_folder");
    const more = ["training.resume_mode=auto", "rllm.trainer.total_batches=3"];
    const other = folderOf("other", "=+9876543210");
    const refused = await smallRun(run, [...more, `model.init.tokenizer=${other}`]);
    expect(refused.code).not.toBe(0);
    expect(refused.err).toMatch(/its tokens are not those of the configuration .*model\.init\.tokenizer/);
    const resumed = await smallRun(run, [...more, `model.init.tokenizer=${join(dir, "own")}`]);
    expect(resumed.code, resumed.err).toBe(0);
    expect(existsSync(join(run, "global_step_3"))).toBe(true);
  });

  test("may hold bytes for tokens", async () => {
    const folder = join(dir, "bytes");
    mkdirSync(folder);
    for (const [file, text] of Object.entries(byteTokenizer().files())) writeFileSync(join(folder, file), text);
    const run = join(dir, "from_bytes");
    const args = [`model.init.tokenizer=${folder}`, "training.resume_mode=auto"];
    for (const total of [2, 3]) {
      const { code, err } = await smallRun(run, [...args, `rllm.trainer.total_batches=${total}`]);
      expect(code, err).toBe(0);
    }
    expect(existsSync(join(run, "global_step_3"))).toBe(true);
  });

  test.each([
    ["that is not there", () => "chr", /neither char nor byte nor a folder with a tokenizer\.json \(chr\)/],
    ["without a tokenizer.json", () => dir, /neither char nor byte nor a folder with a tokenizer\.json/],
  ])("is refused %s", async (_, folder, message) => {
    const { code, err } = await smallRun(join(dir, "none"), [`model.init.tokenizer=${folder()}`]);
    expect(code).not.toBe(0);
    expect(err).toMatch(message);
    expect(err).toContain("(model.init.tokenizer)");
  });
});
