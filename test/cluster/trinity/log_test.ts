/** Two streams of metrics in one log: explorer's and trainer's lines become steps, validations, checkpoints and failures. */
import { describe, expect, test } from "vitest";
import type { TrainerEvent } from "../../../src/cluster/ray/trainer.ts";
import { parseStep, TrinityLog } from "../../../src/cluster/trinity/log.ts";

const STAMP = "INFO 11-23 04:05:06 [monitor.py:120] ";

/** A line of a worker as Ray prints it, `Name: text`. */
function reader(log = new TrinityLog()) {
  return (line: string): TrainerEvent[] => {
    const [, name, text] = /^(?:(Explorer|Trainer|WorkflowRunner): )?(.*)$/.exec(line)!;
    const worker = name === undefined ? undefined : { name, pid: name.length };
    return log.read({ text: name === undefined ? text! : `${STAMP}${text}\r`, ...(worker && { worker }) });
  };
}

function follow(lines: readonly string[]): TrainerEvent[] {
  const log = new TrinityLog();
  return [...lines.flatMap(reader(log)), ...log.finish()];
}

describe("a line of metrics", () => {
  test.each<[text: string, values: Record<string, number> | undefined]>([
    ["Step 3: {'a/b': 0.5, 'c': 2, 'd': 1e-06, 'e': -1.5e+10}", { "a/b": 0.5, c: 2, d: 1e-6, e: -1.5e10 }],
    ["Step 3: {'n': nan, 'i': inf, 'j': -inf, 't': True}", { n: Number.NaN, i: Infinity, j: -Infinity, t: 1 }],
    [`Step 3: {"it's": 1, 'text': 'x, y', 'last': 0}`, { "it's": 1, last: 0 }],
    ["Step 3: {}", {}],
    ["Step 3 started", undefined],
  ])("%s", (text, values) => {
    expect(parseStep(text)).toEqual(values && { step: 3, values });
  });
});

const START = "Trinity runs in mode both, with checkpoints in /shared/p/n";

test("a step is told once, when both halves are whole, with verl's names", () => {
  const line = reader();
  expect(line("Total training steps: 2")).toEqual([{ kind: "total", steps: 2 }]);
  expect(line(START)).toEqual([]);
  expect(line("Explorer: Step 1: {'rollout/reward/mean': 0.25, 'rollout/model_version': 0}")).toEqual([]);
  expect(line("Trainer: Step 1: {'actor/pg_loss': 0.5, 'time/train_step': 3}")).toEqual([]);
  expect(line("Explorer: Step 1: {'explore/time/sync_interval': 9}")).toEqual([]);
  expect(line("Explorer: Explorer sync_weights at step 1 started.")).toEqual([
    {
      ...{ kind: "metrics", step: 1 },
      metrics: {
        ...{ "rollout/reward/mean": 0.25, "rollout/model_version": 0, "explore/time/sync_interval": 9 },
        ...{ "actor/pg_loss": 0.5, "timing_s/step": 3 },
      },
    },
  ]);
  // As Trinity's explorer ends: a line for a step that was told.
  expect(line("Explorer: Step 1: {'explore/time/sync_interval': 6.9e-05}")).toEqual([]);
  expect(line("Explorer: Explorer (explorer) shutdown successfully at step 1.")).toEqual([]);
  // The trainer is later.
  expect(line("Explorer: Step 2: {'rollout/reward/mean': 0.5}")).toEqual([]);
  expect(line("Explorer: Explorer sync_weights at step 2 started.")).toEqual([]);
  expect(line("Trainer: Step 2: {'actor/pg_loss': 0.25}")).toEqual([
    { kind: "metrics", step: 2, metrics: { "rollout/reward/mean": 0.5, "actor/pg_loss": 0.25 } },
  ]);
});

test("validations are told at once; a benchmark is one", () => {
  const line = reader();
  expect(line("Explorer: Step 0: {'eval/val/acc': 0.5, 'time/eval': 2}")).toEqual([
    { kind: "metrics", step: 0, metrics: { "val-aux/val/acc": 0.5 } },
  ]);
  expect(line("Explorer: Step 2: {'eval/val/acc': 0.5, 'time/eval': 2}")).toMatchObject([{ step: 2 }]);
  line("Explorer: Explorer sync_weights at step 2 started.");
  // How long it took belongs to the step.
  expect(line("Trainer: Step 2: {'a': 1}")).toEqual([
    { kind: "metrics", step: 2, metrics: { "timing_s/testing": 2, a: 1 } },
  ]);
  expect(line("Explorer: Step 4: {'bench/val/acc/mean@1': 1}")).toEqual([
    { kind: "metrics", step: 4, metrics: { "val-core/val/acc/mean@1": 1 } },
  ]);
});

test("a validation stands at the step of the weights that it used, before the steps that were trained in the meantime", () => {
  const log = new TrinityLog();
  const line = reader(log);
  line(START);
  line("Explorer: Evaluation at step 0 started.");
  expect(line("Explorer: Step 0: {'eval/val/acc': 0.5}")).toMatchObject([{ step: 0 }]);
  line("Explorer: Explorer sync_weights at step 0 started.");
  line("Explorer: Explorer sync_weights at step 0 finished, model version = 0.");
  // Two steps between weights, the trainer is quick.
  line("Explorer: Evaluation at step 2 started.");
  line("Trainer: Step 1: {'a': 1}");
  line("Trainer: Step 2: {'a': 1}");
  expect(line("Explorer: Step 1: {'rollout/model_version': 0}")).toEqual([]);
  expect(line("Explorer: Step 2: {'rollout/model_version': 0}")).toEqual([]);
  expect(line("Explorer: Step 2: {'eval/val/acc': 0.5, 'time/eval': 2}")).toMatchObject([
    { step: 0, metrics: { "val-aux/val/acc": 0.5 } },
    { step: 1 },
  ]);
  expect(steps(line("Explorer: Explorer sync_weights at step 2 started."))).toEqual([2]);
  line("Explorer: Explorer sync_weights at step 2 finished, model version = 2.");
  expect(line("Explorer: Step 4: {'eval/val/acc': 0.75}")).toMatchObject([{ step: 2 }]);
});

