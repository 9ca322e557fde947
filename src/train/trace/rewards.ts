/** Rewards that arrive after the sessions: from a file, one line a session. */
import { z } from "zod";
import type { SessionOutcome, SessionRecord, SessionSummary } from "../../engine/contract/trace.ts";
import { ConfigError, type Source } from "../../leaves/errors.ts";
import { TERMINATION_REASONS } from "../data/types.ts";
import { parseTraceJson } from "./read_trace.ts";
import type { OpenTraceStore } from "./store.ts";

const figures = z.record(z.string(), z.number());

const ROW = z.strictObject({
  session_id: z.string().min(1),
  reward: z.number().optional(),
  is_correct: z.boolean().optional(),
  termination_reason: z.enum(TERMINATION_REASONS).optional(),
  metrics: figures.optional(),
  signals: figures.optional(),
  trajectory_rewards: figures.optional(),
});

/** An outcome of one session; what it lacks stays as it was. */
export type RewardRow = z.output<typeof ROW>;

/** @throws {ConfigError} for the first line that is not `{"session_id": ..., "reward": ...}`, with its number */
export function readRewards(text: string, file: string): RewardRow[] {
  return text.split("\n").flatMap((line, i) => (line.trim() === "" ? [] : [readRow(line, { file, line: i + 1 })]));
}

function readRow(line: string, source: Source): RewardRow {
  const read = ROW.safeParse(parseTraceJson(line, source));
  if (!read.success) {
    const { path, message } = read.error.issues[0]!;
    throw wrong(`${path.join(".") || "it"}: ${message}. Write {"session_id": ..., "reward": NUMBER}`, source);
  }
  if (read.data.reward === undefined && !read.data.trajectory_rewards)
    throw wrong(`it has no reward (${read.data.session_id}). Give reward or trajectory_rewards`, source);
  return read.data;
}

function wrong(what: string, source: Source): ConfigError {
  return new ConfigError(`Cannot read the reward: ${what}.`, { ...source, kind: "data" });
}

/**
 * Sets the outcomes: all of them, or none.
 * @throws {ConfigError} for sessions that the store does not have, and for rewards of trajectories that a session does not have
 */
export async function putRewards(
  store: OpenTraceStore,
  { rows, now }: { readonly rows: readonly RewardRow[]; readonly now: number },
): Promise<void> {
  const byId = groupRows(rows);
  const wrong: string[] = [];
  await store.changeSessions([...byId.keys()], (found) => {
    const sessions = found.filter((session) => session !== undefined);
    const missing = [...byId.keys()].filter((_, i) => !found[i]);
    if (missing.length > 0)
      wrong.push(`${missing.length} of ${byId.size} sessions are not in the store (the first is ${missing[0]})`);
    for (const session of sessions) wrong.push(...unknownTrajectories(session, byId.get(session.session_id)!));
    return wrong.length > 0
      ? []
      : sessions.map((session) => rewarded(session, { rows: byId.get(session.session_id)!, now }));
  });
  if (wrong.length === 0) return;
  throw new ConfigError(
    `Cannot set rewards: ${wrong[0]}. Nothing was changed; correct or remove the lines, or name another store.`,
    { kind: "data" },
  );
}

/** The rows of each session, in their order. */
function groupRows(rows: readonly RewardRow[]): Map<string, RewardRow[]> {
  const byId = new Map<string, RewardRow[]>();
  for (const row of rows) {
    const session = byId.get(row.session_id);
    if (session) session.push(row);
    else byId.set(row.session_id, [row]);
  }
  return byId;
}

/** Returns what is wrong with a reward for a trajectory that the recording run does not have: it would be lost. */
function unknownTrajectories({ session_id, outcome }: SessionSummary, rows: readonly RewardRow[]): string[] {
  if (!outcome?.trajectories) return [];
  const names = new Set(outcome.trajectories.flatMap(({ label, name }) => [label, name]));
  const other = rows.flatMap((row) => Object.keys(row.trajectory_rewards ?? {})).find((name) => !names.has(name));
  if (other === undefined) return [];
  return [`the session ${session_id} has no trajectory ${JSON.stringify(other)}, it has ${[...names].join(", ")}`];
}

function rewarded(
  { trace_count, first_at, last_at, ...session }: SessionSummary,
  { rows, now }: { readonly rows: readonly RewardRow[]; readonly now: number },
): SessionRecord {
  const before = session.outcome ?? { reward: null, ended_at: last_at ?? now };
  return { ...session, outcome: rows.reduce(withRow, before) };
}

/** A reward of all leaves those of single trajectories as they are, and these leave each other. */
function withRow(stored: SessionOutcome, { session_id: _, ...reward }: RewardRow): SessionOutcome {
  const rewards = { ...stored.trajectory_rewards, ...reward.trajectory_rewards };
  const isOwn = reward.trajectory_rewards !== undefined;
  const outcome: SessionOutcome = { ...stored, ...present(reward), ...(isOwn && { trajectory_rewards: rewards }) };
  const { trajectories } = outcome;
  if (!trajectories) return outcome;
  const set = trajectories.map((each) => ({
    ...each,
    reward: rewards[each.label] ?? rewards[each.name] ?? reward.reward ?? each.reward,
  }));
  return { ...outcome, trajectories: set };
}

type Present<T> = { readonly [K in keyof T]?: Exclude<T[K], undefined> };

function present<T extends object>(values: T): Present<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Present<T>;
}
