/** `grpu train rllm/backend=trinity` against a stand-in of a Ray cluster: what is submitted, what comes back, what stops it. */
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { trinityOnCluster } from "../../../../src/train/run/cluster/trinity_on_cluster.ts";
import { FakeDashboard, type FakeJob } from "../../../cluster/ray/fake_dashboard.ts";
import { grpu } from "../../../fixtures/cli.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";

const dir = temporaryFolder("trinity-cluster");
const cluster = new FakeDashboard();
beforeAll(() => cluster.listen());
afterAll(() => cluster.close());

const FILE = join(dir, "run.yaml");
writeFileSync(
  FILE,
  `defaults: [{rllm/backend: trinity}, _self_]
task: {name: arithmetic}
model: {name: some/model}
training: {num_minibatches: 1, default_local_dir: ${dir}/run}
trainer: {n_gpus_per_node: 2, default_local_dir: /shared/ckpt}
rllm:
  data: {train_batch_size: 4, max_prompt_length: 32, max_response_length: 32}
  trainer: {total_batches: 2, experiment_name: sums, logger: [console, jsonl, report]}
`,
);

let gpus = 2;
let log = "";
let end: Partial<FakeJob> = { status: "SUCCEEDED" };
const submitted: string[] = [];
beforeEach(() => {
  submitted.length = 0;
  [gpus, log, end] = [2, "", { status: "SUCCEEDED" }];
  cluster.onSubmit = (job) => {
    submitted.push(job.entrypoint);
    job.status = "RUNNING";
    void (job.entrypoint.includes("grpu_probe")
      ? answerProbe(job)
      : Promise.resolve(Object.assign(job, { log, ...end })));
  };
});

async function answerProbe(job: FakeJob): Promise<void> {
  const env = job.runtime_env.env_vars as Record<string, string>;
  const headers = { authorization: `Bearer ${env.GRPU_SERVICE_TOKEN}` };
  const reply = await fetch(`${env.GRPU_SERVICE_URL}/health`, { headers });
  const versions = { "trinity-rft": "0.6.0" };
  const answer = { node: "10.0.0.1", gpus, status: reply.status, body: await reply.text(), versions };
  job.log = `GRPU_PROBE ${JSON.stringify([answer])}\n`;
  job.status = "SUCCEEDED";
}

const train = (args: readonly string[] = []) =>
  grpu(["train", FILE, `ray.address=${cluster.address}`, ...args], { clock: cluster.clock });
const stamped = (worker: string, text: string) =>
  `\x1b[36m(${worker} pid=${worker.length})\x1b[0m INFO 11-23 04:05:06 [monitor.py:120] ${text}\n`;

test("a run's two streams come back as steps, with the checkpoint and the report", async () => {
  log = `Total training steps: 2\nTrinity runs in mode both, with checkpoints in /shared/ckpt/p/sums\n`;
  log += stamped("Explorer", "Step 0: {'eval/val/acc/mean@1': 0.25}");
  for (const step of [1, 2]) {
    log += stamped("Explorer", `Step ${step}: {'rollout/reward/mean': 0.5}`);
    log += stamped("Trainer", `Step ${step}: {'critic/rewards/mean': 0.5, 'actor/pg_loss': 0.125}`);
    log += stamped("Explorer", `Explorer sync_weights at step ${step} started.`);
  }
  log += stamped("Trainer", "Saving checkpoint at step 2...") + stamped("Trainer", "> Trainer finished.");
  const { code, out, err } = await train(["--json"]);
  expect(err).toContain("Trinity-RFT 0.6.0, job grpu-sums-");
  expect(err).toContain("step 2/2  reward 0.500");
  expect(code).toBe(0);
  expect(submitted).toEqual(["python grpu_probe.py", "python3 trinity_driver.py trinity.yaml"]);
  expect(JSON.parse(out)).toMatchObject({
    ...{ outcome: "succeeded", step: 2, total_steps: 2 },
    checkpoint: { step: 2, folder: "/shared/ckpt/p/sums/global_step_2" },
  });
  const metrics = readFileSync(join(dir, "run", "metrics.jsonl"), "utf8")
    .trim()
    .split("\n");
  expect(metrics.map((line) => JSON.parse(line))).toEqual([
    { phase: "val", step: 0, "val-core/val/acc/mean@1": 0.25 },
    { phase: "train", step: 1, "rollout/reward/mean": 0.5, "critic/rewards/mean": 0.5, "actor/pg_loss": 0.125 },
    { phase: "train", step: 2, "rollout/reward/mean": 0.5, "critic/rewards/mean": 0.5, "actor/pg_loss": 0.125 },
  ]);
  expect(existsSync(join(dir, "run", "report.html"))).toBe(true);
});

const BEGIN = "Total training steps: 2\nTrinity runs in mode both, with checkpoints in /shared/ckpt/p/sums\n";
const first = () => stamped("Trainer", "Step 1: {'actor/pg_loss': 0.125}");

