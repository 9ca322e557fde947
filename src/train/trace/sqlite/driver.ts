/** Opens a database file with what the runtime has: the package libsql, else the SQLite of Node (22.13 and later) or Deno. */
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";

/** Values that the database stores and returns in a column. */
export type SqlValue = string | number | null;

/** A prepared statement; values replace the `?` in order. */
export interface SqlStatement {
  run(...values: SqlValue[]): { readonly changes: number | bigint };
  get(...values: SqlValue[]): unknown;
  all(...values: SqlValue[]): unknown[];
}

/** The part that libsql and `node:sqlite` have in common. */
export interface Database {
  exec(sql: string): unknown;
  prepare(sql: string): SqlStatement;
  close(): unknown;
}

/** Opens the file, which is created where it is missing. */
export type Driver = (path: string) => Database;

type DatabaseClass = new (path: string) => Database;

/** Drivers by the name of what provides them, in the order of preference. */
export const DRIVERS: Readonly<Record<string, () => Promise<Driver | undefined>>> = {
  libsql: loadLibsql,
  "node:sqlite": async () => {
    const { process } = globalThis as { process?: { getBuiltinModule?(name: string): unknown } };
    const found = process?.getBuiltinModule?.("node:sqlite") as { DatabaseSync: DatabaseClass } | undefined;
    return found && ((path) => new found.DatabaseSync(path));
  },
};

async function loadLibsql(): Promise<Driver | undefined> {
  // By a variable, because bundlers and Deno resolve a literal name even where the package is missing.
  const name = "libsql";
  try {
    const { default: Libsql } = (await import(name)) as { default: DatabaseClass };
    return (path) => new Libsql(path);
  } catch {
    return undefined;
  }
}

let loaded: Promise<Driver | undefined> | undefined;

/** @throws {UnsupportedError} where the runtime has none of {@link DRIVERS} */
export async function openDatabase(path: string): Promise<Database> {
  loaded ??= firstDriver();
  const driver = await loaded;
  if (!driver) {
    throw new UnsupportedError(
      `Cannot open the trace store ${path}: this runtime has no SQLite (libsql is not installed). Run npm install libsql, use Node 22.13 or later, or set the store to memory.`,
      { part: "trace", capability: "sqlite" },
    );
  }
  try {
    return driver(path);
  } catch (cause) {
    throw new ConfigError(
      `Cannot open the trace store: ${reasonOf(cause)}. Check that the path names a file of yours.`,
      { file: path, kind: "data" },
      { cause },
    );
  }
}

async function firstDriver(): Promise<Driver | undefined> {
  for (const load of Object.values(DRIVERS)) {
    const driver = await load();
    if (driver) return driver;
  }
  return undefined;
}

/** SQLite's words, without the final point. */
export function reasonOf(cause: unknown): string {
  return (cause instanceof Error ? cause.message : String(cause)).replace(/\.$/, "");
}
