/** A trace store in a SQLite database, which other processes may read and write at the same time. */

import type { SessionRecord, SessionSummary, TraceQuery, TraceRecord } from "../../../engine/contract/trace.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { parseJson, stringifyJson } from "../../../leaves/json.ts";
import { parseTrace } from "../read_trace.ts";
import {
  type OpenTraceStore,
  type SessionChange,
  type StoreOptions,
  type StoreSize,
  summaryOf,
  systemSeconds,
} from "../store.ts";
import { type Database, openDatabase, reasonOf, type SqlStatement, type SqlValue } from "./driver.ts";
import { prepareDatabase } from "./schema.ts";

const PUT_TRACE = `INSERT INTO traces (trace_id, data, created_at) VALUES (?, ?, ?)
  ON CONFLICT (trace_id) DO UPDATE SET data = excluded.data`;
const PUT_MEMBER = `INSERT INTO trace_sessions (trace_id, session_id, created_at)
  SELECT trace_id, ?, created_at FROM traces WHERE trace_id = ? ON CONFLICT DO NOTHING`;
const PUT_SESSION = `INSERT INTO grpu_sessions (session_id, data, created_at) VALUES (?, ?, ?)
  ON CONFLICT (session_id) DO UPDATE SET data = excluded.data, created_at = excluded.created_at`;

const SUMMARIES = `SELECT ids.session_id AS session_id, s.data AS data, m.count AS count, m.first_at AS first_at, m.last_at AS last_at
  FROM (SELECT session_id FROM grpu_sessions UNION SELECT session_id FROM trace_sessions) ids
  LEFT JOIN grpu_sessions s ON s.session_id = ids.session_id
  LEFT JOIN (SELECT session_id, COUNT(*) AS count, MIN(created_at) AS first_at, MAX(created_at) AS last_at
    FROM trace_sessions GROUP BY session_id) m ON m.session_id = ids.session_id`;
const LIST_SESSIONS = `${SUMMARIES}
  WHERE MAX(COALESCE(s.created_at, m.first_at), COALESCE(m.last_at, s.created_at)) >= ?
  ORDER BY COALESCE(s.created_at, m.first_at) DESC, ids.session_id LIMIT ?`;

const ONE_SESSION = `SELECT ? AS session_id, (SELECT data FROM grpu_sessions WHERE session_id = ?) AS data,
  COUNT(*) AS count, MIN(created_at) AS first_at, MAX(created_at) AS last_at FROM trace_sessions WHERE session_id = ?`;

/** Deletes by the two indexes of trace_sessions: the time does not grow with the store. */
const DELETE_OWN_TRACES = `DELETE FROM traces WHERE trace_id IN (
  SELECT own.trace_id FROM trace_sessions own WHERE own.session_id = ? AND NOT EXISTS (
    SELECT 1 FROM trace_sessions other WHERE other.trace_id = own.trace_id AND other.session_id != own.session_id))`;

interface SummaryRow {
  readonly session_id: string;
  readonly data: string | null;
  readonly count: number | null;
  readonly first_at: number | null;
  readonly last_at: number | null;
}

/** Opened by `openTraceStore`. */
export class SqliteTraceStore implements OpenTraceStore {
  readonly #path: string;
  readonly #database: Database;
  readonly #now: () => number;
  readonly #statements = new Map<string, SqlStatement>();
  #isClosed = false;

  private constructor(path: string, database: Database, now: () => number) {
    this.#path = path;
    this.#database = database;
    this.#now = now;
  }

  /**
   * Creates the file and its tables where they are missing.
   * @throws {ConfigError} for a file that is no such database; {UnsupportedError} in a runtime without SQLite
   */
  static async open(path: string, { now = systemSeconds }: StoreOptions = {}): Promise<SqliteTraceStore> {
    const database = await openDatabase(path);
    const store = new SqliteTraceStore(path, database, now);
    try {
      store.#try("open the trace store", () => prepareDatabase(database));
    } catch (error) {
      database.close();
      throw error;
    }
    return store;
  }

