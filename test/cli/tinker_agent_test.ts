/** `task.agent` with `rllm/backend=tinker`: an agent in another process samples from a Tinker service and trains on it. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openTraceStore } from "../../src/train/trace/mod.ts";
import { type AgentProcess, startAgent } from "../fixtures/agent_process.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { metricsOf } from "../fixtures/run_metrics.ts";
import { hasShared } from "../fixtures/shared.ts";
import { type RunningTinkerServer, STORY_RUN, startTinkerServer, TINKER_KEY } from "../fixtures/tinker_server.ts";

const dir = temporaryFolder("tinker-agent");
let server: RunningTinkerServer;
let agent: AgentProcess;

beforeAll(async () => {
  if (!hasShared) return;
  server = await startTinkerServer(join(dir, "service"));
  agent = await startAgent(process.execPath, ["--import", "tsx", "test/fixtures/story_agent.ts"]);
});

afterAll(async () => {
  agent?.child.kill();
  await server?.stop();
});

/** The same agent in the process of the run. */
function localAgent(): string {
  const file = join(dir, "agent.ts");
  writeFileSync(
    file,
    `import { registerAgent } from "grpu";
registerAgent("single_turn", async (task, policy) => {
  const { model_response } = await policy.complete(task.instruction);
  return model_response.match(/[aeiou]/g)?.length ?? 0;
});`,
  );
  return file;
}

async function train(name: string, args: readonly string[]) {
  const place = `training.default_local_dir=${join(dir, name)}`;
  const env = { TINKER_API_KEY: TINKER_KEY, TINKER_BASE_URL: server.url };
  const { code, err } = await grpu(["train", ...STORY_RUN, place, "rllm/backend=tinker", ...args], { env });
  expect(code, err).toBe(0);
  return metricsOf(join(dir, name));
}

describe.skipIf(!hasShared)("an agent in another process", () => {
  test.each([
    ["grpo", 0],
    ["remax", 8],
  ])("trains by %s through a Tinker service as the same agent in the run's process", async (estimator, greedy) => {
    const store = join(dir, `${estimator}.db`);
    const remote = [`task.agent=${agent.url}`, "rllm.sdk.proxy.port=0", `rllm.sdk.store.path=${store}`];
    const chosen = `rllm.algorithm.adv_estimator=${estimator}`;
    const there = await train(`${estimator}-there`, [chosen, ...remote]);
    const here = await train(`${estimator}-here`, [
      ...[chosen, "--import", localAgent()],
      "rllm.agent.name=single_turn",
    ]);
    expect(there).toEqual(here);
    const trained = there.filter(({ phase }) => phase === "train");
    expect(trained).toHaveLength(4);
    for (const line of trained) expect(line["actor/grad_norm"]).toBeGreaterThan(0);
    for (const line of trained) expect("reward/single_turn/greedy_mean" in line).toBe(greedy > 0);
    await expectTraces(store, greedy);
  });
});

/** Eight attempts in each of four steps, sampled from the weights of the step before, and the greedy ones. */
async function expectTraces(path: string, greedy: number): Promise<void> {
  const traces = await openTraceStore(path, { mustExist: true });
  const sessions = (await traces.sessions({})).filter(({ metadata }) => metadata.is_validation === false);
  expect(sessions).toHaveLength(32 + greedy);
  const versions = new Map<unknown, Set<unknown>>();
  for (const { session_id, metadata, outcome } of sessions) {
    expect(outcome?.reward).toBeTypeOf("number");
    const [call, ...others] = await traces.traces({ session_id });
    expect(others).toEqual([]);
    const { is_greedy } = metadata;
    expect(call!.sampling_params?.temperature).toBe(is_greedy ? 0 : 1);
    expect(metadata.rollout_index === 4).toBe(is_greedy === true);
    expect(call!.completion_token_ids).toHaveLength(call!.logprobs!.length);
    versions.set(metadata.step, (versions.get(metadata.step) ?? new Set()).add(call!.weight_version));
  }
  // Two optimiser steps in each training step.
  expect([...versions].sort()).toEqual([0, 1, 2, 3].map((step) => [step + 1, new Set([step * 2])]));
  await traces.close();
}
