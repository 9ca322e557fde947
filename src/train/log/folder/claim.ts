/** Decides which of several processes gets a folder: the first, or the one that replaces an owner that is gone. */
import { ConfigError } from "../../../leaves/errors.ts";
import { nodeModule } from "../../../leaves/node_module.ts";
import {
  ageOf,
  describeOwner,
  type FolderOwner,
  type FoundOwner,
  OWNER_FILE,
  parseOwner,
  readOwner,
  writeOwner,
} from "./owner.ts";
import { isFromHere, isRunning } from "./process_mark.ts";

const { link, mkdir, readdir, readFile, rename, rm, stat } = /* @__PURE__ */ nodeModule("node:fs/promises");
const { dirname, join } = /* @__PURE__ */ nodeModule("node:path");

export interface FolderLockOptions {
  /** Advice for a folder that is in use: `Give this run another folder.`. */
  readonly advice: string;
  /** The setting that names the folder, for the message. */
  readonly setting?: string;
  /** Default: this process's command line, without the secrets in it. */
  readonly command?: string;
  /** Milliseconds between two heartbeats. Default 5,000. */
  readonly heartbeatMs?: number;
  /** Age of the last heartbeat, in ms, after which an owner on another host may be gone. Default 60,000. */
  readonly staleMs?: number;
}

type Settled = FolderLockOptions & Required<Pick<FolderLockOptions, "heartbeatMs" | "staleMs">>;

/** Tries to settle which of several processes gets the folder. */
const ATTEMPTS = 50;
const RETRY_MS = 40;
/** A take-over takes milliseconds; one as old as this crashed, where its process cannot be looked up. */
const TAKEOVER_MS = 10_000;
/** Heartbeats for which an owner on another host is watched before its lock is taken over. */
const WATCHED_HEARTBEATS = 3;

/** Makes `owner` the owner of the folder. @throws {ConfigError} when the folder has an owner that still runs. */
export async function claim(folder: string, owner: FolderOwner, options: Settled): Promise<void> {
  const file = join(folder, OWNER_FILE);
  const draft = `${file}.${owner.nonce}`;
  try {
    // While another process takes the folder over, attempts do not count, unless it does not get on.
    const patience = Date.now() + 2 * TAKEOVER_MS;
    for (let attempt = 1; attempt <= ATTEMPTS; ) {
      await makeFolder(folder);
      if (await isFirst(file, { draft, owner })) return;
      const found = await readOwner(folder);
      if (found !== undefined && (await isGone(file, found, options))) {
        const taken = await takeOver(file, { draft, found, owner });
        if (taken === "ours") return;
        if (taken === "free" || Date.now() > patience) attempt++;
      } else if (found !== undefined && found !== "unreadable") throw refusal(folder, found, options);
      else attempt++;
      await pause(RETRY_MS);
    }
  } finally {
    await rm(draft, { force: true });
  }
  throw new ConfigError(
    `Cannot lock the folder ${folder}: ${file} names no owner. Delete that file if no process uses the folder.`,
    { path: options.setting },
  );
}

/** Makes the file unless there is one. Of several processes one succeeds. */
async function isFirst(file: string, { draft, owner }: { draft: string; owner: FolderOwner }): Promise<boolean> {
  try {
    await writeOwner(draft, owner);
    await link(draft, file);
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // ENOENT: the folder's owner moved it between two operations.
    if (code === "EEXIST" || code === "ENOENT") return false;
    // Anything else may be a file system without hard links. A reader may meet this file before its text is there.
    return unlessThere(writeOwner(file, owner, { flag: "wx" }));
  }
}

/**
 * Replaces the file of an owner that is gone. Of several processes one succeeds, by making a file named after that owner.
 * @returns `others` while another process does it
 */
async function takeOver(
  file: string,
  { draft, found, owner }: { draft: string; found: FoundOwner; owner: FolderOwner },
): Promise<"ours" | "others" | "free"> {
  const token = `${file}.after-${nonceOf(found)}`;
  if (!(await unlessThere(writeOwner(token, owner, { flag: "wx" })))) {
    if (!(await isAbandoned(token))) return "others";
    await rm(token, { force: true });
    return "free";
  }
  try {
    if (nonceOf(await readOwner(dirname(file))) !== nonceOf(found)) return "free";
    await rename(draft, file);
    return "ours";
  } catch (error) {
    // The draft was swept away by one that was quicker.
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return "free";
    throw error;
  } finally {
    await rm(token, { force: true });
  }
}

/** Whether the process that makes a take-over's file was killed meanwhile, or the file is gone. */
async function isAbandoned(token: string): Promise<boolean> {
  const text = await readFile(token, "utf8").catch(() => undefined);
  if (text === undefined) return true;
  const taker = parseOwner(text);
  if (taker && (await isFromHere(taker))) return !(await isRunning(taker));
  return (await ageOf(token)) > TAKEOVER_MS;
}

/** Removes the drafts of processes that were killed while they took the folder; those that still try write theirs again. */
export async function sweep(folder: string, { nonce }: FolderOwner): Promise<void> {
  const names = (await readdir(folder)).filter((name) => name.startsWith(`${OWNER_FILE}.`));
  for (const name of names) if (!name.endsWith(nonce)) await rm(join(folder, name), { force: true });
}

function nonceOf(found: FoundOwner): string | undefined {
  return typeof found === "object" ? found.nonce : found;
}

/** Whether the owner no longer runs. */
async function isGone(file: string, found: FoundOwner, options: Settled): Promise<boolean> {
  if (typeof found === "object" && (await isFromHere(found))) return !(await isRunning(found));
  // A time far in the future does not count as a heartbeat: a clock is wrong.
  if (Math.abs(await ageOf(file)) <= options.staleMs) return false;
  return isSilent(file, options);
}

/** Watches for heartbeats, independent of the two hosts' clocks. */
async function isSilent(file: string, { heartbeatMs }: Settled): Promise<boolean> {
  const before = await stat(file).catch(() => undefined);
  await pause(WATCHED_HEARTBEATS * heartbeatMs);
  const after = await stat(file).catch(() => undefined);
  return before !== undefined && before.mtimeMs === after?.mtimeMs;
}

function refusal(folder: string, owner: FolderOwner, { advice, setting }: Settled): ConfigError {
  return new ConfigError(`Cannot write to the folder ${folder}: it is in use by ${describeOwner(owner)}. ${advice}`, {
    path: setting,
  });
}

/** False where the file to be made exists. */
async function unlessThere(made: Promise<void>): Promise<boolean> {
  try {
    await made;
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** True when it made the folder. */
export async function makeFolder(folder: string): Promise<boolean> {
  try {
    await mkdir(folder);
    return true;
  } catch (error) {
    const isThere = (error as NodeJS.ErrnoException).code === "EEXIST" && (await stat(folder)).isDirectory();
    if (isThere) return false;
    throw error;
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
