/** Rewards that arrive after the sessions: from a file, one line a session. */
import { z } from "zod";
import type { SessionOutcome, TraceStore } from "../contract/trace.ts";
import { TERMINATION_REASONS } from "../data/types.ts";
import { ConfigError, type Source } from "../errors.ts";
import { parseJson } from "./read_trace.ts";

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
  const read = ROW.safeParse(parseJson(line, source));
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
 * Sets the outcomes. All sessions are looked up first, so that an error changes nothing.
 * @throws {ConfigError} for sessions that the store does not have
 */
export async function putRewards(
  store: TraceStore,
  { rows, now }: { readonly rows: readonly RewardRow[]; readonly now: number },
): Promise<void> {
  const found = await Promise.all(rows.map(({ session_id }) => store.getSession(session_id)));
  const missing = rows.filter((_, i) => !found[i]);
  if (missing.length > 0)
    throw new ConfigError(
      `Cannot set rewards: ${missing.length} of ${rows.length} sessions are not in the store (the first is ${missing[0]!.session_id}). Nothing was changed; remove their lines, or name another store.`,
      { kind: "data" },
    );
  for (const { session_id, ...given } of rows) {
    // Again, because a file may name a session twice.
    const { trace_count, first_at, last_at, ...session } = (await store.getSession(session_id))!;
    const known = session.outcome ?? { reward: null, ended_at: last_at ?? now };
    const outcome: SessionOutcome = { ...known, ...present(given) };
    await store.putSession({ ...session, outcome });
  }
}

type Present<T> = { readonly [K in keyof T]?: Exclude<T[K], undefined> };

function present<T extends object>(values: T): Present<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Present<T>;
}
