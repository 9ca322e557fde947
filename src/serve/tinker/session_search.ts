/** Searching sessions: those that are open, and those whose training runs are on disk. */
import type { Checkpoints } from "./checkpoint/checkpoints.ts";
import { Refusal } from "./protocol/outcome.ts";
import type { TinkerSessions } from "./sessions.ts";

/** Conditions of a search for sessions. Absent conditions hold for every session. */
export interface SessionQuery {
  /** Id of the session; with `displayName`, a session that matches either one is found. */
  readonly sessionId?: string | undefined;
  /** Words, each of them somewhere in the name, whatever its case. */
  readonly displayName?: string | undefined;
  readonly projects?: readonly string[] | undefined;
  /** Values that the session's metadata hold. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** Owners by name; this server has one, {@link OWNER}. */
  readonly owners?: readonly string[] | undefined;
  /** `active` finds open sessions; the server keeps no record of how others ended. */
  readonly statuses?: readonly string[] | undefined;
}

/** A session in the protocol's terms. */
export interface TinkerSessionSummary {
  readonly session_id: string;
  /** ISO 8601; of a session that is not open, the creation of its first training run. */
  readonly created_at: string;
  readonly owner: string;
  readonly project_id: string;
  /** Null for a session that is not open. */
  readonly status: { readonly type: "active" } | null;
  readonly checkpoints_count: number;
  readonly checkpoint_storage_bytes: number;
  readonly display_name: string | null;
  readonly user_metadata: Readonly<Record<string, unknown>> | null;
}

/** The place of a page's last session in the order of results. */
export interface SessionCursor {
  readonly last_created_at: string;
  readonly last_session_id: string;
}

/** The owner of everything on this server. */
export const OWNER = "local";
/** The project of sessions that name none. */
const NO_PROJECT = "default";

/** One page of the sessions that match, newest first. @throws Refusal 422 for a cursor without a time */
export function searchSessions(
  query: SessionQuery,
  of: {
    readonly sessions: TinkerSessions;
    readonly checkpoints: Checkpoints;
    readonly limit: number;
    readonly cursor?: SessionCursor | undefined;
  },
): { sessions: TinkerSessionSummary[]; next_cursor: SessionCursor | null } {
  const found = summaries(of)
    .filter((session) => matches(session, query))
    .sort((a, b) => compare(placeOf(a), placeOf(b)));
  const { cursor, limit } = of;
  if (cursor && Number.isNaN(Date.parse(cursor.last_created_at)))
    throw new Refusal(
      422,
      `Cannot search sessions: last_created_at of the cursor must be a time (${cursor.last_created_at}).`,
    );
  const rest = cursor ? found.filter((session) => compare(placeOf(session), cursor) > 0) : found;
  const page = rest.slice(0, limit);
  return { sessions: page, next_cursor: rest.length > limit ? placeOf(page.at(-1)!) : null };
}

function placeOf({ created_at, session_id }: TinkerSessionSummary): SessionCursor {
  return { last_created_at: created_at, last_session_id: session_id };
}

/** Newer before older. */
function compare(a: SessionCursor, b: SessionCursor): number {
  const byTime = Date.parse(b.last_created_at) - Date.parse(a.last_created_at);
  return byTime || a.last_session_id.localeCompare(b.last_session_id);
}

function summaries({
  sessions,
  checkpoints,
}: {
  sessions: TinkerSessions;
  checkpoints: Checkpoints;
}): TinkerSessionSummary[] {
  const about = new Map<string, Omit<TinkerSessionSummary, "checkpoints_count" | "checkpoint_storage_bytes">>();
  // Newest first, so that the oldest run of a session is the last to say when it was created.
  for (const run of checkpoints.allRuns())
    about.set(run.session, {
      session_id: run.session,
      created_at: run.created,
      owner: OWNER,
      project_id: run.project ?? NO_PROJECT,
      status: null,
      display_name: null,
      user_metadata: null,
    });
  for (const session of sessions.values())
    about.set(session.id, {
      session_id: session.id,
      created_at: session.created,
      owner: OWNER,
      project_id: session.project ?? NO_PROJECT,
      status: { type: "active" },
      display_name: session.displayName ?? null,
      user_metadata: session.userMetadata,
    });
  const saved = new Map<string, { count: number; bytes: number }>();
  for (const { run, bytes } of checkpoints.list()) {
    const session = run.slice(0, run.indexOf(":"));
    const sum = saved.get(session) ?? { count: 0, bytes: 0 };
    saved.set(session, { count: sum.count + 1, bytes: sum.bytes + bytes });
  }
  return [...about.values()].map((session) => {
    const { count = 0, bytes = 0 } = saved.get(session.session_id) ?? {};
    return { ...session, checkpoints_count: count, checkpoint_storage_bytes: bytes };
  });
}

function matches(
  session: TinkerSessionSummary,
  { projects, owners, statuses, metadata, ...query }: SessionQuery,
): boolean {
  if (projects && !projects.includes(session.project_id)) return false;
  if (owners && !owners.includes(session.owner)) return false;
  if (statuses && !(session.status && statuses.includes(session.status.type))) return false;
  for (const [key, value] of Object.entries(metadata)) if (session.user_metadata?.[key] !== value) return false;
  const { sessionId, displayName } = query;
  if (sessionId === undefined && displayName === undefined) return true;
  return session.session_id === sessionId || (displayName !== undefined && isNamed(session, displayName));
}

function isNamed({ display_name }: TinkerSessionSummary, words: string): boolean {
  const name = display_name?.toLowerCase();
  return (
    name !== undefined &&
    words
      .toLowerCase()
      .split(/\s+/)
      .every((word) => name.includes(word))
  );
}
