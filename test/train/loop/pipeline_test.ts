import fc from "fast-check";
import { expect, test, vi } from "vitest";
import type { OptimParams } from "../../../src/engine/contract/backend.ts";
import type { RejectionFunction } from "../../../src/train/loop/contract.ts";
import { isPublishedOrder, pipelineStep, readPipeline } from "../../../src/train/loop/pipeline/pipeline.ts";
import { registerStage, registerWrapper } from "../../../src/train/loop/pipeline/registered.ts";
import { STAGE_ORDER } from "../../../src/train/loop/settings.ts";
import { STAGES } from "../../../src/train/loop/stages.ts";
import { train } from "../../../src/train/loop/train.ts";
import { LETTER_SETTINGS, letterRun } from "../../fixtures/loop.ts";

const seen: string[] = [];
registerStage({
  name: "first_half",
  needs: ["groups"],
  gives: ["groups"],
  run: ({ groups }) => ({ groups: groups.slice(0, 2), metrics: { "batch/mine": groups.length } }),
});
registerStage({
  name: "double",
  needs: ["advantages"],
  gives: ["advantages"],
  run: ({ advantages: { level, values } }) => ({ advantages: { level, values: values.map((a) => 2 * a) } }),
});
registerStage({ name: "look", needs: [], uses: ["groups"], gives: [], run: () => void seen.push("look") });
registerStage({ name: "liar", needs: [], gives: [], run: () => ({ groups: [] }) as never });
registerWrapper("noted", (stage) => ({
  ...stage,
  run: async (values, context) => {
    seen.push(`before ${stage.name}`);
    return stage.run(values, context);
  },
}));

registerStage({ name: "keep", needs: ["advantages"], gives: ["advantages"], run: () => undefined });
registerStage({ name: "keep_used", needs: [], uses: ["rows"], gives: ["rows"], run: () => undefined });
registerStage({ name: "no_groups", needs: ["groups"], gives: ["groups"], run: () => ({ groups: [] }) });
registerStage({ name: "no_logprobs", needs: ["rows"], gives: ["logprobs"], run: () => undefined });
registerStage({ name: "other_groups", needs: ["logprobs"], gives: ["groups"], run: () => undefined });
registerStage({
  name: "train_more",
  needs: ["advantages"],
  gives: [],
  run: async (_, { backend }) => void (await backend.optimStep({ learning_rate: 0 } as OptimParams)),
});

const PARTS = ["name_trajectories", "filter_masked", "filter_mismatched", "group", "check_rewards"];
const SHORT = {
  ...LETTER_SETTINGS,
  trainer: { total_batches: 3, val_before_train: false, test_freq: 0 },
  training: { ...LETTER_SETTINGS.training, max_untrained_steps: 0 },
};

async function runWith(stages: readonly string[], options: Parameters<typeof letterRun>[0] = {}) {
  const { run, backend, log } = letterRun({
    ...options,
    settings: { ...SHORT, pipeline: { stages }, ...options.settings },
  });
  await train(run);
  return { backend, records: log.of("train"), weights: backend.text() };
}

