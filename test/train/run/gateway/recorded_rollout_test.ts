/** Agents in this process, recorded: the store gives back the episode that the run trains on. */
import { expect, onTestFinished, test } from "vitest";
import type { Episode } from "../../../../src/train/data/types.ts";
import { recordedEpisode } from "../../../../src/train/loop/recorded/episode.ts";
import { readAttempt } from "../../../../src/train/loop/recorded/scan.ts";
import { type AttemptContext, runAttempt } from "../../../../src/train/loop/rollout/attempt.ts";
import { DrawQueue } from "../../../../src/train/loop/rollout/draw_queue.ts";
import { type LoopSettings, loopSettings, type Partly } from "../../../../src/train/loop/settings.ts";
import { openRecording } from "../../../../src/train/run/gateway/recorded_rollout.ts";
import type { Rollout } from "../../../../src/train/task/rollout.ts";
import { openTraceStore } from "../../../../src/train/trace/mod.ts";
import { CHATML, chatTokenizer } from "../../../fixtures/chat.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { scriptedBackend } from "../../../fixtures/scripted.ts";

const dir = temporaryFolder("recorded-rollout");
const TASK = { id: "t", instruction: "the", metadata: {} };
const KEYS = { name: null, group: null };
const SHAPING = { gamma: 0.5, reward_bonus_coeff: 1, timeout: 1e6 };

/** One attempt, its session, and the episode that the session is read as. */
async function attempt(
  rollout: Rollout,
  {
    settings,
    isGreedy = false,
    ...more
  }: Omit<Partial<AttemptContext>, "settings"> & { settings?: Partly<LoopSettings>; isGreedy?: boolean } = {},
) {
  const file = `${dir}/${crypto.randomUUID()}.db`;
  const recording = await openRecording(
    {
      ...{ agents: [], mode: "subprocess", host: "127.0.0.1", port: 0, adminToken: "", tunnel: undefined },
      ...{ store: file, retention: undefined, keys: KEYS },
    },
    () => {},
  );
  const backend = scriptedBackend(chatTokenizer(CHATML), () => "and<|im_end|>");
  const signal = new AbortController().signal;
  const workflow = { raise_on_error: false, retry_limit: 1, workflow_args: SHAPING };
  const context: AttemptContext = {
    ...{ rollout: recording!.wrap(rollout), step: 1, isValidation: false, signal, backend },
    settings: loopSettings({ workflow, ...settings }),
    ...more,
  };
  const environment = { draws: new DrawQueue(backend, signal), rank: 0, context };
  const place = { task: TASK, task_index: 0, rollout_index: 0 };
  const episode = await runAttempt({ ...place, isGreedy }, environment);
  await recording!.close();
  const store = await openTraceStore(file);
  onTestFinished(() => store.close());
  const [session] = await store.sessions({});
  const traces = await store.traces({});
  const read = readAttempt(session!, { traces, keys: KEYS });
  const again = typeof read === "string" ? read : recordedEpisode(read, { ...place, shaping: SHAPING });
  return { episode, session: session!, traces, again };
}

/** What training takes from an episode. */
function trained({ trajectories, is_correct, termination_reason, metrics }: Episode) {
  const rows = trajectories.map(({ name, reward, signals = {}, steps }) => ({
    ...{ name, reward, signals },
    steps: steps.map(({ prompt_ids, response_ids, logprobs, reward, advantage = null, weight_version }) => {
      return { prompt_ids, response_ids, logprobs, reward, advantage, weight_version };
    }),
  }));
  return { rows, is_correct, termination_reason, metrics };
}

