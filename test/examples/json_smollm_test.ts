/** The example on SmolLM2: its reward, its configuration, and rows that are those of its script. */
import { cpSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const EXAMPLE = "examples/json_smollm";
const IMPORT = ["--import", `${EXAMPLE}/reward.ts`];
const ANSWER = { name: "Nora", age: 34, city: "Milan" };
const RIGHT = '{"name": "Nora", "age": 34, "city": "Milan"}';

async function judge(response: string) {
  await import("../../examples/json_smollm/reward.ts");
  const { rewards } = await import("../../src/train/task/registered.ts");
  const task = { id: "a", instruction: "", metadata: { answer: JSON.stringify(ANSWER) } };
  return rewards.find("json_fields")(response, task, {});
}

test.each([
  ["the object", RIGHT, 1],
  ["the object on several lines", JSON.stringify({ ...ANSWER }, null, 2), 1],
  ["fields in another order", JSON.stringify({ city: "Milan", age: 34, name: "Nora" }), 1],
  ["an age as a text", RIGHT.replace("34", '"34"'), 2 / 3],
  ["one field wrong", RIGHT.replace("Milan", "Athens"), 2 / 3],
  ["one field", '{"name": "Nora"}', 1 / 3],
  ["a field that was not asked for", RIGHT.replace("}", ', "pet": "cat"}'), 2 / 3],
  ["more such fields than right ones", '{"name": "Nora", "a": 1, "b": 2, "c": 3}', 0],
  ["a fence around it", `\`\`\`json\n${RIGHT}\n\`\`\``, 0.5],
  ["words and two fields", 'Here: {"name": "Nora", "age": 34}', 1 / 3],
  ["an object that is cut", RIGHT.slice(0, -4), 0],
  ["a list", `[${RIGHT}]`, 0.5],
  ["words", "Nora is 34.", 0],
  ["nothing", "", 0],
])("%s", async (_, response, reward) => {
  expect(await judge(response)).toMatchObject({ reward: expect.closeTo(reward), is_correct: reward === 1 });
});

test("the configuration is valid, and the run fits 8 GB", async () => {
  const model = "model.name=test/fixtures/published/SmolLM2-135M";
  const { out, err, code } = await grpu(["plan", `${EXAMPLE}/run.yaml`, ...IMPORT, model, "--memory", "8GB", "--json"]);
  expect(code, err).toBe(0);
  expect(JSON.parse(out)).toMatchObject({ fits: true });
});

test("the rows are those that the script writes, and no held-out name or city is trained on", async () => {
  const place = temporaryFolder("json-smollm");
  cpSync(`${EXAMPLE}/make_data.mjs`, join(place, "make_data.mjs"));
  await import(join(place, "make_data.mjs"));
  const textOf = (folder: string, split: string) => readFileSync(join(folder, `people_${split}.jsonl`), "utf8");
  for (const split of ["train", "val"]) expect(textOf(place, split)).toBe(textOf(EXAMPLE, split));
  const rowsOf = (split: string) =>
    textOf(EXAMPLE, split)
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as { prompt: { content: string }[]; answer: string });
  const seen = new Set(rowsOf("train").flatMap(({ answer }) => Object.values(JSON.parse(answer))));
  for (const { prompt, answer } of rowsOf("val")) {
    const { name, city } = JSON.parse(answer) as typeof ANSWER;
    expect([name, city].filter((word) => seen.has(word))).toEqual([]);
    expect(prompt.at(-1)!.content).toContain(name);
  }
});
