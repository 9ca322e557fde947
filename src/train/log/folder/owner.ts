/** The file in a folder that names the process which writes there. */

import { nodeModule } from "../../../leaves/node_module.ts";
import { markThisProcess, type ProcessMark } from "./process_mark.ts";

const { readdir, readFile, stat, writeFile } = /* @__PURE__ */ nodeModule("node:fs/promises");
const { join } = /* @__PURE__ */ nodeModule("node:path");

/** Name of the file. Files whose names begin with it belong to the lock too. */
export const OWNER_FILE = ".owner.json";

/** Holder of a folder. Plain JSON. */
export interface FolderOwner extends ProcessMark {
  /** ISO 8601. */
  readonly since: string;
  /** The command line, for messages. */
  readonly command: string;
  /** Differs each time that a lock is taken. */
  readonly nonce: string;
}

/** Result of {@link readOwner}: `unreadable` is a file without an owner in it, or one that cannot be read now. */
export type FoundOwner = FolderOwner | "unreadable" | undefined;

/** This process as an owner, from now on. */
export async function thisOwner(command: string): Promise<FolderOwner> {
  const since = new Date().toISOString();
  return { ...(await markThisProcess()), since, command, nonce: crypto.randomUUID() };
}

/** Undefined where the folder has no owner, or does not exist. */
export async function readOwner(folder: string): Promise<FoundOwner> {
  try {
    return parseOwner(await readFile(join(folder, OWNER_FILE), "utf8")) ?? "unreadable";
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return code === "ENOENT" || code === "ENOTDIR" ? undefined : "unreadable";
  }
}

/** Undefined where the text is no owner. */
export function parseOwner(text: string): FolderOwner | undefined {
  try {
    const owner = JSON.parse(text) as FolderOwner | null;
    return typeof owner?.nonce === "string" && typeof owner.pid === "number" ? owner : undefined;
  } catch {
    return undefined;
  }
}

/** @param options.flag `wx` fails where the file exists. */
export async function writeOwner(
  file: string,
  owner: FolderOwner,
  { flag = "w" }: { flag?: "w" | "wx" } = {},
): Promise<void> {
  await writeFile(file, `${JSON.stringify(owner)}\n`, { flag });
}

/** `PID 12 on host, since 2026-01-01T00:00:00.000Z (grpu train ...)`. */
export function describeOwner({ pid, host, since, command }: FolderOwner): string {
  return `PID ${pid} on ${host}, since ${since} (${command})`;
}

const SECRET = /(key|token|secret|password|passwd|credentials?)$/i;

/** A command line without the secrets in it: `api_key=…`, `--api-key …`. */
export function commandOf(args: readonly string[]): string {
  const shown = args.map((arg, i) => {
    const [name, value] = arg.split("=", 2);
    const isFlag = args[i - 1]?.startsWith("-") ?? false;
    if (isFlag && SECRET.test(args[i - 1]!)) return "…";
    return value !== undefined && SECRET.test(name!) ? `${name}=…` : arg;
  });
  return shown.join(" ");
}

/** Milliseconds since a file's last change, by this host's clock; 0 where it is gone. */
export async function ageOf(file: string): Promise<number> {
  const found = await stat(file).catch(() => undefined);
  return found ? Date.now() - found.mtimeMs : 0;
}

/** Names in a folder except the lock's files; empty for a folder that does not exist. */
export async function namesIn(folder: string): Promise<string[]> {
  const names = await readdir(folder).catch(() => []);
  return names.filter((name) => !name.startsWith(OWNER_FILE));
}
