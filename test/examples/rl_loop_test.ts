/** examples/rl_loop, as a reader starts it: on this machine, and over Tinker's protocol with the same numbers. */
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { startServer } from "../interop/server.ts";

const MODEL = sharedPath("models/stories260k");
const STEPS = 8;

interface Line {
  readonly step: number;
  readonly reward: number;
  readonly "actor/grad_norm"?: number;
}

const dir = temporaryFolder("rl-loop");

async function rlLoop(args: readonly string[], output: string): Promise<Line[]> {
  const env = { ...process.env, STEPS: String(STEPS), OUTPUT: output, TINKER_API_KEY: "tml-local" };
  const program = ["--import", "tsx", "examples/rl_loop/rl_loop.ts", MODEL, ...args];
  const { stdout } = await promisify(execFile)(process.execPath, program, { env });
  return stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Line);
}

test("the example stays one short file", () => {
  const text = readFileSync("examples/rl_loop/rl_loop.ts", "utf8");
  expect(text.split("\n").length).toBeLessThan(200);
});

describe.skipIf(!hasShared || !gpuDevice)("the loop", () => {
  let local: Line[];

  test("learns on this machine, and saves an adapter in PEFT's form", { timeout: 120_000 }, async () => {
    const output = join(dir, "local");
    local = await rlLoop([], output);
    expect(local).toHaveLength(STEPS);
    expect(local.at(-1)!.reward).toBeGreaterThan(local[0]!.reward + 0.2);
    expect(readdirSync(output)).toEqual(expect.arrayContaining(["adapter_config.json", "adapter_model.safetensors"]));
  });

  test("gives the same rewards over Tinker's protocol", { timeout: 120_000 }, async () => {
    const server = await startServer(["--model", MODEL, "--checkpoints", join(dir, "checkpoints")]);
    try {
      const remote = await rlLoop(["--tinker", server.url], join(dir, "remote"));
      expect(remote[0]!.reward).toBe(local[0]!.reward);
      for (const [i, { reward }] of remote.entries()) expect(reward, `step ${i}`).toBe(local[i]!.reward);
    } finally {
      await server.stop();
    }
  });
});
