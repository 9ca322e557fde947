/** The job of a run: its rows, its files, and what a person reads before it starts. */
import { execFileSync } from "node:child_process";
import { describe, expect, test } from "vitest";
import { dryRunFiles, dryRunText } from "../../../src/cluster/ray/dry_run.ts";
import { quoteWord } from "../../../src/cluster/ray/shell_word.ts";
import { cpusHeld } from "../../../src/cluster/verl/cpus.ts";
import { type VerlJobRequest, verlJob } from "../../../src/cluster/verl/job.ts";
import { verlRows } from "../../../src/cluster/verl/rows.ts";
import type { Task } from "../../../src/train/data/types.ts";
import { compose, READY } from "./runs.ts";

const task = (id: string, more: Partial<Task> = {}): Task => ({
  id,
  instruction: `solve ${id}`,
  metadata: {},
  ...more,
});
/** The message of what is thrown, which must be an error. */
const messageOf = (act: () => unknown): string => {
  try {
    return `nothing is thrown: ${act()}`;
  } catch (error) {
    expect(error).toBeInstanceOf(Error);
    return (error as Error).message;
  }
};
const parse = (text: string) =>
  text
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));

describe("rows", () => {
  test("have one shape, the task's number, and nothing of what rewards know", () => {
    const messages = [
      { role: "system", content: "be brief" },
      { role: "user", content: "2+2?" },
    ];
    const known = { data_source: "sums", ability: "math", answer: 4, deep: { a: [1] } };
    const rows = parse(verlRows([task("a"), task("b", { messages, metadata: known })], { split: "val" }));
    const rest = { reward_model: { style: "rule", ground_truth: "" } };
    expect(rows).toEqual([
      {
        ...{ data_source: "grpu", ability: "", prompt: [{ role: "user", content: "solve a" }], ...rest },
        extra_info: { split: "val", index: 0, grpu_task: 0 },
      },
      {
        ...{ data_source: "sums", ability: "math", prompt: messages, ...rest },
        extra_info: { split: "val", index: 1, grpu_task: 1 },
      },
    ]);
    expect(parse(verlRows([task("a")], { split: "train", agentName: "x" }))[0]).toMatchObject({ agent_name: "x" });
  });

  test("take a source and an ability that are texts, and messages whose further fields are empty", () => {
    const messages = [{ role: "user", content: "go", name: null, tool_calls: undefined } as never];
    const metadata = { data_source: "", ability: 3 };
    const [row] = parse(verlRows([task("a", { messages, metadata })], { split: "train" }));
    expect(row).toMatchObject({ data_source: "grpu", ability: "", prompt: [{ role: "user", content: "go" }] });
    expect(row).not.toHaveProperty("agent_name");
    expect(parse(verlRows([task("a", { metadata: { data_source: 3 } })], { split: "train" }))[0].data_source).toBe(
      "grpu",
    );
  });

  const calls = [{ role: "assistant", content: "", tool_calls: [{ function: { name: "f", arguments: {} } }] }];
  test.each<[what: string, tasks: Task[], says: string]>([
    ["no task", [], "Cannot send the train tasks to verl: there are none. Add some."],
    [
      "no prompt",
      [task("a"), task("b", { instruction: "" })],
      "Cannot send train task 1 (b) to verl: it has no prompt.",
    ],
    ["no text in messages", [task("b", { messages: [{ role: "user", content: "" }] })], "it has no prompt"],
    ["tool calls", [task("c", { messages: [...calls, { role: "user", content: "go" }] })], "a message has tool_calls"],
    [
      "half a surrogate pair",
      [task("d", { instruction: "a\ud800b" })],
      "Cannot send train task 0 (d) to verl: its text holds half of a surrogate pair, which is not Unicode. Remove it.",
    ],
    ["one in the source", [task("d", { metadata: { data_source: "\udc00" } })], "half of a surrogate pair"],
    ["one in the ability", [task("d", { metadata: { ability: "\ud800" } })], "half of a surrogate pair"],
    [
      "halves of two messages",
      [task("d", { messages: ["\ud83d", "\ude00"].map((content) => ({ role: "user", content })) })],
      "half of a surrogate pair",
    ],
  ])("refuse %s", (_, tasks, says) => {
    expect(messageOf(() => verlRows(tasks, { split: "train" }))).toContain(says);
  });

  test("of an agent's tasks may have tool calls, which the row leaves out", () => {
    const messages = [...calls, { role: "user", content: "go" }];
    const [row] = parse(verlRows([task("c", { messages })], { split: "train", agentName: "x" }));
    expect(row.prompt).toEqual([
      { role: "assistant", content: "" },
      { role: "user", content: "go" },
    ]);
  });
});

