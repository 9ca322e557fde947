/** `task.agent`: a run whose attempts are made in another process equals the run in this one, bit for bit. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type AgentProcess, startTypeScriptAgent } from "../fixtures/agent_process.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";

const dir = temporaryFolder("remote");
let agent: AgentProcess;
beforeAll(async () => {
  agent = await startTypeScriptAgent();
});
afterAll(() => {
  agent?.child.kill();
});

const SMALL = [
  "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
  "rllm.data.train_batch_size=4",
  "rllm.rollout.n=4",
  "rllm.rollout.n_val=2",
  "rllm.trainer.total_batches=2",
  "rllm.trainer.save_freq=0",
  "rllm.trainer.logger=[jsonl]",
  "warmup.steps=30",
  "--device",
  "cpu",
];

async function train(example: string, name: string, overrides: readonly string[] = []) {
  const folder = join(dir, name);
  const place = `training.default_local_dir=${folder}`;
  const ran = await grpu(["train", `examples/${example}/run.yaml`, place, ...SMALL, ...overrides]);
  const metrics = () =>
    readFileSync(join(folder, "metrics.jsonl"), "utf8")
      .trim()
      .split("\n")
      .map((line) => Object.entries(JSON.parse(line) as Record<string, unknown>))
      .map((entries) => Object.fromEntries(entries.filter(([key]) => !/^(time|perf)\//.test(key))));
  return { ...ran, metrics };
}

/** The gateway on any free port. */
const remote = (...overrides: string[]) => [`task.agent=${agent.url}`, "rllm.sdk.proxy.port=0", ...overrides];

describe("an agent in another process", () => {
  test("trains as the same agent in this process", async () => {
    const here = await train("multi_turn", "here");
    const there = await train("remote_agent", "there", remote());
    expect([here.code, there.code], there.err).toEqual([0, 0]);
    expect(there.metrics()).toEqual(here.metrics());
    const [trained] = there.metrics().filter(({ phase }) => phase === "train");
    expect(trained).toMatchObject({ "groups/num_trajs_after_filter": 16 });
    expect(Number(trained!["batch/num_turns"])).toBeGreaterThan(1);
  });

  test("the announcement names the agent and the gateway", async () => {
    const { err } = await train("remote_agent", "told", remote("rllm.trainer.val_only=true"));
    expect(err).toMatch(new RegExp(`agents +${agent.url}; gateway http://127\\.0\\.0\\.1:\\d+\n`));
  });

  test("an agent that is not there ends the run, which names its address", async () => {
    const { code, err } = await train("remote_agent", "nowhere", [
      "task.agent=http://127.0.0.1:9/run",
      "rllm.sdk.proxy.port=0",
      "rllm.workflow.raise_on_error=true",
      "rllm.workflow.retry_limit=1",
      "warmup.steps=0",
    ]);
    expect(code).not.toBe(0);
    expect(err).toMatch(/Cannot ask the agent http:\/\/127.0.0.1:9\/run for the session \S+: ECONNREFUSED/);
  });
});
