/** The log of verl's trainer, line by line, as versions 0.8 and 0.9 write it. */
import { describe, expect, test } from "vitest";
import { mergeCommand, resumeOverrides, stepFolder, stepOf } from "../../../src/backend/verl/checkpoints.ts";
import { explainError, parseMetrics, VerlLog } from "../../../src/backend/verl/log.ts";

const runner = { name: "TaskRunnerV1", pid: 7 };
const worker = { name: "AgentLoopWorkerTQ", pid: 9 };
const follow = (log: VerlLog, texts: readonly string[], by = runner) =>
  texts.flatMap((text) => log.read({ text, worker: by }));

describe("metrics", () => {
  test.each<[string, number, Record<string, number>]>([
    ["step:3 - a/b:np.float64(0.5) - c:1.25", 3, { "a/b": 0.5, c: 1.25 }],
    ["step:0 - val-core/openai/gsm8k/acc/mean@1:np.float64(-2e-05)", 0, { "val-core/openai/gsm8k/acc/mean@1": -2e-5 }],
    ["step:12 - x:np.int64(3) - y:1e+20 - z:True - w:False", 12, { x: 3, y: 1e20, z: 1, w: 0 }],
    [
      "step:1 - nan:nan - up:inf - down:-inf - f:np.float32(nan)",
      1,
      {
        ...{ nan: Number.NaN, up: Number.POSITIVE_INFINITY, down: Number.NEGATIVE_INFINITY, f: Number.NaN },
      },
    ],
    ["step:1 - val-aux/a - b:c/reward/mean@1:0.5 - d:2", 1, { "val-aux/a - b:c/reward/mean@1": 0.5, d: 2 }],
    ["step:4", 4, {}],
  ])("of %s", (line, step, metrics) => {
    expect(parseMetrics(line)).toEqual({ step, metrics });
  });

  test.each(["", "step: 3 - a:1", "the step:3 - a:1", "step:a - b:1", "{'step': 3}"])("are not in %j", (line) => {
    expect(parseMetrics(line)).toBeUndefined();
  });
});

describe("a log", () => {
  test("of 0.9 tells of data, steps, resuming and checkpoints", () => {
    const log = new VerlLog();
    const head = "INFO:2026-11-23 02:00:00,123:";
    expect(
      follow(log, [
        ...["dataset len: 10", "filter dataset len: 8", "dataset len: 3"],
        ...[`${head}Total training steps: 20`, `${head}Resuming from /s/global_step_4, setting global step to 4`],
        ...[`${head}Saving checkpoint to /s/global_step_5`, "something else", "step:5 - a:1"],
      ]),
    ).toEqual([
      { kind: "rows", all: 10, kept: 8 },
      { kind: "total", steps: 20 },
      { kind: "resumed", step: 4, folder: "/s/global_step_4" },
      { kind: "saving", step: 5, folder: "/s/global_step_5" },
      { kind: "saved", step: 5, folder: "/s/global_step_5" },
      { kind: "metrics", step: 5, metrics: { a: 1 } },
    ]);
    expect(log.lastSaved).toEqual({ step: 5, folder: "/s/global_step_5" });
  });

  test("of 0.8 tells the same, and a checkpoint in the making does not count", () => {
    const log = new VerlLog();
    const lines = [
      ...[
        "Load from checkpoint folder: /s/global_step_4",
        "Setting global step to 4",
        "Resuming from /s/global_step_4",
      ],
      ...["Total training steps: 20", "step:5 - a:1", "local_global_step_folder: /s/global_step_6"],
    ];
    expect(follow(log, lines).map(({ kind }) => kind)).toEqual(["resumed", "total", "metrics", "saving"]);
    expect(log.lastSaved).toBeUndefined();
    expect(follow(log, ["step:6 - a:1"]).map(({ kind }) => kind)).toEqual(["saved", "metrics"]);
  });

  test("counts failures that verl survives, each by its own worker", () => {
    const log = new VerlLog();
    const trace = [
      "ERROR:2026-11-23:Error in _run_prompt for uid=u1",
      "Traceback (most recent call last):",
      '  File "a.py", line 3',
    ];
    expect(follow(log, trace, worker)).toEqual([]);
    expect(follow(log, ["ValueError: of the other"], runner)).toEqual([]);
    const message = "RuntimeError: The reward of train task 3 failed: boom";
    expect(follow(log, [message], worker)).toEqual([{ kind: "failure", message }]);
    expect(follow(log, [message], worker)).toEqual([]);
    expect(log.cause()).toBeUndefined();
  });

  test("gives the first error that ends the run as its cause", () => {
    const log = new VerlLog();
    follow(log, [
      "ValueError: only told",
      "Traceback (most recent call last):",
      "  File ...",
      "    raise ValueError(a: b)",
    ]);
    expect(log.cause()).toBeUndefined();
    follow(log, ["ValueError: Total available GPUs 0 is less than total desired GPUs 8"]);
    follow(log, [
      "Traceback (most recent call last):",
      "ray.exceptions.RayTaskError(ValueError): ray::run()",
      "KeyError: 'later'",
    ]);
    expect(log.cause()).toBe(
      "Cannot train on the cluster: the cluster has 0 GPUs and the run wants 8. Set trainer.n_gpus_per_node and trainer.nnodes to what the cluster has, or add machines (ValueError: Total available GPUs 0 is less than total desired GPUs 8).",
    );
  });
});

test.each([
  ["torch.OutOfMemoryError: CUDA out of memory. Tried", "too little memory"],
  ["ModuleNotFoundError: No module named 'vllm'", "the workers' Python has no vllm"],
  ["hydra.errors.ConfigCompositionException: Could not override 'trainer.v1.a'.", "has no setting trainer.v1.a"],
  ["OSError: q/w is not a local folder and is not a valid model identifier listed", "cannot load the model"],
  ["KeyError: 'x'", "KeyError: 'x'"],
])("%s is explained", (message, says) => {
  expect(explainError(message)).toContain(says);
});

test("checkpoints: folders, resuming, merging", () => {
  expect([
    stepFolder("/s/", 3),
    stepOf("/s/global_step_3/"),
    stepOf("global_step_12"),
    stepOf("/s/global_step_x"),
  ]).toEqual([...["/s/global_step_3", 3, 12, undefined]]);
  expect(resumeOverrides("newest")).toEqual(["trainer.resume_mode=auto"]);
  expect(resumeOverrides({ folder: "/s/global_step_3" })).toEqual([
    ...["trainer.resume_mode=resume_path", "trainer.resume_from_path=/s/global_step_3"],
  ]);
  expect(mergeCommand({ folder: "/s s/global_step_3", target: "/out", strategy: "fsdp2" })).toBe(
    "python3 -m verl.model_merger merge --backend fsdp --local_dir '/s s/global_step_3/actor' --target_dir /out",
  );
  expect(mergeCommand({ folder: "/s", target: "/o", strategy: "megatron" })).toContain("--backend megatron ");
  expect(() => mergeCommand({ folder: "/s", target: "/o", strategy: "torchtitan" })).toThrow(
    "Cannot merge a checkpoint of torchtitan: verl's model_merger reads fsdp, fsdp2, megatron.",
  );
});
