/** `grpu traces list|delete|prune|reward`. */

import type { SessionSummary } from "../../engine/contract/trace.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { stringifyJson } from "../../leaves/json.ts";
import { readText } from "../../train/run/files.ts";
import { groupOf } from "../../train/trace/attempts.ts";
import { prune } from "../../train/trace/mod.ts";
import { putRewards, readRewards } from "../../train/trace/rewards.ts";
import type { Input, Io } from "../command.ts";
import { countOf, retentionOf, sinceOf, withStore } from "./trace_options.ts";

export function listTraces(input: Input, io: Io): Promise<void> {
  const query = { since: sinceOf(input), limit: countOf(input, { flag: "--limit", key: "limit" }) };
  return withStore(input, async (store) => {
    const sessions = await store.sessions(query);
    if (input.options.json) return io.out(`${stringifyJson(sessions)}\n`);
    if (sessions.length === 0) return io.err("no sessions\n");
    io.out(table([["session", "calls", "reward", "task", "last call"], ...sessions.map(cells)]));
  });
}

function cells(session: SessionSummary): string[] {
  const { session_id, trace_count, outcome, last_at, created_at } = session;
  const group = groupOf(session, { keys: { group: null, name: null } });
  return [session_id, String(trace_count), outcomeText(outcome), group, timeOf(last_at ?? created_at)];
}

/** Returns a session's reward as text for people. */
export function outcomeText(outcome: SessionSummary["outcome"]): string {
  if (!outcome) return "-";
  const { reward, trajectory_rewards } = outcome;
  if (reward !== null) return String(Number(reward.toPrecision(6)));
  const named = Object.entries(trajectory_rewards ?? {}).map(([name, value]) => `${name} ${value}`);
  return named.length > 0 ? named.join(", ") : "none";
}

/** UTC, to the second. */
export function timeOf(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
}

/** Columns as wide as their widest cell; numbers stay on the left, because ids vary in length. */
function table(rows: readonly (readonly string[])[]): string {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  const line = (row: readonly string[]) => row.map((cell, column) => cell.padEnd(widths[column]!)).join("  ");
  return rows.map((row) => `${line(row).trimEnd()}\n`).join("");
}

export function deleteTraces(input: Input, io: Io): Promise<void> {
  return withStore(input, async (store) => {
    for (const id of input.args)
      if (!(await store.getSession(id)))
        throw new ConfigError(
          `Cannot delete the session ${id}: it is not in the store. Nothing was deleted; see grpu traces list.`,
          { kind: "data" },
        );
    const traces = await store.deleteSessions(input.args);
    say({ sessions: new Set(input.args).size, traces }, { what: "deleted", input, io });
  });
}

export function pruneTraces(input: Input, io: Io): Promise<void> {
  const retention = retentionOf(input);
  if (!retention) throw new ConfigError("Cannot prune: no limit is given. Give --max-age, --max-traces or --max-size.");
  return withStore(input, async (store) => {
    const { sessions, traces } = await prune(store, { retention, now: Date.now() / 1000 });
    say({ sessions, traces }, { what: "deleted", input, io });
  });
}

export function rewardTraces(input: Input, io: Io): Promise<void> {
  const [file] = input.args as [string];
  const rows = readRewards(readText(file, "rewards"), file);
  return withStore(input, async (store) => {
    await putRewards(store, { rows, now: Date.now() / 1000 });
    say({ sessions: rows.length }, { what: "rewarded", input, io });
  });
}

/** `deleted 2 sessions, 5 traces`. */
export function say(
  counts: Readonly<Record<string, number>>,
  { what, input, io }: { what: string; input: Input; io: Io },
): void {
  if (input.options.json) {
    io.out(`${stringifyJson(counts)}\n`);
    return;
  }
  const parts = Object.entries(counts).map(
    ([name, count]) => `${count} ${count === 1 ? name.replace(/s$/, "") : name}`,
  );
  io.err(`${what} ${parts.join(", ")}\n`);
}
