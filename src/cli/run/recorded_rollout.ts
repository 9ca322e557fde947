/**
 * Records the attempts of agents in this process as the gateway records those of others: each model call is a trace, each
 * attempt a session with its outcome. Tokens and random numbers are those of the rollout without it.
 */
import { type ChatEngine, createClient, createFetch } from "../../chat/endpoint.ts";
import type { SamplingRequest } from "../../chat/request.ts";
import type { Drawn, DrawnChat } from "../../chat/response.ts";
import type { SessionOutcome } from "../../contract/trace.ts";
import { Recorder } from "../../gateway/record.ts";
import {
  type ChatReply,
  type Completion,
  evaluationOf,
  isResult,
  type Outcome,
  type Policy,
  type Rollout,
  Termination,
} from "../../task/rollout.ts";
import { type OpenTraceStore, openTraceStore } from "../../trace/mod.ts";
import type { GatewaySettings } from "./gateway_settings.ts";

export interface Recording {
  /** As the given rollout, recorded. */
  wrap(rollout: Rollout): Rollout;
  /** Writes what is left. */
  close(): Promise<void>;
}

/** Undefined where nothing is to be recorded, or where the gateway records. @throws {ConfigError} as `openTraceStore` */
export async function openRecording(
  { store: file, agents, keys, retention }: GatewaySettings,
  tell: (line: string) => void,
): Promise<Recording | undefined> {
  if (file === undefined || agents.length > 0) return undefined;
  const store = await openTraceStore(file, { retention });
  const recorder = new Recorder({ store, log: tell });
  const run = crypto.randomUUID().slice(0, 8);
  const nameKey = keys.name ?? "trajectory_name";
  return {
    wrap: (rollout) => recorded(rollout, { store, recorder, run, nameKey }),
    async close() {
      await recorder.flush();
      await store.close();
    },
  };
}

interface Recorded {
  readonly store: OpenTraceStore;
  readonly recorder: Recorder;
  /** Tells the sessions of this run from those of others in the same store. */
  readonly run: string;
  readonly nameKey: string;
}

function recorded(rollout: Rollout, it: Recorded): Rollout {
  let attempts = 0;
  return async (task, policy) => {
    const { place, isValidation: is_validation } = policy;
    const session_id = `${task.id}:${place.rollout_index}:${place.trial}-${it.run}-${attempts++}`;
    const metadata = { run: it.run, task_id: task.id, ...place, is_validation };
    const session = { session_id, metadata, created_at: Date.now() / 1000 };
    await it.store.putSession(session);
    const end = (outcome: Omit<SessionOutcome, "ended_at">) =>
      it.store.putSession({ ...session, outcome: { ...outcome, ended_at: Date.now() / 1000 } });
    try {
      const outcome = await rollout(task, recordedPolicy(policy, { ...it, session }));
      await end(outcomeOf(outcome));
      return outcome;
    } catch (error) {
      const reason = error instanceof Termination ? error.reason : "error";
      await end({ reward: null, termination_reason: reason });
      throw error;
    }
  };
}

/** Without a reward where an evaluator judges later. */
function outcomeOf(outcome: Outcome): Omit<SessionOutcome, "ended_at"> {
  if (outcome === undefined) return { reward: null };
  if (!isResult(outcome)) {
    const { reward, is_correct, metrics, signals } = evaluationOf(outcome);
    return { reward, is_correct: is_correct ?? reward > 0, ...(metrics && { metrics }), ...(signals && { signals }) };
  }
  const { trajectories, is_correct, metrics, termination_reason } = outcome;
  const rewards = trajectories.flatMap(({ name = "", reward }) => (reward == null ? [] : [[name, reward] as const]));
  return {
    reward: rewards.length === 1 ? rewards[0]![1] : null,
    ...(rewards.length > 1 && { trajectory_rewards: Object.fromEntries(rewards) }),
    ...(is_correct !== undefined && { is_correct }),
    ...(metrics && { metrics }),
    ...(termination_reason && { termination_reason }),
  };
}

interface RecordedAttempt extends Recorded {
  readonly session: Parameters<Recorder["wrap"]>[1];
}

/** What a call through `chat` or `complete` asks for, as the APIs' requests say it. */
const PLAIN: SamplingRequest = {
  params: {},
  stop: [],
  n: 1,
  logprobs: false,
  stream: false,
  includeUsage: false,
  returnTokenIds: false,
};

/** The policy with its four ways to call the model recorded; everything else is the policy's own. */
function recordedPolicy(policy: Policy, it: RecordedAttempt): Policy {
  const { recorder, nameKey } = it;
  const metadata = { ...it.session.metadata, [nameKey]: policy.name };
  const wrap = (engine: ChatEngine) => recorder.wrap(engine, { ...it.session, metadata });
  const engine = wrap(policy.engine);
  const { model, tokenizer } = policy;
  const own: Partial<Policy> = {
    engine,
    client: createClient(engine),
    fetch: createFetch(engine),
    async chat(messages, options = {}) {
      const { tools, variables, params = {}, stop = [] } = options;
      const request = { ...PLAIN, messages, params, stop, ...(tools && { tools }), ...(variables && { variables }) };
      const chat = async () => [await policy.chat(messages, options)] as unknown as DrawnChat[];
      const [reply] = await wrap({ model, tokenizer, chat, complete: async () => [] }).chat(request);
      return reply as unknown as ChatReply;
    },
    async complete(prompt, params = {}) {
      const complete = async () => [await policy.complete(prompt, params)] as unknown as Drawn[];
      const [reply] = await wrap({ model, tokenizer, complete, chat: async () => [] }).complete({
        ...PLAIN,
        params,
        prompt,
      });
      return reply as unknown as Completion;
    },
    agent: (name) => recordedPolicy(policy.agent(name), it),
  };
  return Object.assign(Object.create(policy) as Policy, own);
}
