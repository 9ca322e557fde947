/** rLLM's own server tests against our gateway. */
import { execFile } from "node:child_process";
import { delimiter } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { rllmGateway } from "./rllm.ts";

const rllm = await rllmGateway();
const PLUGINS = fileURLToPath(new URL(".", import.meta.url));
/** They call Python functions of rLLM's, not a server. */
const NOT_OURS =
  "not TestUrlSplitting and not TestWorkerConfigAutoSplit and not TestWorkerInfoAutoSplit and not TestBuildUrl";

test.skipIf(!rllm)(
  "39 server tests of rLLM's gateway pass on ours",
  async () => {
    const { folder, python } = rllm!;
    const args = ["-m", "pytest", "-q", "-p", "rllm_gateway_plugin", "-p", "no:cacheprovider", "-k", NOT_OURS];
    const env = { ...process.env, PYTHONPATH: [`${folder}/src`, folder, PLUGINS].join(delimiter) };
    const options = { cwd: folder, env, timeout: 500_000 };
    const { stdout } = await promisify(execFile)(python, [...args, "tests/unit/test_server.py"], options);
    expect(stdout).toMatch(/^39 passed/m);
  },
  510_000,
);
