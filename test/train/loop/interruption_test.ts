/** Runs that end at random points and resume, compared with an uninterrupted run. */
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FolderCheckpoints } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import type { Logger } from "../../../src/train/log/logger.ts";
import { MetricsFile } from "../../../src/train/log/loggers/jsonl.ts";
import type { LoopState, StageContext, Stages } from "../../../src/train/loop/contract.ts";
import { pipelineStep } from "../../../src/train/loop/pipeline/pipeline.ts";
import { type LoopSettings, type Partly, STAGE_ORDER } from "../../../src/train/loop/settings.ts";
import { STAGES } from "../../../src/train/loop/stages.ts";
import { train } from "../../../src/train/loop/train.ts";
import { LETTER_SETTINGS, LETTERS, letterRun } from "../../fixtures/loop.ts";
import type { TableBackend } from "../../fixtures/table_backend.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "grpu-interruption-"));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const KINDS = ["abort", "abort and throw the reason", "throw"] as const;

/** An incident at point number `at` of a run, from 1. */
interface Incident {
  readonly at: number;
  readonly kind: (typeof KINDS)[number];
}

class Interruption {
  points = 0;
  readonly controller = new AbortController();
  private readonly incident: Incident | undefined;

  constructor(incident?: Incident) {
    this.incident = incident;
  }

  point(): void {
    if (++this.points !== this.incident?.at) return;
    if (this.incident.kind !== "throw") this.controller.abort();
    if (this.incident.kind === "abort and throw the reason") throw this.controller.signal.reason;
    if (this.incident.kind === "throw") throw new Error("an incident");
  }

  /** A point before the call, and one after it. */
  around<A extends unknown[], R>(call: (...args: A) => R | Promise<R>): (...args: A) => Promise<R> {
    return async (...args) => {
      this.point();
      const result = await call(...args);
      this.point();
      return result;
    };
  }

  stages(stages: Stages): Stages {
    const wrapped = Object.entries(stages).map(([name, stage]) => [name, this.around(stage)]);
    return Object.fromEntries(wrapped) as Stages;
  }

  watch(backend: TableBackend): void {
    for (const name of ["forwardBackward", "optimStep", "logprobs", "save"] as const)
      Object.assign(backend, { [name]: this.around((backend[name] as () => unknown).bind(backend)) });
  }

  logger(logger: Logger): Logger {
    return {
      name: "metrics",
      log: this.around(logger.log.bind(logger)),
      position: logger.position?.bind(logger),
      rewind: logger.rewind?.bind(logger),
    };
  }
}

const SETTINGS: Partly<LoopSettings> = {
  ...LETTER_SETTINGS,
  warmup: { steps: 2, batch_size: 4, learning_rate: 1 },
  rejection_sample: { enable: true, mode: "episode", min_partial_solve_tasks: 3 },
};

interface Shape {
  readonly save_freq: number;
  readonly num_minibatches: number;
  /** Stages by name, as in `pipeline.stages`. */
  readonly isNamed?: boolean;
  readonly isAsync?: boolean;
}

function fileRun(name: string) {
  const folder = join(dir, name);
  const file = join(folder, "metrics.jsonl");
  const made = letterRun({
    settings: { ...LETTER_SETTINGS, trainer: { total_batches: 4, save_freq: 0, test_freq: 0 } },
    checkpoints: new FolderCheckpoints<LoopState>(folder, { resumeMode: "auto" }),
    loggers: [new MetricsFile(file)],
  });
  return { ...made, folder, lines: () => linesOf(file) };
}

async function linesOf(file: string): Promise<string> {
  const text = await readFile(file, "utf8").catch(() => "");
  // Counters of asynchronous training restart with each process.
  return text.replace(/"(time|perf|async)\/[^"]*":[^,}]*,?/g, "").trim();
}

/** One process: a run in the folder until its end or the incident. */
async function attempt(folder: string, shape: Shape, incident?: Incident) {
  const interruption = new Interruption(incident);
  const { save_freq, num_minibatches, isNamed = false, isAsync = false } = shape;
  const stages = interruption.stages(STAGES);
  const { run, backend } = letterRun({
    settings: {
      ...SETTINGS,
      async_training: { enable: isAsync, mini_batch_size: LETTER_SETTINGS.data.train_batch_size },
      trainer: { total_batches: 5, test_freq: 2, save_freq },
      training: { learning_rate: 8, seed: 1, num_minibatches, metric_for_best_model: "val/copy/pass@1" },
    },
    examples: Array.from(LETTERS, (letter) => ({ prompt: letter, response: letter })),
    checkpoints: new FolderCheckpoints<LoopState>(folder, { resumeMode: "auto" }),
    loggers: [interruption.logger(new MetricsFile(join(folder, "metrics.jsonl")))],
    stages,
    ...(isNamed && { step: pipelineStep(STAGE_ORDER, stages) }),
    signal: interruption.controller.signal,
  });
  interruption.watch(backend);
  const outcome = await train(run).catch((error: unknown) => {
    if (!/an incident|AbortError/.test(String(error))) throw error;
  });
  const lines = await linesOf(join(folder, "metrics.jsonl"));
  return { outcome, points: interruption.points, weights: backend.text(), lines };
}