  async putTrace(trace: TraceRecord): Promise<void> {
    const { trace_id, session_id } = trace;
    this.#transaction(`store the trace ${trace_id}`, () => {
      this.#run(PUT_TRACE, trace_id, stringifyJson(trace), this.#now());
      this.#run(PUT_MEMBER, session_id, trace_id);
    });
  }

  async getTrace(traceId: string): Promise<TraceRecord | undefined> {
    return this.#select("SELECT data FROM traces t WHERE trace_id = ?", [traceId])[0];
  }

  async traces({ session_id, trace_ids, since, limit = -1 }: TraceQuery): Promise<readonly TraceRecord[]> {
    const conditions: string[] = [];
    const values: SqlValue[] = [];
    const where = (condition: string, value: SqlValue | undefined) => {
      if (value === undefined) return;
      conditions.push(condition);
      values.push(value);
    };
    where("m.session_id = ?", session_id);
    where("t.trace_id IN (SELECT value FROM json_each(?))", trace_ids && stringifyJson(trace_ids));
    where("t.created_at >= ?", since);
    // CROSS keeps the order of the join: through the session's members, not through all traces by time.
    const from = session_id === undefined ? "traces t" : "trace_sessions m CROSS JOIN traces t USING (trace_id)";
    const filter = conditions.length > 0 ? `WHERE ${conditions.join(" AND ")}` : "";
    return this.#select(`SELECT t.data FROM ${from} ${filter} ORDER BY t.created_at, t.rowid LIMIT ?`, [
      ...values,
      limit,
    ]);
  }

  async putSession(session: SessionRecord): Promise<void> {
    const { session_id, created_at } = session;
    this.#try(`store the session ${session_id}`, () =>
      this.#run(PUT_SESSION, session_id, stringifyJson(session), created_at),
    );
  }

  async changeSessions(sessionIds: readonly string[], change: SessionChange): Promise<void> {
    this.#transaction("change sessions", () => {
      for (const session of change(sessionIds.map((id) => this.#session(id))))
        this.#run(PUT_SESSION, session.session_id, stringifyJson(session), session.created_at);
    });
  }

  async getSession(sessionId: string): Promise<SessionSummary | undefined> {
    return this.#session(sessionId);
  }

  #session(id: string): SessionSummary | undefined {
    const [row] = this.#summaries(ONE_SESSION, [id, id, id]);
    return row && (row.data !== null || row.count) ? this.#summary(row) : undefined;
  }

  async sessions({ since, limit }: Pick<TraceQuery, "since" | "limit">): Promise<readonly SessionSummary[]> {
    const rows = this.#summaries(LIST_SESSIONS, [since ?? Number.MIN_SAFE_INTEGER, limit ?? -1]);
    return rows.map((row) => this.#summary(row));
  }

  async deleteSessions(sessionIds: readonly string[]): Promise<number> {
    let deleted = 0;
    this.#transaction("delete sessions", () => {
      for (const id of sessionIds) {
        deleted += this.#run(DELETE_OWN_TRACES, id);
        this.#run("DELETE FROM trace_sessions WHERE session_id = ?", id);
        this.#run("DELETE FROM grpu_sessions WHERE session_id = ?", id);
      }
    });
    this.#try("shrink the trace store", () => this.#all("PRAGMA incremental_vacuum", []));
    return deleted;
  }

  /** `bytes`: pages in use, indexes included. */
  async size(): Promise<StoreSize> {
    return this.#try("measure the trace store", () => {
      const count = (sql: string) => Number(Object.values(this.#all(sql, [])[0] as Record<string, number>)[0]);
      const pages = count("PRAGMA page_count") - count("PRAGMA freelist_count");
      return {
        sessions: count(`SELECT COUNT(*) AS n FROM (${SUMMARIES})`),
        traces: count("SELECT COUNT(*) AS n FROM traces"),
        bytes: pages * count("PRAGMA page_size"),
      };
    });
  }

  /** Every call that resolved is committed already. */
  async flush(): Promise<void> {}

  /** Moves the write-ahead log into the database, so that one file holds everything. A second call does nothing. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    try {
      this.#database.prepare("PRAGMA wal_checkpoint(TRUNCATE)").all();
    } catch {
      // On a full disk, for instance: everything that was stored lies in the log beside the file, where SQLite reads it.
    } finally {
      this.#database.close();
    }
  }

  #select(sql: string, values: readonly SqlValue[]): TraceRecord[] {
    const rows = this.#try("read traces", () => this.#all(sql, values)) as { data: string }[];
    return rows.map(({ data }) => parseTrace(data, { file: this.#path }));
  }

  #summaries(sql: string, values: readonly SqlValue[]): SummaryRow[] {
    return this.#try("list sessions", () => this.#all(sql, values)) as SummaryRow[];
  }

  #summary({ session_id, data, count, first_at, last_at }: SummaryRow): SessionSummary {
    const record = data === null ? undefined : (parseJson(data) as SessionRecord);
    return summaryOf(record, session_id, { count: count ?? 0, first_at, last_at });
  }

  #all(sql: string, values: readonly SqlValue[]): unknown[] {
    return this.#statement(sql).all(...values);
  }

  #run(sql: string, ...values: SqlValue[]): number {
    return Number(this.#statement(sql).run(...values).changes);
  }

  #statement(sql: string): SqlStatement {
    const cached = this.#statements.get(sql);
    if (cached) return cached;
    const statement = this.#database.prepare(sql);
    this.#statements.set(sql, statement);
    return statement;
  }

  /** All or nothing. IMMEDIATE, because a transaction that reads first cannot wait for another writer. */
  #transaction(act: string, work: () => void): void {
    this.#try(act, () => {
      this.#database.exec("BEGIN IMMEDIATE");
      try {
        work();
        this.#database.exec("COMMIT");
      } catch (error) {
        this.#rollBack();
        throw error;
      }
    });
  }

  /** After a full disk and other errors of input and output SQLite has rolled back already, and refuses to do it again. */
  #rollBack(): void {
    try {
      this.#database.exec("ROLLBACK");
    } catch {}
  }

  #try<T>(act: string, work: () => T): T {
    if (this.#isClosed) throw new Error(`Cannot ${act}: the trace store ${this.#path} is closed. Open it again.`);
    try {
      return work();
    } catch (cause) {
      throw new ConfigError(
        `Cannot ${act}: ${reasonOf(cause)}. ${adviceFor(cause)}`,
        { file: this.#path, kind: "data" },
        { cause },
      );
    }
  }
}

/** Advice by SQLite's words: its codes differ between drivers. */
const ADVICE: readonly (readonly [RegExp, string])[] = [
  [/locked|busy/i, "Another program is writing to it for longer than 20 seconds: end that program, and try again."],
  [/not a database/i, "Name a trace database, or a path where one can be created."],
  [/full|disk I\/O/i, "Free some space, or check the disk."],
  [/readonly|read-only/i, "Change its permissions, or name another place."],
  [/malformed|corrupt/i, "Recover what is left with sqlite3 FILE .recover."],
];

function adviceFor(cause: unknown): string {
  return ADVICE.find(([words]) => words.test(reasonOf(cause)))?.[1] ?? "Check the file.";
}
