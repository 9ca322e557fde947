/** `grpu serve rewards`: as a process from dist/, with a reward in a thread of its own; and what it refuses. */
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { ask, firstRequest, post, TOKEN } from "../fixtures/cluster.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const dir = temporaryFolder("serve-rewards");
const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));

const running: (() => void)[] = [];
afterEach(() => {
  for (const stop of running.splice(0)) stop();
});

/** Resolves when the service listens. */
async function start(args: readonly string[]) {
  const child = spawn(process.execPath, [CLI, "serve", "rewards", ...args, "--port", "0"], {
    stdio: ["ignore", "ignore", "pipe"],
    env: { ...process.env, GRPU_TOKEN: TOKEN },
  });
  running.push(() => child.kill("SIGKILL"));
  let err = "";
  const ended = new Promise<number | null>((resolve) => void child.on("close", resolve));
  const listening = new Promise<string>((resolve) => {
    child.stderr.on("data", (text) => {
      err += text;
      const found = /on (http:\S+)/.exec(err);
      if (found) resolve(found[1]!);
    });
  });
  const url = await Promise.race([listening, ended.then(() => Promise.reject(new Error(err)))]);
  return { url, err: () => err, child, ended };
}

test("rewards of a run, each in a thread with a time limit; Ctrl-C ends it with what was done", async () => {
  const module = join(dir, "reward.ts");
  const code = `if (response === "loop") for (;;);
    if (response === "throw") throw new RangeError("bad row");
    return Number(response === task.metadata.answer);`;
  writeFileSync(
    module,
    `import { registerReward } from "grpu";\nregisterReward("mine", (response, task) => {\n${code}\n});`,
  );
  const settings = ["task.reward=mine", "task.judge_timeout=1", "rllm.workflow.retry_limit=1"];
  const { url, err, child, ended } = await start(["examples/arithmetic/run.yaml", "--import", module, ...settings]);
  expect(err()).toMatch(/serving the rewards of \d+ training and \d+ held-out tasks/);
  expect(await (await ask(`${url}/health`)).json()).toEqual({ service: "grpu", run: "arithmetic", protocol: 1 });
  const item = (solution: string) => ({ solution, extra_info: { split: "train", grpu_task: 1 } });
  const { results } = await post<{ results: unknown[] }>(`${url}/rewards`, {
    id: "a",
    items: ["loop", "throw", "?"].map(item),
  });
  expect(results).toEqual([
    { error: expect.stringMatching(/reward "mine" did not return within task\.judge_timeout=1 s/) },
    { error: "bad row" },
    { score: 0, is_correct: false, metrics: {} },
  ]);
  child.kill("SIGINT");
  expect(await ended).toBe(0);
  expect(err()).toMatch(/3 judgements, 2 failed; 0 rollouts: 0 done/);
  expect(err()).toMatch(/ 1 x arithmetic_train-1: bad row/);
}, 60_000);

test("an agent with tools on the tokenizer of the trained model", async () => {
  const args = ["examples/tool_game/run.yaml", "--import", "examples/tool_game/game.ts"];
  const { url } = await start([...args, "--tokenizer", "examples/tool_game/tokenizer", "--run", "tools"]);
  expect(await (await ask(`${url}/health`)).json()).toMatchObject({ run: "tools" });
  const reply = await post<{ calls: { prompt_ids: number[] }[] }>(`${url}/rollouts`, firstRequest());
  expect(reply).toMatchObject({ action: "generate", calls: [{ call: 0, sampling_params: { max_tokens: 4 } }] });
  expect(reply.calls[0]!.prompt_ids.length).toBeGreaterThan(0);
}, 60_000);

test("the run of examples/reward_service", async () => {
  const folder = "examples/reward_service";
  const { url } = await start([`${folder}/run.yaml`, "--import", `${folder}/reward.ts`]);
  const [task] = readFileSync("examples/arithmetic/arithmetic_train.jsonl", "utf8").split("\n");
  const { answer } = JSON.parse(task!) as { answer: string };
  const extra_info = { split: "train", grpu_task: 0 };
  const items = [answer, String(Number(answer) + 3), "?"].map((solution) => ({ solution, extra_info }));
  expect(await post(`${url}/rewards`, { id: "a", items })).toEqual({
    results: [
      { score: 1, is_correct: true, metrics: { off: 0 } },
      { score: 0.25, is_correct: false, metrics: { off: 3 } },
      { score: 0, is_correct: false, metrics: {} },
    ],
  });
}, 60_000);

describe("is refused", () => {
  const cases: [name: string, args: string[], env: Record<string, string>, code: number, message: RegExp][] = [
    ["no token", ["examples/arithmetic/run.yaml"], {}, 2, /environment variable GRPU_TOKEN is empty/],
    [
      "another variable",
      ["examples/arithmetic/run.yaml", "--token-env", "T"],
      { GRPU_TOKEN: TOKEN },
      2,
      /variable T is/,
    ],
    ["a short token", ["examples/arithmetic/run.yaml"], { GRPU_TOKEN: "short" }, 2, /at least 16 characters \(5\)/],
    ["games without a tokenizer", ["examples/multi_turn/run.yaml"], { GRPU_TOKEN: TOKEN }, 3, /--tokenizer/],
    [
      "a folder without one",
      ["examples/multi_turn/run.yaml", "--tokenizer", "examples/arithmetic"],
      { GRPU_TOKEN: TOKEN },
      4,
      /no tokenizer\.json/,
    ],
  ];
  test.each(cases)("%s", async (_, args, env, code, message) => {
    const ran = await grpu(["serve", "rewards", ...args], { env });
    expect([ran.code, ran.err]).toEqual([code, expect.stringMatching(message)]);
  });
});
