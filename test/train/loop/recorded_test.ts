/** Training on recorded traces: the same updates as the run that recorded them, no session twice, no foreign tokens. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { openDevice } from "../../../src/engine/compute/mod.ts";
import type { Backend } from "../../../src/engine/contract/backend.ts";
import type { TraceStore } from "../../../src/engine/contract/trace.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { FolderCheckpoints } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import type { LoopState } from "../../../src/train/loop/contract.ts";
import { checkRecorded } from "../../../src/train/loop/recorded/check.ts";
import { openFixedSet } from "../../../src/train/loop/recorded/fixed_set.ts";
import { openLatest } from "../../../src/train/loop/recorded/latest.ts";
import type { RecordedOptions } from "../../../src/train/loop/recorded/load.ts";
import { train } from "../../../src/train/loop/train.ts";
import { openTraceStore } from "../../../src/train/trace/mod.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { LETTER_SETTINGS, LETTERS, letterRun } from "../../fixtures/loop.ts";
import { recordingStages } from "../../fixtures/recorded.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";
import { letterTokenizer } from "../../fixtures/table_backend.ts";
import { makeTrace } from "../trace/make_trace.ts";

const dir = temporaryFolder("recorded");
const KEYS = { group: null, name: null };
const NO_VALIDATION = { test_freq: 0, save_freq: 0 };

/** A store with the first `steps` steps of a run of letters. */
async function recorded(steps: number, more: Parameters<typeof letterRun>[0] = {}) {
  const store = await openTraceStore("memory");
  const settings = { ...LETTER_SETTINGS, trainer: { total_batches: steps, ...NO_VALIDATION } };
  const online = letterRun({ settings, stages: recordingStages(store), ...more });
  await train(online.run);
  const options: RecordedOptions = { store, keys: KEYS };
  return { store, options, settings, online };
}

