import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { CpuDevice } from "../../src/engine/compute/cpu.ts";
import { modelConfigJson, parseModelConfig } from "../../src/engine/model/files/config_json.ts";
import { characterTokenizer } from "../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../src/engine/model/language_model.ts";
import { saveModelFolder } from "../../src/engine/model/save_model.ts";
import { Progress } from "../../src/train/log/progress.ts";
import { registerReward } from "../../src/train/task/registered.ts";
import { openTraceStore } from "../../src/train/trace/mod.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { SMALL_MODEL } from "../fixtures/small_model.ts";

const dir = temporaryFolder("eval");
let args: string[];
beforeAll(() => {
  const file = join(dir, "val.jsonl");
  const row = (i: number) => `{"prompt":"1${i}+2=","answer":"1${i + 2}"}\n`;
  writeFileSync(file, Array.from({ length: 6 }, (_, i) => row(i)).join(""));
  args = ["eval", "--no-cache", "task.name=single_turn", "model.init.alphabet='0123456789+='", "--device", "cpu"];
  args.push("rllm.data.max_prompt_length=8", "rllm.rollout.val.max_tokens=2", `data.val_files=${file}`);
});

describe("grpu eval", () => {
  test.each([true, false])("leaves partial scores on Ctrl-C, marked as such (json %s)", async (isJson) => {
    const stop = new AbortController();
    let calls = 0;
    registerReward("stopping", () => {
      if (++calls === 4) stop.abort();
      return calls % 2;
    });
    const one = [...args, "task.reward=stopping", "rllm.workflow.n_parallel_tasks=1"];
    const { code, out, err } = await grpu([...one, ...(isJson ? ["--json"] : [])], { signal: stop.signal });
    expect(err).toMatch(/these scores cover [34] of 6 attempts/);
    if (isJson) {
      const scores = JSON.parse(out);
      expect(scores).toMatchObject({ partial: true, total: 6 });
      expect(scores["val/val/pass@1"]).toBeCloseTo(2 / scores.attempts, 10);
    } else expect(out).toMatch(/^val\/val\/pass@1 +0\.[56]\d+ \[/m);
    expect(code).toBe(130);
  });

  test("records its attempts, with their scores, where a store is named", async () => {
    registerReward("by_length", (response) => response.length % 2);
    const file = join(dir, "traces.db");
    const { code, out } = await grpu([...args, "task.reward=by_length", `rllm.sdk.store.path=${file}`, "--json"]);
    expect(code).toBe(0);
    const recorded = await openTraceStore(file);
    const sessions = await recorded.sessions({});
    await recorded.close();
    expect(sessions.map(({ trace_count, metadata }) => [trace_count, metadata.is_validation])).toEqual(
      Array(6).fill([1, true]),
    );
    const rewards = sessions.map(({ outcome }) => outcome!.reward!);
    const mean = rewards.reduce((sum, reward) => sum + reward, 0) / 6;
    expect(JSON.parse(out)["val/reward/single_turn/mean"]).toBeCloseTo(mean, 10);
  });

  test("fails when every rollout failed, and shows the first failure", async () => {
    registerReward("broken", () => {
      throw new TypeError("x is undefined");
    });
    const { code, err } = await grpu([
      ...args,
      "task.reward=broken",
      "rllm.workflow.raise_on_error=false",
      "rllm.workflow.retry_limit=1",
    ]);
    expect(err).toMatch(/failed: TypeError: x is undefined\n +at /);
    expect(err).toMatch(/grpu: Cannot score the model: every rollout failed/);
    expect(code).toBe(1);
  });

  test("refuses prompts that are all too long before anything runs", async () => {
    const { code, err } = await grpu([...args, "task.reward=exact_match", "rllm.data.max_prompt_length=4"]);
    expect(err).toMatch(/all 6 are longer than rllm\.data\.max_prompt_length \(4 tokens\)/);
    expect(code).toBe(3);
  });
});

test("names the sampling settings that the model recommends, and does not use them", async () => {
  const model = join(dir, "recommending");
  const config = parseModelConfig({ ...modelConfigJson(SMALL_MODEL) });
  const device = new CpuDevice();
  await saveModelFolder(model, {
    model: LanguageModel.create(device, config),
    tokenizer: characterTokenizer("0123456789+="),
  });
  device.destroy();
  writeFileSync(join(model, "generation_config.json"), '{"temperature": 0.6, "top_k": 1, "eos_token_id": [2]}');
  const given = [
    ...args.filter((arg) => !arg.startsWith("model.init")),
    `model.name=${model}`,
    "task.reward=exact_match",
  ];
  const { err, code } = await grpu([...given, "rllm.rollout.val.top_k=5"]);
  expect(code, err).toBe(0);
  expect(err).toContain(
    `${model}/generation_config.json recommends rllm.rollout.val.temperature=0.6; these scores are sampled without`,
  );
});

describe("Progress", () => {
  const shown = (isTerminal: boolean) => {
    let text = "";
    let time = 0;
    const err = (part: string) => {
      text += part;
    };
    const screen = { isTerminal, color: false, columns: 40, err };
    const progress = new Progress(screen, "eval", { unit: "attempts", now: () => time });
    for (time = 0; time <= 30_000; time += 50) progress.update(Math.floor(time / 1000), 40);
    progress.finish();
    return text;
  };
  test("is a line every ten seconds where there is no terminal", () => {
    expect(shown(false)).toBe(
      "eval  10/40 attempts  1/s  eta 30 s\neval  20/40 attempts  1/s  eta 20 s\neval  30/40 attempts  1/s  eta 10 s\n",
    );
  });
  test("is one line, redrawn and cleared, on a terminal", () => {
    const lines = shown(true).split("\r\x1b[2K");
    expect(lines).toContain("eval  20/40 attempts  1/s  eta 20 s");
    expect(lines.every((line) => line.length < 40 && !line.includes("\n"))).toBe(true);
    expect(lines.at(-1)).toBe("");
  });
});
