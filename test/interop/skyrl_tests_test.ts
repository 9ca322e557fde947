/** SkyRL's own HTTP tests of its Tinker server pass against ours; skyrl_tests.py lists what of them only SkyRL's server has. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { environment } from "./environment.ts";
import { borrowTorch } from "./torch.ts";

const MODEL = sharedPath("models/stories260k");
const SCRIPT = fileURLToPath(new URL("skyrl_tests.py", import.meta.url));
const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));
const SKYRL = process.env.SKYRL ?? fileURLToPath(new URL("../../.cache/skyrl", import.meta.url));
/** The oldest SDK that our server answers; SkyRL asks for one that is older still. */
const PACKAGES = ["tinker==0.25.0", "transformers==5.23.0", "numpy", "pytest==9.2.0", "pytest-asyncio==1.5.0"];

const python = await pythonOr((reason) => console.warn(`SKIPPED: SkyRL's HTTP tests: ${reason}`));

/** Undefined, with the reason told, where SkyRL's tests or what they import is missing. */
async function pythonOr(notify: (reason: string) => void): Promise<string | undefined> {
  if (!hasShared) return void notify("there is no model to serve");
  if (!existsSync(`${SKYRL}/tests/tinker/test_api.py`))
    return void notify(`there is no checkout of SkyRL in ${SKYRL}; .ci/run makes one where GitHub can be reached`);
  try {
    const made = await environment("skyrl_tests", PACKAGES);
    await borrowTorch(made);
    return made;
  } catch (error) {
    notify((error as Error).message.slice(0, 600));
  }
}

test.skipIf(!python)("trains, saves, loads, deletes, samples, stops and cleans up as they ask", async () => {
  const env = { ...process.env, TINKER_TELEMETRY: "0", HF_HUB_OFFLINE: "1" };
  const args = [SCRIPT, SKYRL, MODEL, JSON.stringify([process.execPath, CLI, "serve", "tinker"])];
  const ran = promisify(execFile)(python!, args, { env, maxBuffer: 2 ** 26, timeout: 500_000 });
  const { code, stdout } = await ran.then(
    ({ stdout }) => ({ code: 0, stdout }),
    (error: { code: number; stdout: string }) => error,
  );
  expect(code, stdout.slice(-6000)).toBe(0);
  expect(stdout).toMatch(/10 passed, \d+ deselected/);
});