test("a validation without a result holds no step back", () => {
  const line = reader();
  line("Explorer: Evaluation at step 1 started.");
  line("Explorer: Step 1: {'rollout/x': 1, 'rollout/model_version': -1}");
  line("Trainer: Step 1: {'a': 1}");
  expect(steps(line("Explorer: Explorer sync_weights at step 1 started."))).toEqual([1]);
  line("Explorer: Evaluation at step 2 started.");
  const found = Array.from({ length: 70 }, (_, i) => line(`Trainer: Step ${i + 2}: {'a': 1}`)).flat();
  expect(steps(found)).toEqual([2, 3, 4, 5, 6, 7]);
  expect(line("Explorer: Step 2: {'eval/val/acc': 0.5}")).toMatchObject([{ step: 0 }]);
});

const steps = (events: readonly TrainerEvent[]) => events.flatMap((it) => (it.kind === "metrics" ? [it.step] : []));

test("the halves that never met are told at the end, in order", () => {
  const events = follow([
    START,
    "Trainer: Step 2: {'a': 1}",
    "Explorer: Step 3: {'rollout/x': 1}",
    "Explorer: Step 1: {'rollout/x': 1}",
  ]);
  expect(steps(events)).toEqual([1, 2, 3]);
});

test("a trainer ahead of a silent explorer is not held back for ever", () => {
  const line = reader();
  const found = Array.from({ length: 70 }, (_, i) => line(`Trainer: Step ${i + 1}: {'a': 1}`)).flat();
  expect(steps(found)).toEqual([1, 2, 3, 4, 5, 6]);
});

test("an explorer that continues behind its trainer validates the trainer's weights", () => {
  const line = reader();
  line("Explorer: Explorer sync_weights at step 8 finished, model version = 10.");
  expect(line("Explorer: Step 9: {'eval/val/acc': 0.5}")).toMatchObject([{ step: 10 }]);
});

test("mode explore has a step once the explorer's lines for it are complete", () => {
  const line = reader();
  line("Trinity runs in mode explore, with checkpoints in /shared/p/n");
  expect(line("Explorer: Step 1: {'rollout/a': 1}")).toEqual([]);
  line("Explorer: Step 1: {'explore/time/sync_interval': 2}");
  expect(line("Explorer: Explorer sync_weights at step 1 started.")).toEqual([
    { kind: "metrics", step: 1, metrics: { "rollout/a": 1, "explore/time/sync_interval": 2 } },
  ]);
  // A late line makes no second record of the step, not even at the end.
  expect(line("Explorer: Step 1: {'rollout/a': 2}")).toEqual([]);
  expect(line("Explorer: Explorer (explorer) shutdown successfully at step 1.")).toEqual([]);
});

test.each<[mode: string, lines: string[]]>([
  ["train", ["Trainer: Step 1: {'a': 1}"]],
  ["explore", ["Explorer: Step 1: {'rollout/a': 1}", "Explorer: Explorer sync_weights at step 1 started."]],
])("mode %s has one half", (mode, lines) => {
  const line = reader();
  line(`Trinity runs in mode ${mode}, with checkpoints in /shared/p/n`);
  expect(steps(lines.flatMap(line))).toEqual([1]);
});

test("a checkpoint counts once the trainer goes on, and the last one at the end", () => {
  const log = new TrinityLog();
  const line = reader(log);
  line(START);
  expect(line("Trainer: Saving checkpoint at step 2...")).toEqual([
    { kind: "saving", step: 2, folder: "/shared/p/n/global_step_2" },
  ]);
  expect(log.lastSaved).toBeUndefined();
  expect(line("Trainer: Sample data for step 3 started.")).toEqual([
    { kind: "saved", step: 2, folder: "/shared/p/n/global_step_2" },
  ]);
  line("Trainer: Saving checkpoint at step 3...");
  expect(line("Trainer: > Trainer finished.")).toMatchObject([{ kind: "saved", step: 3 }]);
  expect(log.lastSaved).toEqual({ step: 3, folder: "/shared/p/n/global_step_3" });
});

test("a rollout that fails is one failure with its error; other tracebacks are none", () => {
  const lines = [
    "WorkflowRunner: WorkflowRunner single run error: no judge",
    "WorkflowRunner: Traceback:",
    "WorkflowRunner: Traceback (most recent call last):",
    'WorkflowRunner:   File "x.py", line 1, in run',
    "WorkflowRunner: RuntimeError: The reward of train task 3 failed: no judge",
    "WorkflowRunner: ValueError: of another kind",
  ];
  expect(follow(lines)).toEqual([
    { kind: "failure", message: "RuntimeError: The reward of train task 3 failed: no judge" },
  ]);
});

test("the line without the logger's stamp is what tracebacks are found in", () => {
  const plain = new TrinityLog().plain({
    text: "ERROR 11-23 04:05:06 [trainer.py:160] Traceback (most recent call last):\r",
  });
  expect(plain.text).toBe("Traceback (most recent call last):");
});