/** Stops the run in step 3, in a stage or after it. */
async function stopIn(name: keyof Stages, stop: (signal: AbortSignal, context: StageContext) => void) {
  const controller = new AbortController();
  const made = fileRun(`stopped-${name}`);
  const stage = STAGES[name] as (input: unknown, context: StageContext) => Promise<never>;
  const stopping = async (input: unknown, context: StageContext) => {
    const result = await stage(input, context);
    if (context.step === 3 && !context.isValidation) {
      controller.abort();
      stop(controller.signal, context);
    }
    return result;
  };
  const said: string[] = [];
  const run = { ...made.run, warn: (text: string) => void said.push(text), signal: controller.signal };
  const outcome = await train({ ...run, stages: { ...STAGES, [name]: stopping } });
  const steps = (await readdir(made.folder)).filter((file) => file.startsWith("global_step_")).sort();
  const linesThen = await made.lines();
  const resumed = fileRun(`stopped-${name}`);
  await train(resumed.run);
  const whole = fileRun("whole");
  await train(whole.run);
  expect(resumed.backend.text()).toBe(whole.backend.text());
  expect(await resumed.lines()).toBe(await whole.lines());
  const logged = linesThen.split("\n").map((line) => JSON.parse(line.replace(/,}$/, "}")).step as number);
  return { outcome, steps, said, logged };
}

test.each<keyof Stages>(["update", "log"])(
  "a stop that %s throws does not save new weights under the old step",
  async (name) => {
    const { outcome, steps, said, logged } = await stopIn(name, (signal) => signal.throwIfAborted());
    expect(outcome).toMatchObject({ isComplete: false, state: { step: 2, weightVersion: 2 } });
    expect(logged).toEqual([0, 1, 2]);
    expect(steps).toEqual([]);
    expect(said).toEqual([expect.stringMatching(/Step 3 is not saved: .* changed the weights/)]);
  },
);

test.each<keyof Stages>(["update", "log"])("a step that has trained finishes: %s sees no stop", async (name) => {
  const { outcome, steps, said, logged } = await stopIn(name, (_, context) => context.signal.throwIfAborted());
  expect(outcome).toMatchObject({ isComplete: false, state: { step: 3, weightVersion: 3 } });
  expect(logged).toEqual([0, 1, 2, 3]);
  expect(steps).toEqual(["global_step_3"]);
  expect(said).toEqual([]);
});

test("a stop before the update leaves no trace of the step", async () => {
  const { outcome, steps, said, logged } = await stopIn("advantages", (_, context) => context.signal.throwIfAborted());
  expect(outcome).toMatchObject({ isComplete: false, state: { step: 2, weightVersion: 2 } });
  expect(logged).toEqual([0, 1, 2]);
  expect(steps).toEqual(["global_step_2"]);
  expect(said).toEqual([]);
});

const SHAPES: readonly Shape[] = [
  { save_freq: 1, num_minibatches: 1 },
  { save_freq: 2, num_minibatches: 2 },
  { save_freq: 0, num_minibatches: 1, isNamed: true },
  { save_freq: 3, num_minibatches: 3, isNamed: true },
  { save_freq: 2, num_minibatches: 1, isAsync: true },
];

test.each(SHAPES)("a run that is interrupted anywhere and resumes equals the whole run: %j", async (shape) => {
  const whole = await attempt(join(dir, "whole"), shape);
  expect(whole.outcome?.isComplete).toBe(true);
  const incident = fc.record({
    at: fc.integer({ min: 1, max: whole.points }),
    kind: fc.constantFrom(...KINDS),
  });
  let number = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(incident, { minLength: 1, maxLength: 4 }), async (incidents) => {
      const folder = join(dir, `parts-${number++}`);
      for (const each of incidents) await attempt(folder, shape, each);
      const last = await attempt(folder, shape);
      expect(last.outcome).toMatchObject({ isComplete: true, state: { step: 5 } });
      expect(last.weights).toBe(whole.weights);
      expect(last.lines).toBe(whole.lines);
      expect(await readdir(folder)).toEqual(expect.arrayContaining(["global_step_5"]));
    }),
    { numRuns: 15, seed: 5 },
  );
});
