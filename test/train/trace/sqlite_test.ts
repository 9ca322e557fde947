/** The database on its own: its schema, other processes beside it, the end of the process in the middle of a write. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, describe, expect, test } from "vitest";
import { openTraceStore } from "../../../src/train/trace/mod.ts";
import { DRIVERS, openDatabase } from "../../../src/train/trace/sqlite/driver.ts";
import { makeTrace } from "./make_trace.ts";

const folder = mkdtempSync(join(tmpdir(), "grpu-sqlite-"));
afterAll(() => rmSync(folder, { recursive: true }));
let files = 0;
const fresh = () => join(folder, `${files++}.db`);
const DOOR = new URL("../../../dist/train/trace/mod.js", import.meta.url).href;

/** Runs JavaScript with `openTraceStore` and `PATH` in a process of its own. */
function inProcess(path: string, code: string): ChildProcess {
  const head = `import { openTraceStore } from ${JSON.stringify(DOOR)}; const PATH = ${JSON.stringify(path)};`;
  return spawn(process.execPath, ["--input-type=module", "-e", head + code], { stdio: ["ignore", "pipe", "inherit"] });
}

async function outputOf(child: ChildProcess): Promise<string> {
  let text = "";
  child.stdout!.on("data", (chunk) => {
    text += chunk;
  });
  await once(child, "close");
  return text;
}

test("the tables of rLLM's gateway, and one of ours", async () => {
  const path = fresh();
  await (await openTraceStore(path)).close();
  const database = await openDatabase(path);
  const rows = (sql: string) => database.prepare(sql).all() as Record<string, unknown>[];
  const columns = (table: string) => rows(`PRAGMA table_info(${table})`).map(({ name, type, pk }) => [name, type, pk]);
  expect(columns("traces")).toEqual([
    ["trace_id", "TEXT", 1],
    ["data", "TEXT", 0],
    ["created_at", "REAL", 0],
  ]);
  expect(columns("trace_sessions")).toEqual([
    ["trace_id", "TEXT", 1],
    ["session_id", "TEXT", 2],
    ["created_at", "REAL", 0],
  ]);
  const named = rows("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name");
  const tables = [
    "grpu_sessions",
    "idx_traces_time",
    "idx_ts_session",
    "idx_ts_session_time",
    "trace_sessions",
    "traces",
  ];
  expect(named.map(({ name }) => name)).toEqual(tables.sort());
  expect(rows("PRAGMA journal_mode")[0]).toMatchObject({ journal_mode: "wal" });
  database.close();
});

test("closing empties the log into the database, and a second close does nothing", async () => {
  const path = fresh();
  const store = await openTraceStore(path);
  await store.putTrace(makeTrace());
  const logged = () => statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0;
  expect(logged()).toBeGreaterThan(0);
  await store.close();
  await store.close();
  expect(logged()).toBe(0);
  await expect(store.getTrace("trace")).rejects.toThrow(/is closed\. Open it again/);
});

test("a session's traces are found through its index", async () => {
  const path = fresh();
  const store = await openTraceStore(path);
  for (let i = 0; i < 300; i++) await store.putTrace(makeTrace({ trace_id: `${i}`, session_id: `s${i % 100}` }));
  await store.close();
  const database = await openDatabase(path);
  const plan = database
    .prepare(
      "EXPLAIN QUERY PLAN SELECT t.data FROM trace_sessions m CROSS JOIN traces t USING (trace_id) WHERE m.session_id = ? ORDER BY t.created_at, t.rowid LIMIT ?",
    )
    .all("s1", -1) as { detail: string }[];
  database.close();
  expect(plan.map(({ detail }) => detail).join("\n")).not.toMatch(/SCAN/);
});