const python: Record<string, string> = {
  "ray/grpu_service.py": "service",
  "ray/verl_reward.py": "reward",
  "ray/verl_metrics.py": "metrics",
  "ray/verl_agent.py": "agent",
};
function request(more: Partial<VerlJobRequest> = {}, overrides: readonly string[] = []): VerlJobRequest {
  const { composed, version, readConfig } = compose("0.9.1", [...READY, "rllm.data.train_batch_size=2", ...overrides]);
  return {
    ...{ composed, version, submission_id: "grpu-1", train: [task("a"), task("b")], val: [], hasAgent: false },
    ...{ service: { url: "http://10.0.0.1:7000", token: "s3cret" } },
    readPackaged: (name) => python[name] ?? readConfig(name),
    ...more,
  };
}
const texts = (files: ReadonlyMap<string, Uint8Array>) =>
  Object.fromEntries([...files].map(([name, bytes]) => [name, new TextDecoder().decode(bytes)]));

describe("the job", () => {
  test("of a reward function holds its rows and three Python files", () => {
    const { job, overrides, problems } = verlJob(request());
    expect(problems).toEqual([]);
    expect(Object.keys(texts(job.files))).toEqual([
      "train.jsonl",
      "grpu_service.py",
      "verl_reward.py",
      "verl_metrics.py",
    ]);
    expect(job.env).toEqual({
      GRPU_URL: "http://10.0.0.1:7000",
      GRPU_TOKEN: "s3cret",
      VERL_FILE_LOGGER_ROOT: "/shared/run/metrics/grpu-1",
    });
    expect(job.pip).toBeUndefined();
    expect(job.metadata).toEqual({ grpu_backend: "verl", verl: "0.9.1" });
    expect(job.entrypoint).not.toMatch(/s3cret|10\.0\.0\.1/);
    // A shell gives the trainer exactly the overrides, and then asks for its last metrics.
    const asked = job.entrypoint.replace(/^python3 -m \S+/, "printf '%s\\n'").replace("&& python3", "&& echo");
    const printed = execFileSync("sh", ["-c", asked], { encoding: "utf8" });
    expect(printed.trimEnd().split("\n")).toEqual([...overrides, "verl_metrics.py"]);
  });

  test.each([
    [["rllm.trainer.save_freq=-1"], "metrics"],
    [["rllm.trainer.save_freq=5"], "/shared/run/metrics/grpu-1"],
    [["rllm.trainer.save_freq=5", "trainer.default_local_dir=/shared/run//"], "/shared/run/metrics/grpu-1"],
    [["rllm.trainer.save_freq=5", "trainer.default_local_dir=hdfs://host/run"], "metrics"],
  ])("with %j keeps its metrics in %s", (overrides, folder) => {
    expect(verlJob(request({}, overrides)).job.env.VERL_FILE_LOGGER_ROOT).toBe(folder);
  });

  test.each<[overrides: string[], version: string, held: Record<string, number>]>([
    [[], "0.9.1", { "TransferQueue's storage": 8, "TransferQueue's controller": 1, "the GPUs' places": 3 }],
    [
      [
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=4",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=2",
      ],
      "0.9.1",
      { "TransferQueue's storage": 2, "TransferQueue's controller": 1, "the GPUs' places": 24 },
    ],
    [
      ["transfer_queue.backend.storage_backend=MooncakeStore"],
      "0.9.1",
      { "TransferQueue's controller": 1, "the GPUs' places": 3 },
    ],
    [[], "0.8.0", { "the GPUs' places": 3 }],
  ])("with %j on verl %s holds CPUs for %j", (overrides, name, held) => {
    const { composed, version } = compose(name, [...READY, "trainer.n_gpus_per_node=1", ...overrides]);
    expect(cpusHeld(composed.config, version)).toEqual(held);
  });

  test("of an agent holds its loop and rows that ask for it", () => {
    const { job } = verlJob(request({ hasAgent: true, val: [task("v")], installs: true, metadata: { run: "r" } }));
    const files = texts(job.files);
    expect(Object.keys(files)).toEqual([
      ...["train.jsonl", "val.jsonl", "grpu_service.py", "verl_reward.py", "verl_metrics.py"],
      ...["verl_agent.py", "agent.yaml"],
    ]);
    expect(files["agent.yaml"]).toBe("- name: grpu\n  _target_: verl_agent.GrpuAgentLoop\n");
    expect(files["verl_agent.py"]).toBe("agent");
    expect(parse(files["val.jsonl"]!)).toEqual([
      expect.objectContaining({ agent_name: "grpu", extra_info: { split: "val", index: 0, grpu_task: 0 } }),
    ]);
    expect(parse(files["train.jsonl"]!)).toEqual(
      [0, 1].map((index) =>
        expect.objectContaining({ agent_name: "grpu", extra_info: { split: "train", index, grpu_task: index } }),
      ),
    );
    expect(job.pip).toEqual(["verl[verl-core]==0.9.1", "orjson"]);
    expect(job.metadata.run).toBe("r");
  });

  test("needs a whole batch of tasks", () => {
    const { problems } = verlJob(request({ train: [task("a")] }));
    expect(problems.map(({ message }) => message)).toEqual([
      "Cannot train on 1 tasks with data.train_batch_size=2: verl leaves out batches that are not full. Lower it (rllm.data.train_batch_size), or add tasks.",
    ]);
  });

  test("of a configuration without a size of batches has no such problem", () => {
    const { composed, ...rest } = request({ train: [task("a")] });
    const config = structuredClone(composed.config);
    delete (config.data as Record<string, unknown>).train_batch_size;
    expect(verlJob({ ...rest, composed: { ...composed, config } }).problems).toEqual([]);
  });

  test("needs the package's Python files", () => {
    expect(() => verlJob(request({ readPackaged: request().readPackaged, hasAgent: true }))).not.toThrow();
    const { readPackaged } = request();
    const lacks = (name: string) => (name === "ray/verl_agent.py" ? undefined : readPackaged(name));
    expect(() => verlJob(request({ readPackaged: lacks, hasAgent: true }))).toThrow(
      "the package lacks config/ray/verl_agent.py",
    );
  });
});

