/** `grpu train --from-traces`: a whole run on recorded sessions. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type { TraceRecord } from "../../src/engine/contract/trace.ts";
import { openTraceStore } from "../../src/train/trace/mod.ts";
import { startTypeScriptAgent } from "../fixtures/agent_process.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { rewardModule, SMALL_SETTINGS } from "../fixtures/small_run.ts";
import { makeTrace } from "../train/trace/make_trace.ts";

const dir = temporaryFolder("train-traces");

const SMALL = [
  ...["examples/arithmetic/run.yaml", ...SMALL_SETTINGS, "warmup.steps=0", "warmup.batch_size=8"],
  ...["rllm.data.train_batch_size=2", "rllm.rollout.n=2", "rllm.trainer.test_freq=0", "rllm.trainer.save_freq=1"],
  ...["rllm.trainer.val_before_train=false", "training.lr_schedule=constant"],
];

const trainOn = (store: string, name: string, ...args: string[]) =>
  grpu(["train", ...SMALL, "--from-traces", store, `training.default_local_dir=${join(dir, name)}`, ...args]);

/** `tasks` groups of two sessions with rewards 0 and 1. */
async function record(name: string, tasks: number, fields: Partial<TraceRecord> = {}): Promise<string> {
  const path = join(dir, name);
  const store = await openTraceStore(path);
  for (let task = 0; task < tasks; task++) {
    for (const reward of [0, 1]) {
      const session_id = `${task}-${reward}`;
      await store.putTrace(
        makeTrace({
          ...{ trace_id: session_id, session_id, model: "", prompt_token_ids: [1, 2], weight_version: 0 },
          ...{ completion_token_ids: [3 + reward, 1 + (task % 3)], response_message: { content: "" } },
          ...fields,
        }),
      );
      const outcome = { reward, ended_at: 10 + task };
      await store.putSession({ session_id, metadata: { task_id: `t${task}` }, created_at: task, outcome });
    }
  }
  await store.close();
  return path;
}