test("another process reads while this one writes, and writes while this one writes", async () => {
  const path = fresh();
  const store = await openTraceStore(path);
  await store.putTrace(makeTrace({ trace_id: "first" }));
  const other = inProcess(
    path,
    `const store = await openTraceStore(PATH);
     const [trace] = await store.traces({});
     const counts = [];
     for (let i = 0; i < 40; i++) {
       await store.putTrace({ ...trace, trace_id: "theirs-" + i, session_id: "theirs" });
       counts.push((await store.getSession("ours"))?.trace_count ?? 0);
       await new Promise((resolve) => setTimeout(resolve, 5));
     }
     await store.close();
     console.log(JSON.stringify(counts));`,
  );
  const output = outputOf(other);
  let ours = 0;
  while (other.exitCode === null) {
    await store.putTrace(makeTrace({ trace_id: `ours-${ours++}`, session_id: "ours" }));
    await sleep(2);
  }
  const counts = JSON.parse(await output) as number[];
  expect(counts).toEqual([...counts].sort((a, b) => a - b));
  expect(counts[0]!).toBeLessThan(counts.at(-1)!);
  expect(await store.getSession("theirs")).toMatchObject({ trace_count: 40 });
  expect(await store.getSession("ours")).toMatchObject({ trace_count: ours });
  await store.close();
});

test("a process that is killed while it writes loses nothing that resolved, and keeps nothing twice", async () => {
  const path = fresh();
  const seed = await openTraceStore(path);
  await seed.putTrace(makeTrace({ trace_id: "seed", session_id: "seed" }));
  await seed.close();
  const resolved: string[] = [];
  for (let round = 0; round < 3; round++) {
    const writer = inProcess(
      path,
      `const store = await openTraceStore(PATH);
       const [trace] = await store.traces({});
       for (let i = 0; ; i++) {
         const trace_id = "${round}-" + i;
         const writes = [0, 1].map(() => store.putTrace({ ...trace, trace_id, session_id: "s" + (i % 3) }));
         await Promise.all(writes);
         process.stdout.write(trace_id + "\\n");
       }`,
    );
    const output = outputOf(writer);
    await once(writer.stdout!, "data");
    await sleep(30 + 25 * round);
    writer.kill("SIGKILL");
    // The kill may cut the last line.
    resolved.push(...(await output).split("\n").slice(0, -1));
  }
  expect(resolved.length).toBeGreaterThan(30);
  const store = await openTraceStore(path);
  const found = (await store.traces({})).map(({ trace_id }) => trace_id);
  expect(new Set(found).size).toBe(found.length);
  expect(resolved.filter((id) => !found.includes(id))).toEqual([]);
  // At most the one write under way in each round.
  expect(found.length - 1 - resolved.length).toBeLessThanOrEqual(3);
  const summaries = await store.sessions({});
  expect(summaries.reduce((sum, { trace_count }) => sum + trace_count, 0)).toBe(found.length);
  await store.close();
});

describe("errors", () => {
  test("of a file that is no database", async () => {
    const path = fresh();
    writeFileSync(path, "not a database, but a text of some length\n".repeat(40));
    await expect(openTraceStore(path)).rejects.toThrow(
      new RegExp(`^Cannot open the trace store: .*not a database.*Name a trace database.*${path}`),
    );
  });

  test("of a path that must exist, and of a folder", async () => {
    await expect(openTraceStore(join(folder, "none.db"), { mustExist: true })).rejects.toThrow(/there is no such file/);
    await expect(openTraceStore(folder)).rejects.toThrow(/^Cannot open the trace store/);
  });

  test("of a row that another program damaged", async () => {
    const path = fresh();
    const store = await openTraceStore(path);
    await store.putTrace(makeTrace({ trace_id: "a" }));
    const database = await openDatabase(path);
    database.exec(`UPDATE traces SET data = json_set(data, '$.prompt_token_ids', 'x')`);
    await expect(store.getTrace("a")).rejects.toThrow(/^Cannot read the trace a: prompt_token_ids: .*\.db\)\.$/);
    database.exec(`UPDATE traces SET data = '{"logprobs": [NaN]}'`);
    await expect(store.traces({})).rejects.toThrow(/the text is not JSON \(\{"logprobs": \[NaN\]\}\)/);
    database.close();
    await store.close();
  });
});

test("a folder that is missing is made", async () => {
  const path = join(folder, "a", "b", "c.db");
  await (await openTraceStore(path)).close();
  expect(existsSync(path)).toBe(true);
});

