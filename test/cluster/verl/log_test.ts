/** The log of verl's trainer, line by line, as versions 0.8 and 0.9 write it. */
import { describe, expect, test } from "vitest";
import {
  mergeCommand,
  resumeOverrides,
  stepFolder,
  verlCheckpointStep,
} from "../../../src/cluster/verl/checkpoints.ts";
import { explainError, parseMetrics, type VerlEvent, VerlLog } from "../../../src/cluster/verl/log.ts";

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
    ["step:4 - tokens:12345 - lr:1.5e-6 - big:2e20 - plus:+7.", 4, { tokens: 12345, lr: 1.5e-6, big: 2e20, plus: 7 }],
    ["step:4 - a:1.5.2 - b:x - c:1", 4, { "a:1.5.2 - b:x - c": 1 }],
  ])("of %s", (line, step, metrics) => {
    expect(parseMetrics(line)).toEqual({ step, metrics });
  });

  test.each(["", "step: 3 - a:1", "the step:3 - a:1", "step:a - b:1", "step:3x - a:1", "step:3,", "{'step': 3}"])(
    "are not in %j",
    (line) => {
      expect(parseMetrics(line)).toBeUndefined();
    },
  );
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

  test("takes from the metrics file what it lacks at its end, and nothing twice", () => {
    const log = new VerlLog();
    const record = (step: number, data: object) => `GRPU_METRICS ${JSON.stringify({ step, data })}`;
    expect(follow(log, ["step:1 - a:1", ":Saving checkpoint to /s/global_step_3"])).toHaveLength(2);
    const [one, two, three] = [1, 2, 3].map((step) => record(step, { a: step, b: null, c: "text", "val-core/a": 0.5 }));
    expect(follow(log, [one!, two!, "GRPU_METRICS {cut", three!, three!])).toEqual([
      { kind: "metrics", step: 2, metrics: { a: 2, "val-core/a": 0.5 } },
      { kind: "saved", step: 3, folder: "/s/global_step_3" },
      { kind: "metrics", step: 3, metrics: { a: 3, "val-core/a": 0.5 } },
    ]);
    expect(follow(new VerlLog(), [record(0, { "val-core/a": 1 })])).toHaveLength(1);
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

  const opened: VerlEvent = { kind: "total", steps: 20 };
  test.each<[line: string, events: readonly VerlEvent[]]>([
    ["  step:3 - a:1  ", [{ kind: "metrics", step: 3, metrics: { a: 1 } }]],
    ["  Total training steps: 20  ", [opened]],
    ["INFO Total training steps: 20", [opened]],
    ["INFO:Total training steps: 20", [opened]],
    ["(Total training steps: 20", []],
    ["Total training steps: 20 or more", []],
    ["Resuming from /s/global_step_40/", [{ kind: "resumed", step: 40, folder: "/s/global_step_40" }]],
    ["Resuming from /s/global_step_4 or later", []],
    ["Not Resuming from /s/global_step_4", []],
    ["Saving checkpoint to /s/global_step_5", []],
    ["INFO:Saving checkpoint to /s/a b/global_step_5", [{ kind: "saving", step: 5, folder: "/s/a b/global_step_5" }]],
    ["INFO:Saving checkpoint to /s/final", []],
    ["the local_global_step_folder: /s/global_step_5", []],
    ["filter dataset len: 12", [{ kind: "rows", all: 12, kept: 12 }]],
    ["my filter dataset len: 12", []],
    ["filter dataset len: 12 rows", []],
  ])("line %j alone", (text, events) => {
    expect(new VerlLog().read({ text })).toEqual(events);
  });

  test("ends the saving of a step with the metrics of that step or a later one, once", () => {
    const log = new VerlLog();
    const save = "local_global_step_folder: /s/global_step_12";
    const kinds = follow(log, [save, "step:11 - a:1", "step:13 - a:1", "step:14 - a:1"]).map(({ kind }) => kind);
    expect(kinds).toEqual(["saving", "metrics", "saved", "metrics", "metrics"]);
    expect(log.lastSaved?.step).toBe(12);
    follow(log, ["local_global_step_folder: /s/final", "step:20"]);
    expect(log.lastSaved?.step).toBe(12);
  });

  test.each<[error: string, cause: string | undefined]>([
    ["torch.cuda.my_errors.BadError:no space", "torch.cuda.my_errors.BadError: no space"],
    ["ValueError: : two", "ValueError: : two"],
    ["KeyboardInterrupt", "KeyboardInterrupt"],
    ["ray.exceptions.GetTimeout: late", "ray.exceptions.GetTimeout: late"],
    ["MyException:", "MyException"],
    ["a ValueError: x", undefined],
    ["Errors everywhere", undefined],
    ["a-b.ValueError: x", undefined],
  ])("whose driver raises %j has the cause %j", (text, cause) => {
    const log = new VerlLog();
    for (const line of ["Traceback (most recent call last):", text]) expect(log.read({ text: line })).toEqual([]);
    expect(log.cause()).toBe(cause);
  });

  test("of a driver without a name counts its failures too, and the error after them ends the run", () => {
    const log = new VerlLog();
    const events = ["Error in _run_prompt for uid=u1", "ValueError: lost"].flatMap((text) => log.read({ text }));
    expect(events).toEqual([{ kind: "failure", message: "ValueError: lost" }]);
    for (const text of ["An Error in _run_prompt", "ValueError: no traceback"]) expect(log.read({ text })).toEqual([]);
    expect(log.cause()).toBeUndefined();
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
  ["torch.outofmemoryerror", "too little memory"],
  [
    "Total available GPUs 12 is less than total desired GPUs 16",
    "the cluster has 12 GPUs and the run wants 16. Set trainer.n_gpus_per_node",
  ],
  ["ModuleNotFoundError: No module named 'flash_attn.ops'", "the workers' Python has no flash_attn.ops."],
  ["Key 'my_key' is not in struct", "has no setting my_key."],
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
    verlCheckpointStep("/s/global_step_3/"),
    verlCheckpointStep("global_step_12"),
    verlCheckpointStep("/s/global_step_x"),
    verlCheckpointStep("/s/global_step_3/actor"),
    verlCheckpointStep("/s/my_global_step_3"),
    stepFolder("/s///", 4),
  ]).toEqual([...["/s/global_step_3", 3, 12, undefined, undefined, undefined, "/s/global_step_4"]]);
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
