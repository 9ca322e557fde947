/** Agents with the official Python client, in processes of their own, against the same rollouts in this process. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { beforeAll, describe, expect, test } from "vitest";
import { freePort, startAgent } from "../fixtures/agent_process.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { canIsolate, isolated } from "../fixtures/network_namespace.ts";
import { metricsOf } from "../fixtures/run_metrics.ts";

const FOLDER = fileURLToPath(new URL("../../.cache/interop/openai", import.meta.url));
const PYTHON = `${FOLDER}/bin/python`;
const run = promisify(execFile);

beforeAll(async () => {
  if (!existsSync(PYTHON)) await run("python3", ["-m", "venv", FOLDER]);
  await run(PYTHON, ["-m", "pip", "install", "--quiet", "openai"]);
});

const dir = temporaryFolder("python_agents");

const SMALL = [
  "model.init.layers=1",
  "model.init.hidden_size=16",
  "model.init.heads=2",
  "model.init.kv_heads=1",
  "model.init.head_dim=8",
  "model.init.intermediate_size=32",
  "rllm.data.train_batch_size=4",
  "rllm.rollout.n=4",
  "rllm.trainer.total_batches=2",
  "rllm.trainer.save_freq=0",
  "rllm.trainer.logger=[jsonl]",
  "warmup.steps=30",
  "--device",
  "cpu",
];

/** Registers the task. */
const TOOL_GAME = ["--import", "examples/tool_game/game.ts"];

async function train(name: string, args: readonly string[]) {
  const folder = join(dir, name);
  const { code, err } = await grpu(["train", ...args, ...SMALL, `training.default_local_dir=${folder}`]);
  expect(code, err).toBe(0);
  return metricsOf(folder);
}

describe("agents in Python train as those in this process", () => {
  test.each([
    {
      name: "a game of turns",
      agent: "examples/remote_agent/agent.py",
      here: ["examples/multi_turn/run.yaml"],
      there: ["examples/remote_agent/run.yaml"],
    },
    {
      name: "a game of turns with a tool",
      agent: "examples/remote_agent/tool_agent.py",
      here: ["examples/tool_game/run.yaml", ...TOOL_GAME],
      there: ["examples/remote_agent/tools.yaml", ...TOOL_GAME],
    },
    {
      name: "solvers and a judge",
      agent: "test/interop/solver_judge_agent.py",
      here: ["examples/solver_judge/run.yaml"],
      there: ["test/interop/solver_judge.yaml", "--import", "test/interop/solver_judge.ts"],
    },
  ])("$name", async ({ name, agent, here, there }) => {
    const { url, child } = await startAgent(PYTHON, [agent]);
    const remote = [...there, `task.agent=${url}`, "rllm.sdk.proxy.port=0"];
    const metrics = await train(`${name} there`, remote).finally(() => child.kill());
    expect(metrics.filter(({ phase }) => phase === "train")).toHaveLength(2);
    expect(metrics).toEqual(await train(`${name} here`, here));
  });
});

/** What a container is to a run: another network, in which the machine has a name, and the agent an address of its own. */
describe.skipIf(!canIsolate())("an agent in a network of its own", () => {
  const NAME = "host.docker.internal";

  test("trains by the gateway's name there as the agent in this process", async () => {
    const gatewayPort = await freePort();
    const command = [PYTHON, "examples/remote_agent/tool_agent.py", "8100", "0.0.0.0"];
    const { address, child } = await isolated(command, { name: NAME, port: 8100, hosts: join(dir, "hosts") });
    const remote = [
      "examples/remote_agent/tools.yaml",
      ...TOOL_GAME,
      `task.agent=http://${address}:8100/run`,
      "rllm.gateway.host=0.0.0.0",
      `rllm.gateway.port=${gatewayPort}`,
      `rllm.gateway.tunnel=http://${NAME}:${gatewayPort}`,
      "rllm.sdk.proxy.admin_token=not-the-published-one",
    ];
    const there = await train("isolated there", remote).finally(() => child.kill());
    expect(there).toEqual(await train("isolated here", ["examples/tool_game/run.yaml", ...TOOL_GAME]));
  });
});