test("a job that ends without an error before its last step is not complete", async () => {
  log =
    BEGIN + first() + stamped("Trainer", "Saving checkpoint at step 1...") + stamped("Trainer", "> Trainer finished.");
  const folder = join(dir, "short");
  const { code, out, err } = await train(["--json", `training.default_local_dir=${folder}`]);
  expect(code).toBe(1);
  expect(err).toContain(`short    the job ended without an error after step 1 of 2\nlog      ${folder}/job.log\n`);
  expect(err).toContain("saved    step 1: /shared/ckpt/p/sums/global_step_1, on the cluster\n");
  expect(err).toMatch(/go on {4}.* train .*run\.yaml .* trainer\.resume_mode=auto\n/);
  expect(JSON.parse(out)).toMatchObject({ outcome: "incomplete", complete: false, step: 1, total_steps: 2 });
  expect(JSON.parse(readFileSync(join(folder, "run.json"), "utf8")).complete).toBe(false);
});

test.each([
  ["the driver names its last step", () => `${BEGIN}${first()}Trinity reached step 2\n`],
  [
    "an earlier job trained to the end",
    () => BEGIN + stamped("Trainer", "Saving checkpoint at step 2...") + stamped("Trainer", "> Trainer finished."),
  ],
  ["a benchmark has no last step", () => `Total training steps: 0\n${stamped("Explorer", "Step 2: {'bench/a': 1}")}`],
])("%s: complete", async (_, lines) => {
  log = lines();
  const { code } = await train([`training.default_local_dir=${dir}/whole${log.length}`]);
  expect(code).toBe(0);
});

test("a driver that raises what Trinity caught ends the run with that cause", async () => {
  log = [
    "(Trainer pid=7) ERROR 11-23 04:05:06 [trainer.py:160] Error in Trainer:\r",
    "(Trainer pid=7) ERROR 11-23 04:05:06 [trainer.py:160] Traceback (most recent call last):\r",
    '(Trainer pid=7) ERROR 11-23 04:05:06 [trainer.py:160]   File "trainer.py", line 1, in train\r',
    "(Trainer pid=7) ERROR 11-23 04:05:06 [trainer.py:160] ValueError: no such loss\r",
    "Traceback (most recent call last):",
    '  File "trinity_driver.py", line 54, in <module>',
    "RuntimeError: Trinity stopped before its end. Error in Trainer: ValueError: no such loss",
    "",
  ].join("\n");
  end = { status: "FAILED", error_type: "JOB_ENTRYPOINT_COMMAND_ERROR", driver_exit_code: 1 };
  const { code, err } = await train([`training.default_local_dir=${dir}/failed`]);
  expect(code).toBe(1);
  expect(err).toContain("ValueError: no such loss");
});

test("a cluster with fewer GPUs than the split gets nothing but the question", async () => {
  gpus = 1;
  const { code, err } = await train([`training.default_local_dir=${dir}/small`]);
  expect(code).toBe(3);
  expect(err).toContain("the run divides 1 x 2 GPUs between rollouts and training, and its nodes have 1 GPUs.");
  expect(submitted).toHaveLength(1);
});

test("a dry run shows the configuration and the split, and asks no cluster", async () => {
  const config = join(dir, "job", "working_dir", "trinity.yaml");
  // Of an earlier dry run.
  mkdirSync(join(config, ".."), { recursive: true });
  writeFileSync(config, "", { mode: 0o644 });
  const { code, out } = await train(["--dry-run", "--job-folder", join(dir, "job")]);
  expect(statSync(config).mode & 0o777).toBe(0o600);
  expect(statSync(join(dir, "job", "submit.sh")).mode & 0o777).toBe(0o700);
  expect(code).toBe(0);
  expect(out).toContain("GPUs: 1 x 2: rollouts 1 (1 engines of 1), trainer 1");
  expect(out).toContain("default_workflow_type: trinity_reward.GrpuReward");
  expect(existsSync(join(dir, "job", "working_dir", "tasks", "train", "train.jsonl"))).toBe(true);
  expect(submitted).toEqual([]);
});

test.each([
  [["0.6.1"], "0.6.1", []],
  [["0.5.0"], "0.5.0", ["the cluster has Trinity-RFT 0.5.0; the run is made for 0.6.0"]],
  [[null], "0.6.0", ["no node of the cluster has trinity-rft installed"]],
  [["0.6.0", null], "0.6.0", ["different versions of Trinity-RFT (0.6.0, none)"]],
  [[undefined], "0.6.0", []],
] as const)("nodes with Trinity-RFT %j: made for %s", (versions, made, warned) => {
  const warnings: string[] = [];
  const answers = versions.map(
    (it) => ({ node: "n", kind: "ok", ...(it !== undefined && { versions: { "trinity-rft": it } }) }) as const,
  );
  const found = trinityOnCluster(answers, { gpus: undefined, made: "0.6.0", warn: (text) => warnings.push(text) });
  expect(found).toBe(made);
  expect(warnings).toEqual(warned.map((text) => expect.stringContaining(text)));
});