test.each<[string, Rollout, Parameters<typeof attempt>[1]?]>([
  [
    "several agents of one name, in another order than their calls",
    async (_, policy) => {
      const [a, b, judge] = [policy.agent("solver"), policy.agent("solver"), policy.agent("judge")];
      await b.complete("the cat");
      await a.complete("the");
      await judge.chat([{ role: "user", content: "the" }]);
      return { trajectories: [judge.trajectory(0.25), a.trajectory(1), b.trajectory(0)], metrics: { m: 2 } };
    },
  ],
  [
    "rewards of steps, one of them left out",
    async (_, policy) => {
      for (const reward of [1, 2, 3]) {
        await policy.complete("the");
        policy.annotate({ reward, ...(reward === 2 && { advantage: 5 }) } as object);
      }
      const { steps } = policy.trajectory();
      return { trajectories: [{ name: "part", steps: steps.slice(1), signals: { s: 1 } }] };
    },
  ],
  [
    "tokens that the rollout cut, and a step that it made",
    async (_, policy) => {
      const step = await policy.complete("the");
      const cut = { ...step, response_ids: step.response_ids.slice(0, 1), logprobs: step.logprobs.slice(0, 1) };
      const { id: _id, ...made } = step;
      return { trajectories: [{ steps: [cut, { ...made, prompt_ids: [1, 2], reward: 2 }] }] };
    },
  ],
  [
    "an evaluator's reward, signals and metrics",
    async (_, policy) => {
      await policy.complete("the");
      await policy.agent("b").complete("the");
    },
    { evaluate: () => ({ reward: 0.5, is_correct: false, signals: { s: 3 }, metrics: { m: 4 } }) },
  ],
  [
    "an attempt that runs out of time",
    async (_, policy) => {
      await policy.complete("the");
      policy.annotate({ reward: 0.75 });
      await new Promise(() => {});
    },
    { settings: { workflow: { workflow_args: { ...SHAPING, timeout: 0.05 } } } },
  ],
  [
    "a prompt that is too long",
    async (_, policy) => {
      await policy.complete("the");
      await policy.complete("the ".repeat(50));
      return 1;
    },
    { settings: { data: { max_prompt_length: 40 }, workflow: { workflow_args: SHAPING } } },
  ],
])("%s", async (_, rollout, more) => {
  const { episode, again } = await attempt(rollout, more);
  expect(episode.trajectories.flatMap(({ steps }) => steps).length).toBeGreaterThan(0);
  expect(again).toBeTypeOf("object");
  expect(trained(again as Episode)).toEqual(trained(episode));
});

test("a trace holds what its reply was sampled with", async () => {
  const settings = { rollout: { train: { temperature: 0.5, top_p: 0.75, max_tokens: 9 } } };
  const { traces } = await attempt(
    async (_, policy) => {
      await policy.complete("the", { max_tokens: 3 });
      await policy.client.chat.completions.create({ messages: [{ role: "user", content: "the" }], temperature: 2 });
      return 1;
    },
    { settings },
  );
  const run = { temperature: 0.5, top_p: 0.75, top_k: -1 };
  expect(traces.map(({ sampling_params }) => sampling_params)).toMatchObject([
    { ...run, max_tokens: 3 },
    { ...run, max_tokens: 9 },
  ]);
});

test("the session says how it ended, for people", async () => {
  const judge = { evaluate: () => 0.5 };
  const { session } = await attempt(async (_, policy) => void (await policy.complete("the")), judge);
  expect(session.outcome).toMatchObject({ reward: 0.5, is_correct: true, termination_reason: "env_done" });
  const failed = await attempt(async (_, policy) => {
    await policy.complete("the");
    throw new Error("x");
  });
  expect(failed.session.outcome).toMatchObject({ reward: null, termination_reason: "error" });
  expect(failed.again).toBe("no_reward");
});

test("the greedy attempt of ReMax is recorded as such, and no run trains on it", async () => {
  const rollout: Rollout = async (_, policy) => ({
    trajectories: [{ steps: [await policy.complete("the")], reward: 1 }],
  });
  const { session, traces, again } = await attempt(rollout, { isGreedy: true });
  expect([session.metadata.is_greedy, again]).toEqual([true, "greedy"]);
  expect(traces[0]!.sampling_params).toMatchObject({ temperature: 0 });
  expect((await attempt(rollout)).session.metadata).not.toHaveProperty("is_greedy");
});
