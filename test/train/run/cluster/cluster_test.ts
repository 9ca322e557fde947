/** `grpu train rllm/backend=verl` against a stand-in of a Ray cluster, whose "trainer" asks the run's service as verl would. */
import { existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { checkCpus, versionOnCluster } from "../../../../src/train/run/cluster/verl_on_cluster.ts";
import { FakeDashboard, type FakeJob } from "../../../cluster/ray/fake_dashboard.ts";
import { grpu } from "../../../fixtures/cli.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";

const dir = temporaryFolder("cluster");
const cluster = new FakeDashboard();
beforeAll(() => cluster.listen());
afterAll(() => cluster.close());

const FILE = join(dir, "run.yaml");
writeFileSync(
  FILE,
  `defaults: [{rllm/backend: verl}, _self_]
task: {name: arithmetic}
model: {name: some/model}
training: {num_minibatches: 1, default_local_dir: ${dir}/run}
actor_rollout_ref: {rollout: {name: vllm}, actor: {use_dynamic_bsz: true}}
trainer: {n_gpus_per_node: 1, default_local_dir: /shared/ckpt}
rllm:
  data: {train_batch_size: 4, max_prompt_length: 32, max_response_length: 32}
  trainer: {total_batches: 2, experiment_name: sums, logger: [console, jsonl, report]}
`,
);

/** What a job's process finds in its environment. */
interface JobEnv {
  readonly GRPU_URL: string;
  readonly GRPU_TOKEN: string;
  readonly GRPU_SERVICE_URL: string;
  readonly GRPU_SERVICE_TOKEN: string;
}

const envOf = (job: FakeJob) => job.runtime_env.env_vars as JobEnv;

/** What the trainer on the cluster does. */
let trainer: (job: FakeJob, ask: Ask) => Promise<void>;
/** Asks for the reward of a solution of the first task. */
type Ask = (solution: string, split?: string) => Promise<unknown>;
const submitted: FakeJob[] = [];

beforeEach(() => {
  submitted.length = 0;
  cluster.onSubmit = (job) => {
    submitted.push(job);
    job.status = "RUNNING";
    void (job.entrypoint.includes("grpu_probe")
      ? answerProbe(job)
      : trainer(job, (solution, split) => judged(job, solution, split)));
  };
});

async function answerProbe(job: FakeJob): Promise<void> {
  const { GRPU_SERVICE_URL: url, GRPU_SERVICE_TOKEN: token } = envOf(job);
  const reply = await fetch(`${url}/health`, { headers: { authorization: `Bearer ${token}` } });
  const versions = { verl: installed };
  const answer = { node: "10.0.0.1", cpus, status: reply.status, body: await reply.text(), versions };
  job.log = `GRPU_PROBE ${JSON.stringify([answer])}\n`;
  job.status = "SUCCEEDED";
}

/** The version of verl on the cluster's node, and its CPUs. */
let installed: string | null = "0.8.0";
let cpus = 64;

let calls = 0;
/** The score that the run's service gives to a solution of the first task. */
async function judged(job: FakeJob, solution: string, split = "train"): Promise<number | { error: string }> {
  const { GRPU_URL: url, GRPU_TOKEN: token } = envOf(job);
  const item = {
    data_source: "arithmetic",
    solution,
    ground_truth: "",
    extra_info: { split, index: 0, grpu_task: 0 },
  };
  const reply = await fetch(`${url}/rewards`, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify({ id: `call-${calls++}`, items: [item] }),
  });
  const { results } = (await reply.json()) as { results: [{ score: number } | { error: string }] };
  return "score" in results[0] ? results[0].score : results[0];
}

const train = (args: readonly string[] = [], signal?: AbortSignal) =>
  grpu(["train", FILE, `ray.address=${cluster.address}`, ...args], { clock: cluster.clock, ...(signal && { signal }) });

/** Judges a right and a wrong solution in each of two steps, and prints as verl does. */
async function twoSteps(job: FakeJob, ask: Ask): Promise<void> {
  expect(cluster.packages.size).toBeGreaterThan(0);
  await ask("42", "val");
  job.log +=
    "Total training steps: 2\n(TaskRunner pid=7) step:0 - val-core/arithmetic/reward/mean@1:np.float64(0.25)\n";
  for (const step of [1, 2]) {
    const scores = (await Promise.all([ask(firstAnswer()), ask("no number")])) as number[];
    const mean = (scores[0]! + scores[1]!) / 2;
    const more = step === 2 ? " - val-core/arithmetic/reward/mean@1:np.float64(0.75)" : "";
    job.log += `\x1b[36m(TaskRunner pid=7)\x1b[0m step:${step} - critic/rewards/mean:np.float64(${mean}) - actor/entropy:0.5${more}\n`;
  }
  job.status = "SUCCEEDED";
}