describe("a fixed set", () => {
  test("gives the updates of the run that recorded it", async () => {
    const { options, settings, online } = await recorded(3);
    const { tasks, source, facts } = await openFixedSet(options);
    expect(tasks).toHaveLength(12);
    expect(facts).toMatchObject({ skipped: {}, calls: 96, weightVersions: { least: 0, greatest: 2 } });
    const offline = letterRun({ settings, tasks: { train: tasks }, source });
    await train(offline.run);
    expect(offline.backend.batches).toHaveLength(3);
    expect(offline.backend.batches).toEqual(online.backend.batches);
  });

  test("gives the same weights, bit for bit, on the reference device", async () => {
    const device = await openDevice({ device: "cpu" });
    const { options, settings, online } = await recorded(2, { backend: smallBackend(), estimate: undefined as never });
    const { tasks, source } = await openFixedSet(options);
    const offline = letterRun({ settings, tasks: { train: tasks }, source, backend: smallBackend() });
    await train({ ...offline.run, estimate: undefined as never });
    expect(await weightsOf(offline.run.backend, "offline")).toEqual(await weightsOf(online.run.backend, "online"));
    expect(await weightsOf(smallBackend(), "untrained")).not.toEqual(await weightsOf(online.run.backend, "online"));
    device.destroy();

    function smallBackend(): Backend {
      const letters = letterTokenizer(LETTERS);
      const tokenizer = { ...letters, formatChat: String, tokenId: () => undefined, files: () => ({}) };
      const config = { ...SMALL_MODEL, vocabSize: tokenizer.vocabSize, eosTokenIds: [0] };
      return new LocalBackend({ model: LanguageModel.create(device, config, { seed: 3 }), tokenizer, name: "small" });
    }
  });

  test("a second epoch takes the same groups again, in their order", async () => {
    const { options, settings } = await recorded(2);
    const { tasks, source } = await openFixedSet(options);
    const twice = { ...settings, trainer: { total_epochs: 2, ...NO_VALIDATION } };
    const { run, backend, log } = letterRun({ settings: twice, tasks: { train: tasks }, source });
    await train(run);
    expect(backend.batches.map((batch) => batch.tokens)).toHaveLength(4);
    expect(backend.batches[2]!.tokens).toEqual(backend.batches[0]!.tokens);
    const lag = (name: string) => log.of("train").map(({ metrics }) => metrics[`traces/weight_version_lag/${name}`]);
    expect(lag("mean")).toEqual([0, 0, 2, 2]);
  });

  test.each(["drop", "mask"] as const)("old replies are cut: %s", async (max_off_policy_strategy) => {
    const { options, settings } = await recorded(3);
    const { tasks, source } = await openFixedSet(options);
    const training = { ...settings.training, max_off_policy_threshold: 1, max_off_policy_strategy };
    // Epochs of three steps: from the second on, every reply is three steps old.
    const twice = { ...settings, training, trainer: { total_batches: 5, ...NO_VALIDATION } };
    const { run, backend, log } = letterRun({ settings: twice, tasks: { train: tasks }, source });
    await train(run);
    const seen = log
      .of("train")
      .map(({ metrics }) => [metrics["batch/dropped_stale_trajectories"], metrics["batch/masked_stale_tokens"]]);
    const trained = backend.batches.map(({ mask }) => mask.reduce((sum, bit) => sum + bit, 0));
    const isDrop = max_off_policy_strategy === "drop";
    const none = isDrop ? [0, 0] : [undefined, 0];
    const all = (step: number) => (isDrop ? [32, undefined] : [undefined, trained[step]]);
    expect(seen).toEqual([none, none, none, all(0), all(1)]);
    expect(backend.batches).toHaveLength(3);
  });

  test("old replies are corrected by importance weights", async () => {
    const { options, settings } = await recorded(2);
    const { tasks, source } = await openFixedSet(options);
    const algorithm = { rollout_correction: { tis_mode: "token", tis_cap: 1.5 } } as const;
    const twice = { ...settings, algorithm, trainer: { total_batches: 4, ...NO_VALIDATION } };
    const { run, backend } = letterRun({ settings: twice, tasks: { train: tasks }, source });
    await train(run);
    const weights = backend.batches.map(({ rolloutIsWeights, mask }) =>
      [...rolloutIsWeights!].filter((_, t) => mask[t] === 1),
    );
    for (const weight of weights[0]!) expect(weight).toBeCloseTo(1, 5);
    expect(weights[2]!.some((weight) => Math.abs(weight - 1) > 0.1)).toBe(true);
    for (const weight of weights.flat()) expect(weight).toBeLessThanOrEqual(1.5);
  });

  test("a resumed run trains on the sessions of its first part, not on later ones, and none twice", async () => {
    const { store, options, settings } = await recorded(4);
    const checkpoints = () => new FolderCheckpoints<LoopState>(join(dir, "resume"), { resumeMode: "auto" });
    const whole = await openFixedSet(options);
    const straight = letterRun({ settings, tasks: { train: whole.tasks }, source: whole.source });
    await train(straight.run);

    const half = { ...settings, trainer: { ...settings.trainer, total_batches: 2, save_freq: 1 } };
    const first = letterRun({ settings: half, tasks: { train: whole.tasks }, source: whole.source });
    await train({ ...first.run, checkpoints: checkpoints() });
    for (const trace of await store.traces({}))
      await store.putTrace({ ...trace, trace_id: `late-${trace.trace_id}`, session_id: `late-${trace.session_id}` });
    await store.putSession({
      session_id: "late-1-0-0",
      metadata: { step: 0, task_id: "late" },
      created_at: 0,
      outcome: { reward: 1, ended_at: 1 },
    });

    const state = (await checkpoints().find())?.state;
    const again = await openFixedSet({ ...options, state: state?.generation });
    expect(again.tasks).toEqual(whole.tasks);
    const second = letterRun({ settings, tasks: { train: again.tasks }, source: again.source });
    await train({ ...second.run, checkpoints: checkpoints() });
    expect([...first.backend.batches, ...second.backend.batches]).toEqual(straight.backend.batches);

    await store.deleteSessions(["1-0-0"]);
    await expect(openFixedSet({ ...options, state: state?.generation })).rejects.toThrow(
      /^Cannot continue the run: 1 of the 128 sessions that it trains on are no longer in the trace store/,
    );
  });

  test("leaves out what cannot be trained on, and says why", async () => {
    const { store, options } = await recorded(1, { tasks: { train: letterRun().run.tasks.train } });
    const broken = [
      ["no_logprobs", { logprobs: null }],
      ["no_logprobs", { logprobs: [-1] }],
      ["no_token_ids", { prompt_token_ids: [] }],
    ] as const;
    for (const [i, [, fields]] of broken.entries()) {
      await store.putTrace(makeTrace({ trace_id: `b${i}`, session_id: `b${i}`, ...fields }));
      await store.putSession({
        ...{ session_id: `b${i}`, metadata: {}, created_at: 1 },
        outcome: { reward: 1, ended_at: 1 },
      });
    }
    await store.putTrace(makeTrace({ trace_id: "u", session_id: "unrewarded" }));
    await store.putSession({ session_id: "uncalled", metadata: {}, created_at: 1 });
    await store.putTrace(makeTrace({ trace_id: "v", session_id: "val", metadata: {} }));
    await store.putSession({ session_id: "val", metadata: { is_validation: true }, created_at: 1 });
    const { tasks, facts } = await openFixedSet(options);
    expect(facts?.skipped).toEqual({ no_logprobs: 2, no_token_ids: 1, no_reward: 1, no_calls: 1, validation: 1 });
    expect(tasks).toHaveLength(4);
    expect((await openFixedSet({ ...options, isJudged: true })).tasks).toHaveLength(5);
  });

  test.each<[what: string, why: string, after: Partial<TraceStore>]>([
    ["was removed", "it is no longer in the trace store", { getSession: async () => undefined }],
    ["lost its calls", "it has changed (", { traces: async () => [] }],
  ])("a session that %s since it was listed ends the run by its name", async (_, why, after) => {
    const { options, settings } = await recorded(1);
    const { tasks, source } = await openFixedSet(options);
    Object.assign(options.store, after);
    const offline = letterRun({ settings, tasks: { train: tasks }, source });
    await expect(train(offline.run)).rejects.toThrow(
      expect.objectContaining({
        message: expect.stringMatching(/^Cannot train on the session \S+: /),
        kind: "data",
      }),
    );
    await expect(train(letterRun({ settings, tasks: { train: tasks }, source }).run)).rejects.toThrow(why);
  });

  test("asynchronous training of it is refused", async () => {
    const { options, settings } = await recorded(1);
    const { tasks, source } = await openFixedSet(options);
    const { run } = letterRun({ settings: { ...settings, async_training: { enable: true } }, tasks: { train: tasks } });
    await expect(train({ ...run, source })).rejects.toThrow(/asynchronously: nothing is generated/);
  });

  test("a store without anything to train on is refused", async () => {
    const store = await openTraceStore("memory");
    await expect(openFixedSet({ store, keys: KEYS })).rejects.toThrow(
      /no session can be trained on \(the store is empty\)/,
    );
    await store.putTrace(makeTrace());
    await expect(openFixedSet({ store, keys: KEYS })).rejects.toThrow(/\(1 without a reward\)\. Give rewards with/);
  });
});

