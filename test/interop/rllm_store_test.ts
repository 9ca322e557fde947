/** One trace database, written and read by rLLM's store and by ours. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { openTraceStore } from "../../src/train/trace/mod.ts";
import { openDatabase } from "../../src/train/trace/sqlite/driver.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { makeTrace } from "../train/trace/make_trace.ts";
import { rllmGateway } from "./rllm.ts";

const rllm = await rllmGateway();
const SCRIPT = fileURLToPath(new URL("rllm_store.py", import.meta.url));
const dir = temporaryFolder("rllm-store");

/** What rLLM's store says of a database. */
interface Listed {
  readonly sessions: readonly string[];
  readonly traces: Readonly<Record<string, readonly Record<string, unknown>[]>>;
}

async function python(command: string, database: string, ...args: string[]): Promise<unknown> {
  const { folder, python } = rllm!;
  const env = { ...process.env, PYTHONPATH: `${folder}/src` };
  const { stdout } = await promisify(execFile)(python, [SCRIPT, command, database, ...args], { env, timeout: 120_000 });
  return JSON.parse(stdout);
}

test.skipIf(!rllm)("a database of rLLM's gateway opens here, with equal traces in their order", async () => {
  const path = join(dir, "theirs.db");
  const written = (await python("write", path)) as { trace_id: string; session_id: string }[];
  expect(written).toHaveLength(30);
  const store = await openTraceStore(path);
  expect(await store.traces({})).toMatchObject(written);
  const sessions = await store.sessions({});
  expect(sessions.map(({ session_id, trace_count }) => [session_id, trace_count]).sort()).toEqual([
    ["s0", 10],
    ["s1", 10],
    ["s2", 10],
  ]);
  expect(await store.traces({ session_id: "s1" })).toMatchObject(written.filter((it) => it.session_id === "s1"));
  await store.close();
});

test.skipIf(!rllm)("rLLM's store reads, lists and deletes what ours wrote beside its own", async () => {
  const path = join(dir, "both.db");
  await python("write", path);
  const store = await openTraceStore(path);
  const ours = [0, 1, 2, 3].map((i) =>
    makeTrace({ trace_id: `ours-${i}`, session_id: `o${i % 2}`, logprobs: [-0.1, -1 / 3], prompt_origin: "rendered" }),
  );
  for (const trace of ours) await store.putTrace(trace);
  await store.putSession({ session_id: "o0", metadata: { a: 1 }, created_at: 5, outcome: { reward: 1, ended_at: 6 } });
  const listed = (await python("list", path)) as Listed;
  expect(listed.sessions.toSorted()).toEqual(["o0", "o1", "s0", "s1", "s2"]);
  // Equal to the last digit of each log-prob.
  expect([...listed.traces.o0!, ...listed.traces.o1!]).toEqual([ours[0], ours[2], ours[1], ours[3]]);
  expect(await python("delete", path, "o1")).toBe(2);
  expect((await store.traces({})).map(({ trace_id }) => trace_id)).not.toContain("ours-1");
  expect(await store.deleteSessions(["s0"])).toBe(10);
  expect(((await python("list", path)) as Listed).sessions.toSorted()).toEqual(["o0", "s1", "s2"]);
  await store.close();
  const database = await openDatabase(path);
  expect(database.prepare("PRAGMA integrity_check").get()).toMatchObject({ integrity_check: "ok" });
  expect(database.prepare("PRAGMA foreign_key_check").all()).toEqual([]);
  database.close();
});
