/** A run of verl's real trainer as a job of a real Ray cluster without GPUs: it goes as far as it can, and says why it ends. */
import { readFile } from "node:fs/promises";
import { afterAll, expect, test } from "vitest";
import { type RayHead, startRayHead } from "../../src/cli/process/ray_head.ts";
import { RayJobs } from "../../src/cluster/ray/jobs.ts";
import { verlJob } from "../../src/cluster/verl/job.ts";
import { VerlLog } from "../../src/cluster/verl/log.ts";
import { verlVersion } from "../../src/cluster/verl/versions.ts";
import { composeConfig } from "../../src/train/config/compose.ts";
import { httpFetch } from "../../src/train/run/net/http.ts";
import { readWebSocket } from "../../src/train/run/net/websocket.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { readConfig } from "../train/config/disk.ts";
import { cpuEnv, freePort, installVerl, type VerlPython } from "./verl.ts";

/** The newest; what differs in others is tested without Ray. */
const VERSIONS = ["0.9.1"];
const found = hasShared ? await installVerl(VERSIONS) : "there is no model to name";
if (typeof found === "string") console.warn(`SKIPPED: verl's trainer in a job: ${found}`);
const verl = found as VerlPython;

let head: RayHead | undefined;
afterAll(() => head?.stop());

test.skipIf(typeof found === "string").each(VERSIONS)(
  "main_ppo of verl %s runs in a job up to its check for GPUs",
  async (name) => {
    head = await startRayHead({
      ...{ python: verl.python, port: await freePort(), numCpus: 16, numGpus: 0, signal: new AbortController().signal },
      env: { ...process.env, ...cpuEnv(), PYTHONPATH: verl.packageOf(name) },
    });
    const token = await readFile(head.tokenFile, "utf8");
    const jobs = new RayJobs({ address: head.address, token, request: httpFetch, tail: readWebSocket });
    const overrides = [
      ...["rllm/backend=verl", `verl=${name}`, "actor_rollout_ref.rollout.name=vllm", "rllm.trainer.save_freq=-1"],
      ...[`actor_rollout_ref.model.path=${sharedPath("models/stories260k")}`, "trainer.n_gpus_per_node=1"],
      ...["rllm.data.train_batch_size=2", "rllm.data.max_prompt_length=64", "rllm.data.max_response_length=16"],
      ...["training.num_minibatches=1", "actor_rollout_ref.actor.use_dynamic_bsz=true"],
      // A process each, which takes memory.
      ...(verlVersion(name).hasV1 ? ["transfer_queue.backend.SimpleStorage.num_data_storage_units=1"] : []),
    ];
    const task = { id: "t", instruction: "once upon a time", metadata: {} };
    const { job, problems } = verlJob({
      ...{ composed: composeConfig({ readConfig, overrides, env: {} }), version: verlVersion(name) },
      ...{ submission_id: `grpu-verl-${name}`, train: [task, task, task], val: [task], hasAgent: true },
      ...{ service: { url: "http://127.0.0.1:1", token: "a-token-of-a-test-run" }, readPackaged: readConfig },
    });
    expect(problems).toEqual([]);
    await jobs.submit(job);
    const log = new VerlLog();
    const lines: string[] = [];
    const { status } = await jobs.follow(job.submission_id, (line) => {
      lines.push(line.text);
      log.read(line);
    });
    const said = lines.slice(-60).join("\n");
    expect(status, said).toBe("FAILED");
    expect(log.cause(), said).toMatch(
      /^Cannot train on the cluster: the cluster has 0 GPUs and the run wants 1\. Set trainer\.n_gpus_per_node and trainer\.nnodes/,
    );
    // The key of the run is in no line.
    expect(lines.join("\n")).not.toContain("a-token-of-a-test-run");
    await head.stop();
    head = undefined;
  },
);
