/** `task.agent`: a run whose attempts are made in another process equals the run in this one, bit for bit. */
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openTraceStore } from "../../src/train/trace/mod.ts";
import { type AgentProcess, startTypeScriptAgent } from "../fixtures/agent_process.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { metricsOf } from "../fixtures/run_metrics.ts";
import { SMALL_SETTINGS } from "../fixtures/small_run.ts";

const dir = temporaryFolder("remote");
let agent: AgentProcess;
beforeAll(async () => {
  agent = await startTypeScriptAgent();
});
afterAll(() => {
  agent?.child.kill();
});

const SMALL = [
  ...SMALL_SETTINGS,
  "rllm.rollout.n_val=2",
  "rllm.trainer.total_batches=2",
  "rllm.trainer.save_freq=0",
  "rllm.trainer.logger=[jsonl]",
  "warmup.steps=30",
];

async function train(example: string, name: string, overrides: readonly string[] = []) {
  const folder = join(dir, name);
  const place = `training.default_local_dir=${folder}`;
  const ran = await grpu(["train", `examples/${example}/run.yaml`, place, ...SMALL, ...overrides]);
  return { ...ran, metrics: () => metricsOf(folder) };
}

/** What a store holds of each attempt, in the order of the tasks, without what differs between two runs. */
async function readAttempts(path: string) {
  const store = await openTraceStore(path, { mustExist: true });
  const sessions = await store.sessions({});
  const attempts = sessions.map(async ({ session_id, metadata, outcome }) => ({
    place: [Number(metadata.task_index), Number(metadata.rollout_index)] as const,
    reward: outcome?.reward,
    calls: (await store.traces({ session_id })).map((trace) => ({
      name: trace.metadata.trajectory_name,
      version: trace.weight_version,
      messages: trace.messages,
      prompt: trace.prompt_token_ids,
      completion: trace.completion_token_ids,
      logprobs: trace.logprobs,
      origin: trace.prompt_origin,
    })),
  }));
  const read = await Promise.all(attempts);
  await store.close();
  return read.toSorted((a, b) => a.place[0] - b.place[0] || a.place[1] - b.place[1]);
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

  test("a trace store records attempts of both kinds, token by token, and changes no figure", async () => {
    const stores = ["here", "there"].map((name) => join(dir, `${name}.db`));
    const small = ["rllm.trainer.total_batches=1", "rllm.trainer.val_before_train=false", "rllm.trainer.test_freq=0"];
    const store = (i: number) => [`rllm.sdk.store.path=${stores[i]}`, ...small];
    const here = await train("multi_turn", "recorded_here", store(0));
    const there = await train("remote_agent", "recorded_there", remote(...store(1)));
    expect([here.code, there.code], here.err + there.err).toEqual([0, 0]);
    const plain = await train("multi_turn", "plain", small);
    expect(here.metrics()).toEqual(plain.metrics());
    expect(there.metrics()).toEqual(plain.metrics());
    const [own, remotes] = await Promise.all(stores.map(readAttempts));
    expect(own).toHaveLength(16);
    expect(remotes).toEqual(own);
    expect(new Set(own!.map(({ reward }) => reward))).toEqual(new Set([0, 1]));
    expect(own![0]!.calls[0]).toMatchObject({ name: "guess_digit", version: 30, messages: [{ content: "?" }] });
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