const withoutTimes = (metrics: Readonly<Record<string, number>>) =>
  Object.fromEntries(Object.entries(metrics).filter(([name]) => !/^(time|perf)\//.test(name)));

test("the published order by name equals trainStep", async () => {
  expect(Object.keys(STAGES)).toEqual(STAGE_ORDER);
  const plain = letterRun({ settings: SHORT });
  await train(plain.run);
  const named = letterRun({ settings: SHORT, step: pipelineStep(STAGE_ORDER, STAGES) });
  await train(named.run);
  expect(named.backend.text()).toBe(plain.backend.text());
  const [a, b] = [plain, named].map(({ log }) => log.of("train").map(({ metrics }) => withoutTimes(metrics)));
  expect(b).toEqual(a);
  const names = [plain, named].map(({ log }) => Object.keys(log.of("train")[0]!.metrics).sort());
  expect(names[1]).toEqual(names[0]);
});

test("the parts of transform equal transform, and can be reordered", async () => {
  const whole = await runWith(STAGE_ORDER);
  const split = STAGE_ORDER.flatMap((name) => (name === "transform" ? PARTS : [name]));
  const parts = await runWith(split);
  expect(parts.weights).toBe(whole.weights);
  expect(withoutTimes(parts.records[0]!.metrics)).toEqual(withoutTimes(whole.records[0]!.metrics));
  const swapped = [...split];
  swapped.splice(1, 3, "filter_mismatched", "filter_masked", "name_trajectories");
  expect((await runWith(swapped)).weights).toBe(whole.weights);
});

test("a stage can be added, skipped, moved and wrapped by name", async () => {
  const added = STAGE_ORDER.toSpliced(2, 0, "first_half");
  const { backend, records } = await runWith(added);
  expect(backend.batches[0]!.offsets).toHaveLength(2 * 8 + 1);
  expect(records[0]!.metrics).toMatchObject({ "batch/mine": 4, "batch/groups_before_filter": 2 });
  expect(records[0]!.metrics["time/first_half"]).toBeGreaterThanOrEqual(0);

  const whole = await runWith(STAGE_ORDER);
  const moved = ["generate", "transform", "reject", "batch", "advantages", "process", "update", "log"];
  expect((await runWith(moved)).weights).toBe(whole.weights);
  const less = STAGE_ORDER.filter((name) => name !== "reject" && name !== "process");
  expect((await runWith(less)).weights).toBe(whole.weights);
  expect((await runWith(STAGE_ORDER.toSpliced(6, 0, "double"))).weights).not.toBe(whole.weights);

  seen.length = 0;
  const wrapped = STAGE_ORDER.with(6, "noted(noted(update))").toSpliced(6, 0, "look");
  expect((await runWith(wrapped)).weights).toBe(whole.weights);
  expect(seen.slice(0, 3)).toEqual(["look", "before update", "before update"]);
});

test("the published order is that of all stages, each in its place", () => {
  expect(isPublishedOrder(STAGE_ORDER)).toBe(true);
  for (const other of [
    [],
    STAGE_ORDER.slice(1),
    [...STAGE_ORDER, "log"],
    STAGE_ORDER.with(0, "log"),
    STAGE_ORDER.with(-1, "look"),
  ])
    expect(isPublishedOrder(other)).toBe(false);
});

test("names may have spaces around them", () => {
  const names = STAGE_ORDER.map((name) => (name === "update" ? " noted( noted( update ) ) " : ` ${name} `));
  expect(readPipeline(names, STAGES).map(({ name }) => name)).toEqual(STAGE_ORDER);
});

test("two updates of a batch compare with the policy before the first", async () => {
  const { backend } = await runWith(STAGE_ORDER.toSpliced(6, 0, "update"));
  expect(backend.weightVersion).toBe(6);
  expect(backend.batches[0]!.oldLogprobs).toBeDefined();
  expect(backend.batches[1]!.oldLogprobs).toEqual(backend.batches[0]!.oldLogprobs);
});

test.each<[bypass_mode: boolean | null, passes: number]>([
  [null, 3],
  [false, 3],
  [true, 0],
])("two updates with bypass_mode %j take %i scoring passes in three steps", async (bypass_mode, passes) => {
  const algorithm = { rollout_correction: { bypass_mode } };
  const stages = STAGE_ORDER.toSpliced(6, 0, "update");
  const { run, backend } = letterRun({ settings: { ...SHORT, algorithm, pipeline: { stages } } });
  const scored = vi.spyOn(backend, "logprobs");
  await train(run);
  expect(scored).toHaveBeenCalledTimes(passes);
});

test("a step whose groups are all rejected skips the stages that need rows", async () => {
  const { backend, records } = await runWith(STAGE_ORDER.toSpliced(6, 0, "look"), {
    rejection: () => [],
    settings: { training: { ...SHORT.training, max_untrained_steps: 0 } },
  });
  expect(backend.weightVersion).toBe(0);
  expect(records).toHaveLength(3);
  expect(records[0]!.metrics).not.toHaveProperty(["time/update"]);
});

const ROUND = ["generate", "transform", "reject", "batch", "process", "advantages", "update"];

/** Keeps all groups of a round or none, as listed. */
function inTurn(rounds: readonly boolean[]): RejectionFunction {
  let calls = 0;
  return ({ groups }) => (rounds[calls++ % rounds.length] ? groups : []);
}

test.each([
  [[true, false], 1],
  [[false, true], 1],
  [[false, false], 0],
  [[true, true], 2],
])("two rounds that keep their groups as %j make %i updates per step", async (rounds, updates) => {
  const { backend, records } = await runWith([...ROUND, ...ROUND, "log"], { rejection: inTurn(rounds) });
  expect(backend.weightVersion).toBe(3 * updates);
  expect(records[0]!.note === undefined).toBe(updates > 0);
});

test("a second round uses its own log-probs, not those of the first", async () => {
  const second = ROUND.filter((name) => name !== "process");
  const { backend } = await runWith([...ROUND, ...second, "log"]);
  expect(backend.batches.map(({ oldLogprobs }) => oldLogprobs !== undefined)).toEqual(
    [1, 2, 3].flatMap(() => [true, false]),
  );
});

const TRAINED = ["generate", "transform", "batch", "advantages", "update"];
const AGAIN = ["batch", "advantages", "update", "log"];

test.each<[string, readonly string[], number]>([
  [
    "a stage that changes advantages and returns none leaves them",
    [...TRAINED.slice(0, 4), "keep", "update", "log"],
    1,
  ],
  [
    "a stage that changes rows if there, and returns none, leaves them",
    [...TRAINED.slice(0, 3), "keep_used", "advantages", "update", "log"],
    1,
  ],
  [
    "a stage that changes groups leaves the rows made of them",
    [...TRAINED.slice(0, 4), "first_half", "update", "log"],
    1,
  ],
  ["a batch of no groups ends the rows before", [...TRAINED, "no_groups", ...AGAIN], 1],
  ["a stage that is passed over ends what it makes", [...TRAINED, "no_logprobs", "other_groups", ...AGAIN], 1],
  ["the same groups can be batched again", [...TRAINED, ...AGAIN], 2],
])("%s", async (_, names, updates) => {
  const { backend } = await runWith(names);
  expect(backend.batches.map(({ offsets }) => offsets.length - 1)).toEqual(new Array(3 * updates).fill(32));
});

test.each([
  ["before the update", "look_at_signal", "update", { step: 0, weightVersion: 0 }],
  ["after it", "update", "look_at_signal", { step: 1, weightVersion: 1 }],
  ["after a stage that trains", "train_more", "look_at_signal", { step: 1, weightVersion: 1 }],
])("a stop %s", async (_, first, second, state) => {
  const controller = new AbortController();
  registerStage({
    name: "look_at_signal",
    needs: [],
    gives: [],
    run: (_, { signal }) => {
      controller.abort();
      signal.throwIfAborted();
    },
  });
  const stages = ["generate", "transform", "batch", "advantages", first, second, "log"];
  const { run } = letterRun({ settings: { ...SHORT, pipeline: { stages } } });
  const outcome = await train({ ...run, signal: controller.signal });
  expect(outcome).toMatchObject({ isComplete: false, state });
});

test("any rounds train the groups that they keep, once per update", async () => {
  const round = fc.record({
    isKept: fc.boolean(),
    hasProcess: fc.boolean(),
    regroups: fc.boolean(),
    updates: fc.integer({ min: 1, max: 2 }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(round, { minLength: 1, maxLength: 4 }), async (rounds) => {
      const names = rounds.flatMap(({ hasProcess, regroups, updates }) => [
        ...["generate", "transform", "reject", ...(regroups ? ["first_half"] : []), "batch"],
        ...[...(hasProcess ? ["process"] : []), "advantages", ...new Array(updates).fill("update")],
      ]);
      const { backend } = await runWith([...names, "log"], {
        rejection: inTurn(rounds.map(({ isKept }) => isKept)),
      });
      const kept = rounds.filter(({ isKept }) => isKept);
      const expected = kept.flatMap(({ hasProcess, regroups, updates }) =>
        new Array(updates).fill({ rows: regroups ? 16 : 32, hasOld: hasProcess && updatesOf(rounds) > 1 }),
      );
      const got = backend.batches.map(({ offsets, oldLogprobs }) => ({
        rows: offsets.length - 1,
        hasOld: oldLogprobs !== undefined,
      }));
      expect(got).toEqual([1, 2, 3].flatMap(() => expected));
    }),
    { numRuns: 15, seed: 3 },
  );
});

const updatesOf = (rounds: readonly { readonly updates: number }[]) =>
  rounds.reduce((sum, { updates }) => sum + updates, 0);

test.each([
  [[...ROUND, "generate", "update", "log"], /update needs rows, which generate drops: put batch between them/],
  [
    [...ROUND, "generate", "transform", "batch", "update", "log"],
    /update needs advantages, which batch drops: put advantages between them/,
  ],
  [
    ["generate", "transform", "batch", "update", "advantages", "log"],
    /update needs advantages, which advantages gives only later: put advantages before it/,
  ],
  [
    ["generate", "transform", "batch", "update", "log"],
    /update needs advantages, which no stage before it gives: put advantages/,
  ],
  [["generate", "batch"], /batch needs groups, which no stage before it gives: put transform or check_rewards/],
  [
    ["generate", "transform", "batch", "advantages", "update", "process", "log"],
    /nothing after process reads what it gives \(logprobs\)/,
  ],
  [["generate", "nonesuch"], /the stage "nonesuch": nothing registers that name.*Known: generate.*first_half/],
  [["timed(generate)"], /the wrapper "timed": nothing registers that name.*Known: noted/],
  [["noted(generate) twice"], /the stage "noted\(generate\) twice": nothing registers that name/],
  [["twice noted(generate)"], /the stage "twice noted\(generate\)": nothing registers that name/],
])("%j cannot work", (names, message) => {
  expect(() => readPipeline(names, STAGES)).toThrow(message);
  expect(() => letterRun({ settings: { pipeline: { stages: names } } })).not.toThrow();
});

test("the error lists what each stage needs and gives, before anything runs", async () => {
  const { run, backend } = letterRun({ settings: { pipeline: { stages: ["generate", "update", "log"] } } });
  await expect(train(run)).rejects.toThrow(
    / {2}generate: tasks -> episodes, eligible\n {2}update: rows, advantages, logprobs\? -> -\n/,
  );
  expect(backend.weightVersion).toBe(0);
});

test("an undeclared output is refused, and so is the name of a built-in stage", async () => {
  await expect(runWith(["generate", "liar", "log"])).rejects.toThrow(/Cannot take groups from the stage liar/);
  expect(() => registerStage({ name: "reject", needs: [], gives: [], run: () => undefined })).toThrow(
    /Cannot register the stage reject: the name is taken/,
  );
});