describe("the newest groups", () => {
  /** Sessions a-0, a-1, ... of one task with distinct rewards. */
  async function attempt(store: Awaited<ReturnType<typeof openTraceStore>>, name: string, at: number, count = 2) {
    for (let i = 0; i < count; i++) {
      const session_id = `${name}-${at}-${i}`;
      const metadata = { task_id: name };
      const outcome = { reward: i, ended_at: at + i / 10 };
      await store.putTrace(
        makeTrace({
          ...{ trace_id: session_id, session_id, metadata, model: "table" },
          ...{ prompt_token_ids: [1], completion_token_ids: [2, 3] },
          response_message: { role: "assistant", content: "bc" },
        }),
      );
      await store.putSession({ session_id, metadata, created_at: at + i / 10, outcome });
    }
  }

  const settings = {
    ...LETTER_SETTINGS,
    data: { train_batch_size: 2 },
    rollout: { ...LETTER_SETTINGS.rollout, n: 2 },
    trainer: { total_batches: 2, ...NO_VALIDATION },
  };
  const latest = { batchSize: 2, groupSize: 2, pollSeconds: 0.01 };

  test("come first, whole ones alone, and none twice", async () => {
    const store = await openTraceStore("memory");
    for (const [name, at] of [
      ["old", 1],
      ["a", 2],
      ["b", 3],
      ["b", 4],
    ] as const)
      await attempt(store, name, at);
    await attempt(store, "half", 9, 1);
    const seen: string[][] = [];
    const { tasks, source } = openLatest({ store, keys: KEYS, ...latest });
    const { run } = letterRun({ settings, tasks: { train: tasks }, source });
    const state = await train({
      ...run,
      loggers: [
        { log: ({ episodes = [] }) => void seen.push(episodes.map(({ metadata }) => String(metadata.session_id))) },
      ],
    });
    expect(seen).toEqual([
      ["b-4-0", "b-4-1", "b-3-0", "b-3-1"],
      ["a-2-0", "a-2-1", "old-1-0", "old-1-1"],
    ]);
    expect(state.state.generation?.trained).toHaveLength(8);
  });

  test("do not include those that the run trained on before it was stopped", async () => {
    const store = await openTraceStore("memory");
    for (const [at, name] of ["a", "b", "c", "d"].entries()) await attempt(store, name, at + 1);
    const trainTo = async (total_batches: number) => {
      const { tasks, source } = openLatest({ store, keys: KEYS, ...latest });
      const trainer = { ...settings.trainer, total_batches, save_freq: 1 };
      const checkpoints = new FolderCheckpoints<LoopState>(join(dir, "latest"));
      const { run } = letterRun({ settings: { ...settings, trainer }, tasks: { train: tasks }, source, checkpoints });
      return (await train(run)).state.generation?.trained;
    };
    const newest = ["d-4-0", "d-4-1", "c-3-0", "c-3-1"];
    expect(await trainTo(1)).toEqual(newest);
    expect(await trainTo(2)).toEqual([...newest, "b-2-0", "b-2-1", "a-1-0", "a-1-1"]);
  });

  test("are ordered by their last session's end", async () => {
    const store = await openTraceStore("memory");
    // The group that began first ends last.
    for (const [name, created_at, ends] of [
      ["long", 0, [1, 9]],
      ["short", 3, [4, 5]],
    ] as const) {
      await attempt(store, name, 1);
      for (const [i, ended_at] of ends.entries()) {
        const outcome = { reward: i, ended_at };
        await store.putSession({ session_id: `${name}-1-${i}`, metadata: { task_id: name }, created_at, outcome });
      }
    }
    const once = { ...settings, data: { train_batch_size: 1 }, trainer: { ...settings.trainer, total_batches: 1 } };
    const { tasks, source } = openLatest({ store, keys: KEYS, ...latest, batchSize: 1 });
    const { run } = letterRun({ settings: once, tasks: { train: tasks }, source });
    const { state } = await train(run);
    expect(state.generation?.trained).toEqual(["long-1-0", "long-1-1"]);
  });

  test("do not include sessions that cannot be trained on, which are read again once they change", async () => {
    const store = await openTraceStore("memory");
    for (const name of ["a", "b"]) await attempt(store, name, 1);
    const reward = { session_id: "b-1-0", metadata: { task_id: "b" }, created_at: 1 };
    await store.putSession({ ...reward, outcome: { reward: null, ended_at: 1 } });
    const read: (string | undefined)[] = [];
    const traces = store.traces.bind(store);
    store.traces = (query) => {
      read.push(query.session_id);
      return traces(query);
    };
    const { tasks, source } = openLatest({ store, keys: KEYS, ...latest });
    const once = { ...settings, trainer: { ...settings.trainer, total_batches: 1 } };
    const { run, backend } = letterRun({ settings: once, tasks: { train: tasks }, source });
    const training = train(run);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(read.toSorted()).toEqual(["a-1-0", "a-1-1", "b-1-0", "b-1-1"]);
    await store.putSession({ ...reward, outcome: { reward: 1, ended_at: 1 } });
    await training;
    expect(backend.batches).toHaveLength(1);
  });

  test.each<["drop" | "mask", string[]]>([
    ["drop", ["new-1-0", "new-1-1"]],
    ["mask", ["mixed-2-0", "mixed-2-1"]],
  ])("are not those that are too old to train on: %s", async (max_off_policy_strategy, expected) => {
    const store = await openTraceStore("memory");
    for (const [name, at, versions] of [
      ["new", 1, [-1]],
      ["mixed", 2, [-1, -5]],
      ["old", 3, [-5]],
    ] as const) {
      await attempt(store, name, at);
      for (const trace of await store.traces({}))
        if (trace.session_id.startsWith(name))
          for (const [i, weight_version] of versions.entries())
            await store.putTrace({ ...trace, trace_id: `${trace.trace_id}${i || ""}`, weight_version });
    }
    const training = { ...settings.training, max_off_policy_threshold: 2, max_off_policy_strategy };
    const { tasks, source } = openLatest({ store, keys: KEYS, ...latest, batchSize: 1 });
    const data = { train_batch_size: 1 };
    const { run } = letterRun({
      settings: { ...settings, data, training, trainer: { ...settings.trainer, total_batches: 1 } },
      ...{ tasks: { train: tasks }, source },
    });
    const { state } = await train(run);
    expect(state.generation?.trained).toEqual(expected);
  });

  test("are waited for, until the run is stopped", async () => {
    const store = await openTraceStore("memory");
    await attempt(store, "a", 1);
    const { tasks, source } = openLatest({ store, keys: KEYS, ...latest });
    const warnings: string[] = [];
    const stop = new AbortController();
    const { run, backend } = letterRun({ settings, tasks: { train: tasks }, source, signal: stop.signal });
    const training = train({ ...run, warn: (message) => void warnings.push(message) });
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(warnings[0]).toBe("Waiting for traces: a step needs 2 groups of 2 sessions with a reward (1 so far).");
    await attempt(store, "b", 2);
    while (backend.batches.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    stop.abort();
    const { state, isComplete } = await training;
    expect([state.step, isComplete]).toEqual([1, false]);
    expect(state.generation?.trained).toEqual(["b-2-0", "b-2-1", "a-1-0", "a-1-1"]);
  });
});

describe("tokens of another model", () => {
  const facts = async (fields: Parameters<typeof makeTrace>[0]) => {
    const store = await openTraceStore("memory");
    await store.putTrace(makeTrace({ session_id: "s", model: "table", prompt_token_ids: [1], ...fields }));
    await store.putSession({ session_id: "s", metadata: {}, created_at: 0, outcome: { reward: 1, ended_at: 1 } });
    return (await openFixedSet({ store, keys: KEYS })).facts!;
  };
  const fitting = { completion_token_ids: [2, 0], response_message: { role: "assistant", content: "b" } };

  test.each([
    [
      "an id",
      { completion_token_ids: [2, 5] },
      /the token id 5 of the session s is not in the model's vocabulary of 5/,
    ],
    ["a length", { ...fitting, prompt_token_ids: Array(63).fill(1) }, /session s has 65 tokens, .* context is 64/],
    ["a text", { ...fitting, completion_token_ids: [1, 0] }, /which decodes "a" where "b" was recorded/],
  ])("%s", async (_, fields, message) => {
    const found = await facts(fields);
    expect(() => checkRecorded(found, letterRun().backend)).toThrow(message);
  });

  test("counts for nothing in a call that is not trained on", async () => {
    const store = await openTraceStore("memory");
    const own = { session_id: "s", model: "table", prompt_token_ids: [1], ...fitting };
    await store.putTrace(makeTrace({ ...own, trace_id: "used" }));
    await store.putTrace(makeTrace({ ...own, trace_id: "lost", finish_reason: "abort", prompt_token_ids: [99] }));
    await store.putSession({ session_id: "s", metadata: {}, created_at: 0, outcome: { reward: 1, ended_at: 1 } });
    const { facts } = await openFixedSet({ store, keys: KEYS });
    expect(facts).toMatchObject({ calls: 1, largestId: { value: 2 } });
  });

  test("that a mask limited are warned of", async () => {
    const { backend } = letterRun();
    const masked = await facts({ ...fitting, constrained: { masked_tokens: 1 } });
    expect(checkRecorded(masked, backend)).toEqual([expect.stringMatching(/^In 1 of 1 calls a mask limited tokens/)]);
    const relaxed = await facts({ ...fitting, constrained: { masked_tokens: 0, is_relaxed: true } });
    expect(checkRecorded(relaxed, backend)).toEqual([]);
  });

  test("of other weights is warned of", async () => {
    const { backend } = letterRun();
    expect(checkRecorded(await facts(fitting), backend)).toEqual([]);
    const warnings = checkRecorded(await facts({ ...fitting, weight_version: 3, model: "other" }), backend);
    expect(warnings).toEqual([
      expect.stringMatching(/^The traces are of other, and this run trains table/),
      expect.stringMatching(/weight versions 3 to 3, and this run's weights are at version 0/),
    ]);
  });

  test.each([
    ["temperature", { temperature: 0.5, top_p: 1, top_k: 0 }, "temperature=0.5 top_p=1 top_k=-1"],
    ["top_p", { temperature: 1, top_p: 0.9, top_k: 0 }, "temperature=1 top_p=0.9 top_k=-1"],
    ["top_k", { temperature: 1, top_p: 1, top_k: 4 }, "temperature=1 top_p=1 top_k=4"],
    ["the same", { temperature: 1, top_p: 1, top_k: 0, max_tokens: 5 }, undefined],
    ["none that is recorded", { temperature: 0.5 }, undefined],
  ])("another sampling is warned of: %s", async (_, sampling_params, shown) => {
    const { backend } = letterRun();
    const found = await facts({ ...fitting, sampling_params });
    const own = { temperature: 1, top_p: 1, top_k: -1 };
    expect(checkRecorded(found, backend, { sampling: own })).toEqual(
      shown === undefined
        ? []
        : [
            expect.stringContaining(
              `sampled with ${shown}, and rllm.rollout.train says temperature=1 top_p=1 top_k=-1: their log-probs`,
            ),
          ],
    );
  });
});

async function weightsOf(backend: Backend, name: string): Promise<Buffer> {
  await backend.save(join(dir, name));
  return readFileSync(join(dir, name, "model.safetensors"));
}