/** Node 20 has libsql alone; Deno and newer Nodes both. */
test.each(Object.keys(DRIVERS))("%s stores and finds", async (name) => {
  const driver = await DRIVERS[name]!();
  if (!driver) return expect(name).toBe("node:sqlite");
  const database = driver(fresh());
  database.exec("CREATE TABLE t (id TEXT PRIMARY KEY, at REAL)");
  const put = database.prepare("INSERT INTO t VALUES (?, ?) ON CONFLICT (id) DO NOTHING");
  expect(Number(put.run("ä", 1.5).changes)).toBe(1);
  expect(Number(put.run("ä", 2).changes)).toBe(0);
  expect(database.prepare("SELECT at FROM t WHERE id = ?").get("ä")).toMatchObject({ at: 1.5 });
  database.close();
});

test("sessions are changed together or not at all", async () => {
  const store = await openTraceStore(fresh());
  const record = (session_id: string, created_at: number) => ({ session_id, metadata: {}, created_at });
  await store.putSession(record("a", 1));
  // SQLite stores NaN as NULL, which the column refuses.
  const broken = store.changeSessions(["a"], () => [record("a", 2), record("b", Number.NaN)]);
  await expect(broken).rejects.toThrow(/^Cannot change sessions: /);
  expect(await store.sessions({})).toMatchObject([{ session_id: "a", created_at: 1 }]);
  await store.changeSessions(["a", "none"], ([a, none]) => [record(a!.session_id, none ? 3 : 4)]);
  expect(await store.sessions({})).toMatchObject([{ session_id: "a", created_at: 4 }]);
  await store.close();
});

test("deleting a session takes no longer in a larger store", async () => {
  const store = await openTraceStore(fresh());
  for (let i = 0; i < 6000; i++) await store.putTrace(makeTrace({ trace_id: `t${i}`, session_id: `s${i}` }));
  const started = performance.now();
  expect(await store.deleteSessions(Array.from({ length: 3000 }, (_, i) => `s${i}`))).toBe(3000);
  // A look at the whole store for each session takes seconds.
  expect(performance.now() - started).toBeLessThan(1000);
  await store.close();
});

/** Runs it where no file may grow beyond so many KiB, which is what a full disk does to a write. */
function onFullDisk(path: string, code: string): ChildProcess {
  const head = `import { openTraceStore } from ${JSON.stringify(DOOR)}; const PATH = ${JSON.stringify(path)};`;
  const script = 'ulimit -f 256; exec "$0" "$@"';
  const args = ["-c", script, process.execPath, "--input-type=module", "-e", head + code];
  return spawn("bash", args, { stdio: ["ignore", "pipe", "inherit"] });
}

test("a full disk is named, loses nothing that was stored, and lets the store close", async () => {
  const path = fresh();
  const trace = makeTrace({ trace_id: "t", messages: [{ role: "user", content: "x".repeat(20_000) }] });
  const code = `const store = await openTraceStore(PATH);
    const trace = ${JSON.stringify(trace)};
    let stored = 0;
    const errors = new Set();
    for (let i = 0; i < 40; i++)
      await store.putTrace({ ...trace, trace_id: "t" + i }).then(() => stored++, ({ message }) => errors.add(message.replace(/t\\d+/, "tN")));
    await store.close();
    console.log(JSON.stringify({ stored, errors: [...errors] }));`;
  const { stored, errors } = JSON.parse(await outputOf(onFullDisk(path, code)));
  expect(errors.length).toBeGreaterThan(0);
  for (const error of errors) expect(error).toMatch(/^Cannot store the trace tN: .*(full|disk I\/O).*Free some space/);
  const store = await openTraceStore(path);
  expect([stored, await store.traces({})]).toEqual([stored, expect.objectContaining({ length: stored })]);
  await store.close();
});

test("the database, the files beside it and the folders made for it are this user's alone; a file that was there keeps its mode", async () => {
  const mode = (file: string) => (statSync(file).mode & 0o777).toString(8);
  const before = process.umask(0o022);
  try {
    const path = join(folder, "private", "traces.db");
    const store = await openTraceStore(path);
    await store.putTrace(makeTrace({ trace_id: "t" }));
    expect([dirname(path), path, `${path}-wal`, `${path}-shm`].map(mode)).toEqual(["700", "600", "600", "600"]);
    await store.close();
    chmodSync(path, 0o640);
    await (await openTraceStore(path)).close();
    expect(mode(path)).toBe("640");
  } finally {
    process.umask(before);
  }
});
