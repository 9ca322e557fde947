/**
 * The tables of rLLM's model gateway, by name and column, so that each program opens the other's database; and one table
 * of ours for what that gateway keeps in memory alone: announced sessions, with their outcome.
 */
import type { Database } from "./driver.ts";

/** How long a write waits for another program's, ms. */
export const BUSY_TIMEOUT_MS = 20_000;

/**
 * WAL lets others read while we write. With `synchronous = NORMAL` a commit survives the end of the process; a loss of
 * power may cost the last ones, never the database.
 */
const SETTINGS = [
  `busy_timeout = ${BUSY_TIMEOUT_MS}`,
  // Takes effect in a new database: pages of deleted rows are given back to the file system.
  "auto_vacuum = INCREMENTAL",
  "journal_mode = WAL",
  "synchronous = NORMAL",
  "temp_store = MEMORY",
  "foreign_keys = ON",
];

const SCHEMA = `
CREATE TABLE IF NOT EXISTS traces (
  trace_id TEXT PRIMARY KEY,
  data TEXT NOT NULL,
  created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS trace_sessions (
  trace_id TEXT NOT NULL,
  session_id TEXT NOT NULL,
  created_at REAL NOT NULL,
  PRIMARY KEY (trace_id, session_id),
  FOREIGN KEY (trace_id) REFERENCES traces(trace_id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS idx_ts_session ON trace_sessions(session_id);
CREATE INDEX IF NOT EXISTS idx_ts_session_time ON trace_sessions(session_id, created_at ASC);
CREATE INDEX IF NOT EXISTS idx_traces_time ON traces(created_at);
CREATE TABLE IF NOT EXISTS grpu_sessions (
  session_id TEXT PRIMARY KEY,
  data TEXT NOT NULL,
  created_at REAL NOT NULL
);`;

/** Sets the connection up, and creates what is missing. */
export function prepareDatabase(database: Database): void {
  for (const setting of SETTINGS) database.prepare(`PRAGMA ${setting}`).all();
  database.exec(SCHEMA);
}