describe("a dry run", () => {
  const plan = verlJob(request({ installs: true }, ["trainer.experiment_name='it\\'s mine'"]));

  test("prints the command, the files and the environment without its secret", () => {
    const text = dryRunText(plan);
    expect(text).toContain("job grpu-1\ncommand:\n  python3 -m verl.trainer.main_ppo\n    ");
    expect(text).toContain("\n    'trainer.experiment_name='\\''it\\'\\''s mine'\\'''\n");
    expect(text).toMatch(/files:\n {2}train\.jsonl {2}\d+ bytes\n/);
    expect(text).toContain(
      "environment:\n  GRPU_URL=http://10.0.0.1:7000\n  GRPU_TOKEN=***\n  VERL_FILE_LOGGER_ROOT=/shared/run/metrics/grpu-1\npip:\n  verl[verl-core]==0.9.1\n",
    );
    expect(text).not.toContain("s3cret");
  });

  test("hides a secret of an override in what is printed, not in what is run", () => {
    const { job, ...rest } = verlJob(request({}, ["actor_rollout_ref.model.path=https://u:hunter1@host/m"]));
    expect(job.entrypoint).toContain("hunter1");
    expect(dryRunText({ job: { ...job, env: { PROXY: "http://u:hunter2@h" } }, ...rest })).not.toMatch(/hunter/);
  });

  test("names the secrets that the file needs, and no packages where the cluster has them", () => {
    const { job, ...rest } = verlJob(request());
    expect(dryRunText({ job, ...rest })).not.toContain("pip");
    const env = { ...job.env, A_KEY: "1", MY_SECRET: "2", PASSWORD: "3" };
    const files = texts(dryRunFiles({ ...job, env }));
    expect(files["submit.sh"]).toContain("Write GRPU_TOKEN, A_KEY, MY_SECRET, PASSWORD into runtime_env.json first.");
    const { GRPU_URL, VERL_FILE_LOGGER_ROOT } = job.env;
    expect(JSON.parse(files["runtime_env.json"]!)).toEqual({
      env_vars: { GRPU_URL, VERL_FILE_LOGGER_ROOT, GRPU_TOKEN: "***", A_KEY: "***", MY_SECRET: "***", PASSWORD: "***" },
    });
  });

  test("writes a folder whose script gives Ray's command the same overrides", () => {
    const resources = { num_cpus: 1, memory: 2e9 };
    const files = texts(dryRunFiles({ ...plan.job, py_executable: "/p/python", resources }));
    expect(Object.keys(files).sort()).toEqual([
      ...[
        "runtime_env.json",
        "submit.sh",
        "working_dir/grpu_service.py",
        "working_dir/train.jsonl",
        "working_dir/verl_metrics.py",
        "working_dir/verl_reward.py",
      ],
    ]);
    expect(JSON.parse(files["runtime_env.json"]!)).toEqual({
      env_vars: {
        GRPU_URL: "http://10.0.0.1:7000",
        GRPU_TOKEN: "***",
        VERL_FILE_LOGGER_ROOT: "/shared/run/metrics/grpu-1",
      },
      pip: ["verl[verl-core]==0.9.1", "orjson"],
      py_executable: "/p/python",
    });
    expect(files["submit.sh"]).toContain(
      " --entrypoint-num-cpus 1 --entrypoint-memory 2000000000 -- sh -c 'python3 -m verl",
    );
    expect(Object.values(files).join()).not.toContain("s3cret");
    const script = files["submit.sh"]!.replace(/^cd .*$/m, "")
      .replace("exec ray", "printf '%s\\n'")
      .replace("$(cat runtime_env.json)", "");
    const words = execFileSync("sh", ["-c", script], { encoding: "utf8" }).trimEnd().split("\n");
    expect(words.slice(0, 4)).toEqual(["job", "submit", "--submission-id", "grpu-1"]);
    // Ray quotes each word again and gives them to a shell.
    expect(words.slice(words.indexOf("--") + 1)).toEqual(["sh", "-c", plan.job.entrypoint]);
  });
});

test("words of a shell", () => {
  expect(["a.b=c", "x=[1,2]", "it's", ""].map(quoteWord)).toEqual(["a.b=c", "'x=[1,2]'", "'it'\\''s'", "''"]);
});