function stepsOf(name: string): Record<string, number>[] {
  const lines = readFileSync(join(dir, name, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n");
  return lines.map((line) => JSON.parse(line)).filter(({ phase }) => phase === "train");
}

const weightsOf = (name: string) => {
  const bytes = readFileSync(join(dir, name, "global_step_2", "model.safetensors"));
  return createHash("sha256").update(bytes).digest("hex");
};

test("trains on the store once, resumes where it stopped, and a file of the traces gives the same weights", async () => {
  const store = await record("a.db", 4);
  const straight = await trainOn(store, "straight", "rllm.trainer.total_batches=2");
  expect(straight.code, straight.err).toBe(0);
  expect(straight.err).toMatch(/traces {2}\S+a\.db: 8 sessions of 4 tasks, 8 calls/);
  const steps = stepsOf("straight");
  expect(steps.map((step) => [step["traces/sessions"], step["traces/weight_version_lag/max"]])).toEqual([
    [4, 0],
    [4, 4],
  ]);
  for (const step of steps) expect(step["actor/grad_norm"]).toBeGreaterThan(0);

  const part = await trainOn(store, "parts", "rllm.trainer.total_batches=1");
  expect(part.code, part.err).toBe(0);
  await record("a.db", 6);
  const rest = await trainOn(store, "parts", "rllm.trainer.total_batches=2", "training.resume_mode=auto");
  expect(rest.code, rest.err).toBe(0);
  expect(rest.err).toContain("8 sessions of 4 tasks");
  expect(weightsOf("parts")).toEqual(weightsOf("straight"));

  const file = join(dir, "a.jsonl");
  const four = [0, 1, 2, 3].flatMap((task) => [`${task}-0`, `${task}-1`]);
  await grpu(["traces", "export", ...four, "--store", store, "--output", file]);
  expect((await trainOn(file, "file", "rllm.trainer.total_batches=2")).code).toBe(0);
  expect(weightsOf("file")).toEqual(weightsOf("straight"));
});

test("a run with an agent in another process, trained again from the traces of its gateway, gives the same weights", {
  timeout: 120_000,
}, async () => {
  const agent = await startTypeScriptAgent();
  const store = join(dir, "gateway.db");
  const settings = [
    ...["examples/remote_agent/run.yaml", ...SMALL.slice(1), "warmup.steps=2", "rllm.trainer.total_batches=2"],
    ...[`task.agent=${agent.url}`, "rllm.sdk.proxy.port=0", "training.max_untrained_steps=0"],
  ];
  const online = [
    "train",
    ...settings,
    `rllm.sdk.store.path=${store}`,
    `training.default_local_dir=${join(dir, "online")}`,
  ];
  const recorded = await grpu(online).finally(() => agent.child.kill());
  expect(recorded.code, recorded.err).toBe(0);
  const into = `training.default_local_dir=${join(dir, "offline")}`;
  const offline = await grpu(["train", ...settings, "--from-traces", store, into]);
  expect(offline.code, offline.err).toBe(0);
  expect(offline.err).toMatch(/gateway\.db: 8 sessions of 4 tasks, \d+ calls\n/);
  expect(weightsOf("offline")).toBe(weightsOf("online"));
});

test("solvers and a judge in this process, trained again from their traces, give the same weights", {
  timeout: 120_000,
}, async () => {
  const body = "return (response.length % 4) / 3";
  const settings = [
    ...["examples/solver_judge/run.yaml", ...SMALL.slice(1), "warmup.steps=2", "rllm.trainer.total_batches=2"],
    ...[...rewardModule(dir, { name: "by_length", body }), "rllm.rollout.n=4"],
  ];
  const store = join(dir, "roles.db");
  const into = (name: string) => `training.default_local_dir=${join(dir, name)}`;
  const online = await grpu(["train", ...settings, `rllm.sdk.store.path=${store}`, into("roles")]);
  expect(online.code, online.err).toBe(0);
  const offline = await grpu(["train", ...settings, "--from-traces", store, into("roles-again")]);
  expect(offline.code, offline.err).toBe(0);
  const names = ["reward/solver/mean", "reward/solver/std", "reward/judge/mean", "actor/grad_norm"];
  const seen = (name: string) => stepsOf(name).map((step) => names.map((each) => step[each]));
  expect(seen("roles-again")).toEqual(seen("roles"));
  for (const step of stepsOf("roles")) expect(step["advantage/solver/std"]).toBeGreaterThan(0);
  expect(weightsOf("roles-again")).toBe(weightsOf("roles"));
});

test("--latest takes the newest groups, and the next ones when it is resumed", async () => {
  const store = await record("latest.db", 4);
  const first = await trainOn(store, "latest", "--latest", "rllm.trainer.total_batches=1");
  expect(first.code, first.err).toBe(0);
  expect(first.err).toMatch(/traces {2}\S+latest\.db, the newest groups of 2 sessions/);
  const trained = (step: number) => {
    const file = join(dir, "latest", `global_step_${step}`, "loop.json");
    return JSON.parse(readFileSync(file, "utf8")).generation.trained;
  };
  expect(trained(1)).toEqual(["3-0", "3-1", "2-0", "2-1"]);
  const second = await trainOn(
    store,
    "latest",
    "--latest",
    "rllm.trainer.total_batches=2",
    "training.resume_mode=auto",
  );
  expect(second.code, second.err).toBe(0);
  expect(trained(2)).toEqual(["3-0", "3-1", "2-0", "2-1", "1-0", "1-1", "0-0", "0-1"]);
});

test("warns of traces that were sampled with other settings", async () => {
  const sampling_params = { temperature: 0.5, top_p: 1, top_k: -1 };
  const store = await record("cold.db", 4, { sampling_params });
  const { code, err } = await trainOn(store, "cold", "rllm.trainer.total_batches=1");
  expect(code, err).toBe(0);
  expect(err).toMatch(/warning: Calls of the traces were sampled with temperature=0\.5 .* says temperature=1 /);
});

test("replies that are too old are not trained on", async () => {
  const store = await record("old.db", 4);
  const cut = ["training.max_off_policy_threshold=3", "training.max_off_policy_strategy=mask"];
  const { code, err } = await trainOn(store, "cut", "rllm.trainer.total_batches=2", ...cut);
  expect(code, err).toBe(0);
  // A step takes four optimiser steps.
  const steps = stepsOf("cut");
  expect(steps.map((step) => step["traces/weight_version_lag/max"])).toEqual([0, 4]);
  expect(steps.map((step) => step["batch/masked_stale_tokens"])).toEqual([0, 8]);
});

describe("errors", () => {
  test.each([
    ["of ids outside the vocabulary", { prompt_token_ids: [500] }, /the token id 500 of the session \S+ is not in the/],
    ["of a text that the tokens are not", { response_message: { content: "no digits" } }, /of another tokenizer than/],
    ["of log-probs that are missing", { logprobs: null }, /no session can be trained on \(8 with a call without one/],
  ])("%s", async (name, fields, message) => {
    const store = await record(`${name}.db`, 4, fields);
    const { code, err } = await trainOn(store, name);
    expect(err).toMatch(message);
    expect(code).not.toBe(0);
  });

  test("of options", async () => {
    const store = await record("options.db", 1);
    expect((await trainOn(store, "o", "--latest", "rllm.trainer.total_batches=0")).err).toMatch(/the run has no end/);
    expect((await trainOn("a.jsonl", "o", "--latest")).err).toMatch(/does not grow while the run reads it/);
    expect((await grpu(["train", ...SMALL, "--latest"])).err).toMatch(/no trace store is given/);
    expect((await trainOn(join(dir, "none.db"), "o")).err).toMatch(/there is no such file/);
    expect((await trainOn(store, "o")).err).toMatch(
      /Cannot draw batches: one needs 2 rows, and the training data has 1/,
    );
  });
});
