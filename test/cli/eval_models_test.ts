import { appendFileSync, existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { CpuDevice } from "../../src/engine/compute/cpu.ts";
import { modelConfigJson, parseModelConfig } from "../../src/engine/model/files/config_json.ts";
import { characterTokenizer } from "../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../src/engine/model/language_model.ts";
import { saveModelFolder } from "../../src/engine/model/save_model.ts";
import { registerReward } from "../../src/train/task/registered.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { SMALL_MODEL } from "../fixtures/small_model.ts";

const dir = temporaryFolder("eval-models");
const cache = join(dir, "cache");
const val = join(dir, "val.jsonl");
let calls = 0;
let stopAt = Number.POSITIVE_INFINITY;
let stop = new AbortController();

const args = [
  ...["eval", "task.name=single_turn", "task.reward=counted", "--device", "cpu", "--cache", cache, "--n", "4"],
  ...["rllm.data.max_prompt_length=8", "rllm.rollout.val.max_tokens=2", `data.val_files=${val}`],
];
const models = ["one", "other"].flatMap((name) => ["--model", join(dir, name)]);

async function saveModel(name: string, seed: number): Promise<void> {
  const device = new CpuDevice();
  await saveModelFolder(join(dir, name), {
    model: LanguageModel.create(device, parseModelConfig(modelConfigJson(SMALL_MODEL)), { seed }),
    tokenizer: characterTokenizer("0123456789+="),
  });
  device.destroy();
}

/** Runs a command line; counts the calls of the reward, and stops at one of them. */
async function evaluate(more: readonly string[], at = Number.POSITIVE_INFINITY) {
  [calls, stopAt, stop] = [0, at, new AbortController()];
  const ran = await grpu([...args, ...more], { signal: stop.signal });
  return { ...ran, calls };
}

beforeAll(async () => {
  registerReward("counted", (response) => {
    if (++calls === stopAt) stop.abort();
    return { reward: /[02468]/.test(response) ? 1 : 0, answer: response.slice(0, 1) };
  });
  await saveModel("one", 1);
  await saveModel("other", 2);
  writeFileSync(
    val,
    ["11+2=", "12+2=", "13+2=", "14+2=", "15+2="].map((prompt) => `{"prompt":"${prompt}"}\n`).join(""),
  );
});

describe("grpu eval of several models", () => {
  test("resumes, calls nothing a second time, and has the scores of an evaluation in one go", async () => {
    const whole = await evaluate([...models, "--no-cache", "--json"]);
    expect(whole.code, whole.err).toBe(0);
    expect(whole.calls).toBe(40);
    expect(existsSync(cache)).toBe(false);

    const stopped = await evaluate([...models, "--json", "rllm.workflow.n_parallel_tasks=1"], 7);
    expect(stopped.code).toBe(130);
    expect(JSON.parse(stopped.out)).toMatchObject({ partial: true, total: 20 });
    const made = stopped.calls;

    const resumed = await evaluate([...models, "--json"]);
    expect(resumed.err).toMatch(/attempts are known from an earlier evaluation/);
    expect(resumed.calls).toBeLessThan(40);
    expect(resumed.calls).toBeGreaterThanOrEqual(40 - made);
    expect(JSON.parse(resumed.out)).toEqual(JSON.parse(whole.out));

    const again = await evaluate([...models, "--json"]);
    expect(again.calls).toBe(0);
    expect(again.out).toBe(resumed.out);
    // More attempts: only those are made.
    const more = await evaluate([...models, "--n", "6", "--json"]);
    expect(more.calls).toBe(2 * 5 * 2);
  });

  test("compares each with the first, by names that differ", async () => {
    const page = join(dir, "scores.html");
    const { out, code, err } = await evaluate([...models, "--k", "1", "--k", "4", "--page", page]);
    expect(code, err).toBe(0);
    const [heads, ...rows] = out.trimEnd().split("\n");
    expect(heads).toMatch(/^val \(5 tasks\) +one +other +other - one$/);
    expect(rows.map((row) => row.split(" ")[0])).toEqual(["reward", "pass@1", "pass@4", "maj@4"]);
    expect(rows[0]).toMatch(/ [01]\.\d{4} \[-?\d\.\d{4}, \d\.\d{4}\] .*[+-]0\.\d{4} \[[+-]/);
    expect(readFileSync(page, "utf8")).toContain('"prompt":"11+2="');
  });

  test("a changed reward, setting, task or weight is another key; a damaged line is attempted again", async () => {
    const first = ["--model", join(dir, "one"), "--json"];
    expect((await evaluate(first)).calls).toBe(0);
    expect((await evaluate([...first, "training.seed=9"])).calls).toBe(20);
    appendFileSync(val, '{"prompt":"16+2="}\n');
    expect((await evaluate(first)).calls).toBe(4);
    await saveModel("one", 3);
    expect((await evaluate(first)).calls).toBe(24);
    const folders = readdirSync(cache).map((name) => join(cache, name, "attempts.jsonl"));
    for (const file of folders) appendFileSync(file, '{"task": "cut');
    for (const file of folders) writeFileSync(file, readFileSync(file, "utf8").replace(/^.*\n/, "damaged\n"));
    expect((await evaluate(first)).calls).toBe(1);
    registerReward("counted", () => {
      calls++;
      return 1;
    });
    expect((await evaluate(first)).calls).toBe(24);
  });

  test("needs no teacher where the run distils, and its attempts are the same", async () => {
    const plain = await evaluate(["--model", join(dir, "other"), "--json"]);
    const distilled = await evaluate([
      ...["--model", join(dir, "other"), "--json", "distillation.enabled=true"],
      ...[
        "distillation.teacher_models.teacher_model.model_path=/nowhere",
        "distillation.teacher_prompt='{prompt}{answer}'",
      ],
    ]);
    expect(distilled.code, distilled.err).toBe(0);
    expect([distilled.out, distilled.calls]).toEqual([plain.out, 0]);
    const made = await evaluate([
      "--model",
      join(dir, "other"),
      "--json",
      "--no-cache",
      "distillation.enabled=true",
      "distillation.teacher_kind=self",
    ]);
    expect(made.code, made.err).toBe(0);
  });

  test.each([
    [["--k", "5"], /--k must be a whole number from 1 to 4, the attempts at each task \(5\)/],
    [["--k", "none"], /--k must be a whole number/],
    [["--run", join(dir, "nothing")], /Cannot evaluate the checkpoints of the run: there is none/],
  ])("refuses %j", async (more, message) => {
    const { code, err } = await evaluate(more);
    expect(err).toMatch(message);
    expect(code).toBeGreaterThan(1);
  });

  test("refuses a model that is named twice", async () => {
    const { err } = await evaluate(["--model", join(dir, "one"), "--checkpoint", join(dir, "one")]);
    expect(err).toMatch(/Cannot compare a model with itself/);
  });
});