/** The right answer to the first training task of the arithmetic environment. */
function firstAnswer(): string {
  const [first] = readFileSync(
    new URL("../../../../examples/arithmetic/arithmetic_train.jsonl", import.meta.url),
    "utf8",
  ).split("\n");
  return String((JSON.parse(first!) as { answer: string }).answer);
}

const metricsIn = (folder: string) =>
  readFileSync(join(folder, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Record<string, unknown>);

const LINES = [
  { phase: "val", step: 0, "val-core/arithmetic/reward/mean@1": 0.25 },
  { phase: "train", step: 1, "critic/rewards/mean": 0.5, "actor/entropy": 0.5 },
  { phase: "train", step: 2, "critic/rewards/mean": 0.5, "actor/entropy": 0.5 },
  { phase: "val", step: 2, "val-core/arithmetic/reward/mean@1": 0.75 },
];

test("a run judges here, trains there, and leaves metrics, a report and a record; another process attaches", async () => {
  trainer = twoSteps;
  const { code, out, err } = await train(["--json"]);
  expect(err).toContain("step 2/2  reward 0.500");
  expect(err).toContain("validation at step 2  arithmetic/reward/mean@1 0.750");
  expect(code).toBe(0);
  const run = join(dir, "run");
  expect(metricsIn(run)).toEqual(LINES);
  expect(JSON.parse(out)).toMatchObject({ outcome: "succeeded", complete: true, step: 2, total_steps: 2, dir: run });
  expect(JSON.parse(readFileSync(join(run, "run.json"), "utf8"))).toMatchObject({ total_steps: 2, complete: true });
  expect(readFileSync(join(run, "report.html"), "utf8")).toContain("critic/rewards/mean");
  const [sample] = readFileSync(join(run, "samples.jsonl"), "utf8").split("\n");
  expect(JSON.parse(sample!)).toMatchObject({ step: 0, response: "42", is_correct: false });
  expect(readFileSync(join(run, "job.log"), "utf8")).toContain("(TaskRunner pid=7) step:1 - critic/rewards/mean");
  const record = JSON.parse(readFileSync(join(run, "job.json"), "utf8"));
  expect(statSync(join(run, "job.json")).mode & 0o777).toBe(0o600);
  expect(submitted.map(({ entrypoint }) => entrypoint.split(" ").slice(0, 3).join(" "))).toEqual([
    "python grpu_probe.py",
    "python3 -m verl.trainer.main_ppo",
  ]);

  // The first process is gone, the job still runs and asks at the same address with the same key.
  const job = cluster.jobs.get(record.submission_id)!;
  job.status = "RUNNING";
  const attached = train(["--attach"]);
  await expect.poll(() => judged(job, firstAnswer()).catch(() => undefined), { timeout: 10_000 }).toBe(1);
  job.status = "SUCCEEDED";
  expect((await attached).code).toBe(0);
  expect(metricsIn(run)).toEqual(LINES);
  expect(submitted).toHaveLength(2);
});

test("a job that fails ends the run with its cause, what to do, and where the log is", async () => {
  trainer = async (job) => {
    job.log =
      "(TaskRunner pid=9) Traceback (most recent call last):\n" +
      '(TaskRunner pid=9)   File "main_ppo.py", line 1, in run\n' +
      "(TaskRunner pid=9) ValueError: Total available GPUs 0 is less than total desired GPUs 1\n";
    Object.assign(job, { status: "FAILED", error_type: "JOB_ENTRYPOINT_COMMAND_ERROR", driver_exit_code: 1 });
  };
  const { code, err } = await train([`training.default_local_dir=${dir}/failed`]);
  expect(code).toBe(1);
  expect(err).toContain("the cluster has 0 GPUs and the run wants 1. Set trainer.n_gpus_per_node");
  expect(err).toContain(join(dir, "failed", "job.log"));
  expect(JSON.parse(readFileSync(join(dir, "failed", "run.json"), "utf8")).complete).toBe(false);
});

test("a run that only validates makes none of its steps and is complete; any other is not", async () => {
  trainer = async (job) => {
    job.log = "Total training steps: 2\n(TaskRunner pid=7) step:0 - val-core/arithmetic/reward/mean@1:0.25\n";
    job.status = "SUCCEEDED";
  };
  const validates = await train([`training.default_local_dir=${dir}/val`, "rllm.trainer.val_only=true"]);
  expect(validates.code).toBe(0);
  const trains = await train([`training.default_local_dir=${dir}/no-steps`]);
  expect(trains.code).toBe(1);
  expect(trains.err).toContain("the job ended without an error after step 0 of 2");
});

test("a run whose last lines Ray lost has them of the metrics file, and is complete", async () => {
  trainer = async (job) => {
    job.log = "Total training steps: 2\n(TaskRunner pid=7) step:1 - actor/entropy:0.5\n";
    for (const step of [1, 2]) job.log += `GRPU_METRICS {"step":${step},"data":{"actor/entropy":0.25}}\n`;
    job.status = "SUCCEEDED";
  };
  const { code } = await train([`training.default_local_dir=${dir}/lost`]);
  expect(metricsIn(join(dir, "lost"))).toEqual([
    { phase: "train", step: 1, "actor/entropy": 0.5 },
    { phase: "train", step: 2, "actor/entropy": 0.25 },
  ]);
  expect(code).toBe(0);
});

test("a signal stops the job where nobody can be asked", async () => {
  const stop = new AbortController();
  trainer = async () => stop.abort();
  const { code, err } = await train([`training.default_local_dir=${dir}/stopped`], stop.signal);
  expect(err).toContain("stopping the job grpu-sums-");
  expect(code).toBe(130);
  expect([...cluster.jobs.values()].at(-1)!.status).toBe("STOPPED");
});

test("too many failed rewards stop the job, with the most frequent failure", async () => {
  const module = join(dir, "broken.ts");
  const from = new URL("../../../../src/mod.ts", import.meta.url).pathname;
  writeFileSync(
    module,
    `import { registerReward } from "${from}";\nregisterReward("broken", () => { throw new Error("no judge today"); });\n`,
  );
  trainer = async (_, ask) => void (await Promise.all(Array.from({ length: 40 }, () => ask("42"))));
  const args = ["--import", module, "task.reward=broken", `training.default_local_dir=${dir}/broken`];
  const { code, err } = await train([...args, "rllm.workflow.retry_limit=1"]);
  expect(code).toBe(1);
  expect(err).toMatch(/40 of the latest 40 rewards and rollouts failed, more than ray\.max_failed_share allows\./);
  expect(err).toContain("no judge today");
  expect([...cluster.jobs.values()].at(-1)!.status).toBe("STOPPED");
});

test("a cluster that cannot reach the service starts nothing, and an earlier run stays where it is", async () => {
  trainer = async () => {
    throw new Error("must not start");
  };
  const before = readFileSync(join(dir, "run", "metrics.jsonl"), "utf8");
  cluster.onSubmit = (job) => {
    submitted.push(job);
    job.log = `GRPU_PROBE ${JSON.stringify([{ node: "10.0.0.1", kind: "refused", error: "[Errno 111]" }])}\n`;
    job.status = "SUCCEEDED";
  };
  const { code, err } = await train();
  expect(code).toBe(1);
  expect(err).toContain("from the cluster's node 10.0.0.1: the connection is refused ([Errno 111])");
  expect(err).toContain("service.host: 0.0.0.0");
  expect(submitted).toHaveLength(1);
  expect(readFileSync(join(dir, "run", "metrics.jsonl"), "utf8")).toBe(before);
});

test("a cluster with another version of verl gets nothing but the question", async () => {
  installed = "0.9.1";
  const { code, err } = await train([`training.default_local_dir=${dir}/version`]);
  installed = "0.8.0";
  expect(err).toContain("it has verl 0.9.1, and the settings are those of 0.8.0. Choose its tree with verl=0.9.1.");
  expect(code).toBe(3);
  expect(submitted).toHaveLength(1);
});

test.each([
  [["0.9.1", "0.9.1"], "0.9.1", "0.9.1", []],
  [["0.9.0"], "0.9.1", "0.9.0", []],
  [[null], "0.8.0", "0.8.0", ["no node of the cluster has verl installed"]],
  [["0.11.0"], "0.9.1", "0.9.1", ["verl 0.11.0, which is not known here"]],
  [["0.9.1", null], "0.9.1", "0.9.1", ["different versions of verl (0.9.1, none)"]],
  [[undefined], "0.9.1", "0.9.1", []],
] as const)("nodes with verl %j, settings of %s: made for %s", (versions, tree, name, warned) => {
  const warnings: string[] = [];
  const answers = versions.map(
    (verl) => ({ node: "n", kind: "ok", ...(verl !== undefined && { versions: { verl } }) }) as const,
  );
  expect(versionOnCluster(answers, { tree, warn: (message) => warnings.push(message) }).name).toBe(name);
  expect(warnings).toEqual(warned.map((text) => expect.stringContaining(text)));
});

const HELD = { "TransferQueue's storage": 8, "TransferQueue's controller": 1 };
test.each<[cpus: (number | undefined)[], command: number | undefined, verl: string, says: string | undefined]>([
  [[9], undefined, "0.9.1", undefined],
  [[4, 5], undefined, "0.9.1", undefined],
  [[4, undefined], undefined, "0.9.1", undefined],
  [
    [4, 4],
    undefined,
    "0.9.1",
    "hold 9 CPUs (TransferQueue's storage 8, TransferQueue's controller 1), its nodes have 8",
  ],
  [[9], 1, "0.9.1", "hold 10 CPUs (TransferQueue's storage 8, TransferQueue's controller 1, the job's command 1)"],
  [[8], undefined, "0.9.1", "lower transfer_queue.backend.SimpleStorage.num_data_storage_units"],
  [[8], undefined, "0.8.0", "lower trainer.n_gpus_per_node"],
])("nodes with %j CPUs, %s for the command, verl %s: %s", (cpus, num_cpus, verl, says) => {
  const answers = cpus.map((each) => ({ node: "n", kind: "ok", ...(each !== undefined && { cpus: each }) }) as const);
  const job = {
    submission_id: "j",
    entrypoint: "x",
    files: new Map(),
    env: {},
    metadata: { verl },
    resources: { num_cpus },
  };
  const check = () => checkCpus(answers, { cpus: HELD, job });
  if (says === undefined) expect(check).not.toThrow();
  else expect(check).toThrow(says);
});

test("a cluster with fewer CPUs than verl's processes hold gets nothing but the question", async () => {
  [installed, cpus] = ["0.9.1", 4];
  const { code, err } = await train(["verl=0.9.1", `training.default_local_dir=${dir}/cpus`]);
  [installed, cpus] = ["0.8.0", 64];
  expect(err).toContain("verl's processes hold 12 CPUs");
  expect(err).toContain("the GPUs' places 3");
  expect(code).toBe(3);
  expect(submitted).toHaveLength(1);
});

test("a dry run prints the job and writes its folder; secrets are masked, nothing is submitted", async () => {
  const folder = join(dir, "job");
  const { code, out } = await train(["--dry-run", "--job-folder", folder, "ray.env_vars.HF_TOKEN=hunter2"]);
  expect(code).toBe(0);
  expect(out).toContain("python3 -m verl.trainer.main_ppo");
  expect(out).toContain("actor_rollout_ref.model.path=some/model");
  expect(out).toContain("HF_TOKEN=***");
  expect(out + readFileSync(join(folder, "runtime_env.json"), "utf8")).not.toContain("hunter2");
  expect(existsSync(join(folder, "working_dir", "train.jsonl"))).toBe(true);
  expect(readFileSync(join(folder, "submit.sh"), "utf8")).toContain("ray job submit");
  expect(submitted).toEqual([]);
});

test.each([
  [["examples/arithmetic/run.yaml", "--dry-run"], 2, "Cannot use --dry-run: the run trains here, not on a cluster."],
  [[FILE, "--dry-run", "--attach"], 2, "Cannot use --dry-run with --attach"],
  [[FILE, "--attach", `training.default_local_dir=${dir}/none`], 4, "has no job.json"],
  [
    [FILE, "trainer.default_local_dir=ckpt", `training.default_local_dir=${dir}/relative`],
    3,
    "a relative folder is deleted with the job",
  ],
  [
    [FILE, "--dry-run", "rllm.workflow.use_workflow=true", "rllm.workflow.name=solver_judge_workflow"],
    3,
    "Cannot train the workflow solver_judge_workflow with verl: each of its rollouts has several trajectories",
  ],
] as const)("%s ends with status %i", async (args, status, message) => {
  const { code, err } = await grpu(["train", ...args], { env: { RAY_ADDRESS: cluster.address }, clock: cluster.clock });
  expect(err).toContain(message);
  expect(code).toBe(status);
});
