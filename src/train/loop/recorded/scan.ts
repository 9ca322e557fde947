/** Scans a trace store for training: its attempts by group, and those that are left out. Token ids are not kept. */
import type { SamplingParams } from "../../../engine/contract/backend.ts";
import type { SessionSummary, TraceRecord, TraceStore } from "../../../engine/contract/trace.ts";
import {
  type AttemptOptions,
  attemptOf,
  type RecordedAttempt,
  type SkipReason,
  trainedCalls,
  whySkipped,
} from "../../trace/attempts.ts";
import { groupBy } from "../group_by.ts";

/** One session that can be trained on. */
export interface TrainableSession extends Pick<RecordedAttempt, "session_id" | "group" | "place" | "created_at"> {
  readonly task: Pick<RecordedAttempt["task"], "id" | "instruction">;
  /** When it ended, seconds since 1970. */
  readonly ended_at: number;
  /** Versions of its calls; undefined for one without. */
  readonly weightVersions: readonly (number | undefined)[];
}

/** Sessions that attempt one task: they are compared with each other. */
export interface RecordedGroup {
  readonly key: string;
  /** Sessions by rollout index, else by the time of their creation. */
  readonly sessions: readonly TrainableSession[];
}

/** Common facts of the sessions that were read. */
export interface ScanFacts {
  /** Sessions left out, by reason. */
  readonly skipped: Partial<Record<SkipReason, number>>;
  readonly calls: number;
  /** Calls whose prompt was rendered from text though earlier replies were known: each starts a row of its own. */
  readonly diverged: number;
  /** Calls with tokens that a mask limited: their log-probs are not those of what sampled them. */
  readonly masked: number;
  /** The largest token id, and the session that has it. */
  readonly largestId: Largest;
  /** The longest prompt with its reply. */
  readonly longest: Largest;
  /** Least and greatest; undefined where no call has one. */
  readonly weightVersions: { readonly least: number; readonly greatest: number } | undefined;
  readonly models: ReadonlySet<string>;
  /** Each combination once, of calls that record theirs. */
  readonly samplings: readonly RecordedSampling[];
  /** Replies as tokens and as text, to tell whether the tokenizer is that of the recording. */
  readonly replies: readonly { readonly ids: readonly number[]; readonly text: string }[];
}

/** A greatest value and where it is; -1 where there is none. */
export interface Largest {
  readonly value: number;
  readonly session_id: string;
}

/** Sampling parameters of calls. */
export type RecordedSampling = Pick<SamplingParams, "temperature" | "top_p" | "top_k">;

/** A session and its traces, if it can be trained on; else why not. */
export function readAttempt(
  session: SessionSummary,
  { traces, keys, isJudged = false }: AttemptOptions & { readonly traces: readonly TraceRecord[] },
): RecordedAttempt | SkipReason {
  return whySkipped(session, { traces, isJudged }) ?? attemptOf(session, { traces, keys });
}

/** Reads sessions one after the other. @returns those that can be trained on, and what they have in common */
export async function scanSessions(
  sessions: Iterable<SessionSummary>,
  { store, ...options }: AttemptOptions & { readonly store: TraceStore },
): Promise<{ readonly sessions: TrainableSession[]; readonly facts: ScanFacts }> {
  const found: TrainableSession[] = [];
  const facts = new Facts();
  for (const session of sessions) {
    const traces = await store.traces({ session_id: session.session_id });
    const attempt = readAttempt(session, { ...options, traces });
    if (typeof attempt === "string") {
      facts.skipped[attempt] = (facts.skipped[attempt] ?? 0) + 1;
      continue;
    }
    facts.add(attempt.session_id, trainedCalls(traces, session.outcome));
    const steps = attempt.trajectories.flatMap((each) => each.steps);
    const weightVersions = [...new Set(steps.map(({ weight_version }) => weight_version))];
    found.push({
      ...idsOf(attempt),
      weightVersions,
      ended_at: session.outcome?.ended_at ?? session.last_at ?? session.created_at,
    });
  }
  return { sessions: found, facts };
}

function idsOf({ session_id, group, place, created_at, task: { id, instruction } }: RecordedAttempt) {
  return { session_id, group, place, created_at, task: { id, instruction } };
}

/** Replies that are compared as text. */
const REPLIES = 20;

class Facts implements ScanFacts {
  readonly skipped: Partial<Record<SkipReason, number>> = {};
  calls = 0;
  diverged = 0;
  masked = 0;
  largestId: Largest = { value: -1, session_id: "" };
  longest: Largest = { value: -1, session_id: "" };
  weightVersions: { least: number; greatest: number } | undefined;
  readonly models = new Set<string>();
  readonly replies: { ids: readonly number[]; text: string }[] = [];
  private readonly byText = new Map<string, RecordedSampling>();

  get samplings(): RecordedSampling[] {
    return [...this.byText.values()];
  }

  add(session_id: string, traces: readonly TraceRecord[]): void {
    for (const trace of traces) {
      this.calls++;
      if (trace.prompt_origin === "diverged") this.diverged++;
      if ((trace.constrained?.masked_tokens ?? 0) > 0) this.masked++;
      this.models.add(trace.model);
      const { prompt_token_ids, completion_token_ids, weight_version } = trace;
      for (const ids of [prompt_token_ids, completion_token_ids])
        for (const id of ids) if (id > this.largestId.value) this.largestId = { value: id, session_id };
      const length = prompt_token_ids.length + completion_token_ids.length;
      if (length > this.longest.value) this.longest = { value: length, session_id };
      if (weight_version !== null) this.weightVersions = widened(this.weightVersions, weight_version);
      this.addReply(trace);
      this.addSampling(trace);
    }
  }

  private addSampling({ sampling_params }: TraceRecord): void {
    const { temperature, top_p, top_k } = sampling_params ?? {};
    if (typeof temperature !== "number" || typeof top_p !== "number" || typeof top_k !== "number") return;
    this.byText.set(`${temperature} ${top_p} ${top_k}`, { temperature, top_p, top_k });
  }

  private addReply({ response_message: { content, tool_calls }, completion_token_ids }: TraceRecord): void {
    if (this.replies.length >= REPLIES || typeof content !== "string" || tool_calls !== undefined) return;
    if (content.trim() !== "") this.replies.push({ ids: completion_token_ids, text: content.trim() });
  }
}

function widened(range: { least: number; greatest: number } | undefined, value: number) {
  return { least: Math.min(range?.least ?? value, value), greatest: Math.max(range?.greatest ?? value, value) };
}

/** Groups in the order in which their tasks were attempted. */
export function groupSessions(sessions: readonly TrainableSession[]): RecordedGroup[] {
  const ordered = sessions.toSorted(byAttempt);
  const groups = Array.from(
    groupBy(ordered, ({ group }) => group),
    ([key, members]) => ({ key, sessions: members }),
  );
  return groups.sort((a, b) => byTask(a.sessions[0]!, b.sessions[0]!));
}

function byAttempt(a: TrainableSession, b: TrainableSession): number {
  return order(a.place.rollout_index, b.place.rollout_index) || a.created_at - b.created_at;
}

function byTask(a: TrainableSession, b: TrainableSession): number {
  return (
    order(a.place.step, b.place.step) ||
    order(a.place.task_index, b.place.task_index) ||
    a.created_at - b.created_at ||
    (a.session_id < b.session_id ? -1 : 1)
  );
}

/** Unknown places come first, in the order of time. */
function order(a: number | null, b: number | null): number {
  return (a ?? -1) - (b ?? -1);
}
