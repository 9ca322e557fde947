/** Options of the commands on trace stores. */
import { ConfigError } from "../../leaves/errors.ts";
import { readSize } from "../../train/run/model/plan_request.ts";
import type { OpenTraceStore, Retention } from "../../train/trace/mod.ts";
import type { Input } from "../command.ts";

/** Opens the store that `--store` names for `use`, and closes it. @throws {ConfigError} when there is none */
export async function withStore<T>(
  { options }: Input,
  use: (store: OpenTraceStore) => Promise<T>,
  { mustExist = true }: { readonly mustExist?: boolean } = {},
): Promise<T> {
  const { openTraceStore } = await import("../../train/trace/mod.ts");
  const place = String(options.store);
  if (place === "memory")
    throw new ConfigError("Cannot open the trace store: memory ends with its process. Name a file with --store.");
  const store = await openTraceStore(place, { mustExist });
  try {
    return await use(store);
  } finally {
    await store.close();
  }
}

const UNIT_SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };

/** `30m`, `12h`, `7d` in seconds; undefined for another form. */
function spanOf(text: string): number | undefined {
  const [, number, unit] = /^(\d+(?:\.\d+)?)([smhdw])$/.exec(text) ?? [];
  return number === undefined ? undefined : Number(number) * UNIT_SECONDS[unit!]!;
}

/** @throws {ConfigError} for a text that is no span of time */
export function readSpan(flag: string, text: string): number {
  const seconds = spanOf(text);
  if (seconds !== undefined) return seconds;
  throw new ConfigError(`Cannot read ${flag}: it is no span of time (${text}). Write for instance 30m, 12h or 7d.`);
}

/** `--since` in seconds since 1970. @throws {ConfigError} for a text that is no time */
export function sinceOf({ options }: Input): number | undefined {
  if (options.since === undefined) return undefined;
  const text = String(options.since);
  const span = spanOf(text);
  if (span !== undefined) return Date.now() / 1000 - span;
  const time = Date.parse(text);
  if (!Number.isNaN(time)) return time / 1000;
  throw new ConfigError(
    `Cannot read --since: it is no time (${text}). Write for instance 2026-11-22, 2026-11-22T10:30, 12h or 7d.`,
  );
}

/** `--max-age`, `--max-traces` and `--max-size`; undefined where none is given. @throws {ConfigError} for a value that is no such limit */
export function retentionOf(input: Input): Retention | undefined {
  const { maxAge, maxSize } = input.options;
  const limits = {
    max_age_s: maxAge === undefined ? undefined : readSpan("--max-age", String(maxAge)),
    max_traces: countOf(input, { flag: "--max-traces", key: "maxTraces" }),
    max_bytes: maxSize === undefined ? undefined : readSize(String(maxSize), "--max-size"),
  };
  return Object.values(limits).every((limit) => limit === undefined) ? undefined : limits;
}

/** A count. @throws {ConfigError} for anything but a whole number from 0 */
export function countOf(input: Input, { flag, key }: { flag: string; key: string }): number | undefined {
  const text = input.options[key];
  if (text === undefined) return undefined;
  if (/^\d+$/.test(String(text))) return Number(text);
  throw new ConfigError(`Cannot read ${flag}: it takes a whole number from 0 (${text}).`);
}
