/** Items of trace files: sessions and traces, one after the other. */
import type { SessionRecord, SessionSummary, TraceRecord, TraceStore } from "../../../engine/contract/trace.ts";
import { ConfigError, type Source } from "../../../leaves/errors.ts";
import { readSession, readTrace } from "../read_trace.ts";

/** A session, or a trace. */
export type TraceItem = { readonly session: SessionRecord } | { readonly trace: TraceRecord };

/** Choice of the sessions that are written; default all. */
export interface SessionFilter {
  readonly session_ids?: readonly string[] | undefined;
  /** Seconds since 1970: sessions with something at or after it. */
  readonly since?: number | undefined;
}

/**
 * Sessions, the oldest first, each followed by its traces. A session that no `putSession` announced has no item of its own;
 * a trace that several sessions share follows each of them, with that session's id.
 * @throws {ConfigError} for a session id that the store does not have
 */
export async function* exportItems(
  store: TraceStore,
  { session_ids, since }: SessionFilter = {},
): AsyncGenerator<TraceItem> {
  const listed = session_ids ?? (await store.sessions({ since })).map(({ session_id }) => session_id).reverse();
  for (const session_id of listed) {
    const found = await store.getSession(session_id);
    if (!found)
      throw new ConfigError(
        `Cannot export the session ${session_id}: it is not in the store. See grpu traces list for those that are.`,
        { kind: "data" },
      );
    const { trace_count, first_at, last_at, ...session } = found;
    if (trace_count === 0 || !isDerived(found)) yield { session };
    for (const trace of await store.traces({ session_id })) yield { trace: { ...trace, session_id } };
  }
}

/** Whether everything that is known of the session follows from its traces. */
function isDerived({ created_at, first_at, metadata, sampling_params, outcome }: SessionSummary): boolean {
  return created_at === first_at && Object.keys(metadata).length === 0 && !sampling_params && !outcome;
}

/** Counts of an import. */
export interface Imported {
  readonly sessions: number;
  readonly traces: number;
  /** Number of these traces without token ids or log-probs, which cannot be trained on. */
  readonly untrainable: number;
}

/** Puts every item. Those with a known id are replaced, so that a second import changes nothing. */
export async function importItems(
  store: TraceStore,
  items: Iterable<TraceItem> | AsyncIterable<TraceItem>,
): Promise<Imported> {
  const counts = { sessions: 0, traces: 0, untrainable: 0 };
  for await (const item of items) {
    if ("session" in item) {
      await store.putSession(item.session);
      counts.sessions++;
    } else {
      await store.putTrace(item.trace);
      counts.traces++;
      if (!isTrainable(item.trace)) counts.untrainable++;
    }
  }
  return counts;
}

function isTrainable({ prompt_token_ids, completion_token_ids, logprobs }: TraceRecord): boolean {
  return prompt_token_ids.length > 0 && logprobs !== null && logprobs.length === completion_token_ids.length;
}

/** A row with a `trace_id` is a trace, any other a session. @throws {ConfigError} for a row that is neither */
export function readItem(row: unknown, source: Source): TraceItem {
  const isTrace = typeof row === "object" && row !== null && "trace_id" in row;
  return isTrace ? { trace: readTrace(row, source) } : { session: readSession(row, source) };
}
