/**
 * Records the attempts of agents in this process as the gateway records those of others: each model call is a trace, each
 * attempt a session with its outcome. Tokens and random numbers are those of the rollout without it.
 */
import { type ChatEngine, createClient, createFetch } from "../../../chat/endpoint.ts";
import { PLAIN_REQUEST } from "../../../chat/request.ts";
import type { Drawn, DrawnChat } from "../../../chat/response.ts";
import type { SessionRecord, TraceRecord } from "../../../engine/contract/trace.ts";
import { CallRecorder } from "../../../serve/gateway/record.ts";
import type { Step } from "../../data/types.ts";
import type { AttemptEnd, ChatReply, Completion, Policy, Rollout } from "../../task/rollout.ts";
import { outcomeOf } from "../../task/session_outcome.ts";
import { TRAJECTORY_NAME } from "../../trace/attempts.ts";
import { openTraceStore } from "../../trace/mod.ts";
import type { GatewaySettings } from "./gateway_settings.ts";

export interface Recording {
  /** Returns the given rollout, recorded. */
  wrap(rollout: Rollout): Rollout;
  /** Writes what is left. */
  close(): Promise<void>;
}

/** Undefined where nothing is to be recorded, or where the gateway records. @throws {ConfigError} as `openTraceStore` */
export async function openRecording(
  { store: file, agents, keys, retention }: GatewaySettings,
  notify: (line: string) => void,
): Promise<Recording | undefined> {
  if (file === undefined || agents.length > 0) return undefined;
  const store = await openTraceStore(file, { retention });
  const recorder = new CallRecorder({ store, log: notify });
  const run = crypto.randomUUID().slice(0, 8);
  const nameKey = keys.name ?? TRAJECTORY_NAME;
  let attempts = 0;
  return {
    wrap: (rollout) => async (task, policy) => {
      const { place, isValidation: is_validation } = policy;
      const session: SessionRecord = {
        session_id: `${task.id}:${place.rollout_index}:${place.trial}-${run}-${attempts++}`,
        metadata: { run, task_id: task.id, ...place, is_validation },
        created_at: Date.now() / 1000,
      };
      await store.putSession(session);
      const attempt = new AttemptRecord({ recorder, session, nameKey, model: policy.model });
      policy.onEnd((end) => attempt.end(end));
      return rollout(task, attempt.policy(policy));
    },
    async close() {
      await recorder.flush();
      await store.close();
    },
  };
}

interface AttemptRecordOptions {
  readonly recorder: CallRecorder;
  readonly session: SessionRecord;
  /** Metadata key of a call that names its agent. */
  readonly nameKey: string;
  readonly model: string;
}

/** One attempt while it is recorded. */
class AttemptRecord {
  private readonly options: AttemptRecordOptions;
  private readonly traces = new Map<string, TraceRecord>();

  constructor(options: AttemptRecordOptions) {
    this.options = options;
  }

  /** The policy with its four ways to call the model recorded; everything else is the policy's own. */
  policy(policy: Policy): Policy {
    const wrap = (engine: ChatEngine) => this.wrap(engine, policy.name);
    const engine = wrap(policy.engine);
    const { model, tokenizer } = policy;
    const recording: Partial<Policy> = {
      engine,
      client: createClient(engine),
      fetch: createFetch(engine),
      async chat(messages, options = {}) {
        const { tools, variables, params = {}, stop = [] } = options;
        const asked = { ...PLAIN_REQUEST, messages, params, stop, ...(tools && { tools }) };
        const chat = async () => [await policy.chat(messages, options)] as unknown as DrawnChat[];
        const recorded = wrap({ model, tokenizer, chat, complete: async () => [] });
        const [reply] = await recorded.chat({ ...asked, ...(variables && { variables }) });
        return reply as unknown as ChatReply;
      },
      async complete(prompt, params = {}) {
        const complete = async () => [await policy.complete(prompt, params)] as unknown as Drawn[];
        const recorded = wrap({ model, tokenizer, complete, chat: async () => [] });
        const [reply] = await recorded.complete({ ...PLAIN_REQUEST, params, prompt });
        return reply as unknown as Completion;
      },
      agent: (name) => this.policy(policy.agent(name)),
    };
    return Object.assign(Object.create(policy) as Policy, recording);
  }

  /** Stores the outcome, and those steps that no call left as they are. */
  async end(how: AttemptEnd): Promise<void> {
    const { recorder, session } = this.options;
    const made = new Map<Step, string>();
    for (const step of "result" in how ? how.result.trajectories.flatMap(({ steps }) => steps) : []) {
      if (this.isRecorded(step) || made.has(step)) continue;
      const trace = this.traceOf(step);
      made.set(step, trace.trace_id);
      await recorder.put(trace);
    }
    const outcome = outcomeOf(how, { traceOf: (step) => made.get(step) ?? step.id });
    await recorder.putSession({ ...session, outcome: { ...outcome, ended_at: Date.now() / 1000 } });
  }

  private wrap(engine: ChatEngine, agent: string): ChatEngine {
    const { recorder, session, nameKey } = this.options;
    const metadata = { ...session.metadata, [nameKey]: agent };
    const onReply = (trace: TraceRecord) => void this.traces.set(trace.trace_id, trace);
    return recorder.wrap(engine, { session_id: session.session_id, metadata, onReply });
  }

  /** A rollout may change the tokens of a step, or make steps without a call. */
  private isRecorded({ id, prompt_ids, response_ids, logprobs }: Step): boolean {
    const trace = id === undefined ? undefined : this.traces.get(id);
    return (
      trace !== undefined &&
      isSame(trace.prompt_token_ids, prompt_ids) &&
      isSame(trace.completion_token_ids, response_ids) &&
      isSame(trace.logprobs ?? [], logprobs)
    );
  }

  private traceOf({ prompt_ids, response_ids, logprobs, model_response, weight_version }: Step): TraceRecord {
    const { session, model } = this.options;
    return {
      trace_id: crypto.randomUUID(),
      session_id: session.session_id,
      model,
      messages: [],
      prompt_token_ids: prompt_ids,
      response_message: { role: "assistant", content: model_response },
      completion_token_ids: response_ids,
      logprobs,
      finish_reason: null,
      weight_version: weight_version ?? null,
      latency_ms: 0,
      token_counts: { prompt: prompt_ids.length, completion: response_ids.length },
      timestamp: Date.now() / 1000,
      metadata: session.metadata,
    };
  }
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a === b || (a.length === b.length && a.every((value, i) => Object.is(value, b[i])));
}
