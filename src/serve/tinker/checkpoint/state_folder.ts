/**
 * The server's state folder: `SESSION/train-N/run.json`, and a folder per checkpoint with `checkpoint.json`, which is
 * written last. A name with a leading dot is unfinished work; `NAME~unreadable` is a damaged checkpoint whose name was
 * needed.
 */
import { chmod, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join, relative } from "node:path";
import { fileError } from "../../../leaves/errors.ts";
import { syncDirectory } from "../../../train/log/checkpoint/seal.ts";
import { makeFolders } from "../../../train/log/folder/make_folders.ts";
import { CHECKPOINT_KINDS, type CheckpointKind, formatPath, isName, runOfFolders } from "../checkpoint_path.ts";
import { type CheckpointRecord, type RunRecord, readCheckpointRecord, readRunRecord } from "./record.ts";

export const RECORD = "checkpoint.json";
export const RUN_RECORD = "run.json";
/** An unfinished save, and the suffix of the checkpoint that it replaces. */
export const PARTIAL = ".partial-";
const REPLACED = ".old";
const DELETED = ".deleted-";
const UNREADABLE = "~unreadable";
/** The server's own names in the state folder: sessions, and the lock. */
const OURS = /^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\.owner\.json.*)$/;

/** Something unreadable in the state folder, which stays unchanged. */
export interface Damage {
  /** Relative to the state folder. */
  readonly path: string;
  readonly reason: string;
  /** The training run, if this is its record. */
  readonly run?: string;
}

export interface ServiceState {
  readonly runs: Map<string, RunRecord>;
  readonly records: Map<string, CheckpointRecord>;
  readonly damage: Damage[];
}

/** Makes the state folder, readable for this user alone. @throws ConfigError that names the folder. */
export async function openStateFolder(root: string): Promise<void> {
  makeFolders(root, { act: "keep checkpoints" });
  const entries = await onDisk("read the checkpoints", root, readdir(root));
  // A folder with other content (a home, for instance) keeps its mode; only the server's folders in it change theirs.
  if (entries.every((name) => OURS.test(name))) await chmod(root, 0o700).catch(() => {});
}

/** Reads all records and finishes unfinished work. Unreadable folders are not changed. */
export async function readState(root: string): Promise<ServiceState> {
  const state: ServiceState = { runs: new Map(), records: new Map(), damage: [] };
  const list = (dir: string) => foldersIn(dir, (reason) => state.damage.push(damageAt(root, dir, reason)));
  for (const session of await list(root))
    for (const train of session.startsWith(".") ? [] : await list(join(root, session))) {
      const run = runOfFolders(session, train);
      if (run !== undefined) await readRun(state, { root, run, dir: join(root, session, train), list });
    }
  return state;
}

interface Place {
  readonly root: string;
  readonly run: string;
  readonly dir: string;
  readonly list: (dir: string) => Promise<string[]>;
}

async function readRun(state: ServiceState, at: Place): Promise<void> {
  for (const folder of [dirname(at.dir), at.dir]) await chmod(folder, 0o700).catch(() => {});
  try {
    state.runs.set(at.run, readRunRecord(await readFile(join(at.dir, RUN_RECORD), "utf8"), at.run));
  } catch (cause) {
    state.damage.push({ ...damageAt(at.root, join(at.dir, RUN_RECORD), cause), run: at.run });
  }
  for (const kind of CHECKPOINT_KINDS) {
    const dir = join(at.dir, kind);
    const each = async (name: string, read: (dir: string) => Promise<void>) =>
      read(join(dir, name)).catch((cause) => state.damage.push(damageAt(at.root, join(dir, name), cause)));
    // In this order a finished save comes before the older checkpoint that it replaces.
    for (const name of (await at.list(dir)).filter((entry) => entry.startsWith(".")).sort())
      await each(name, (entry) => finish(entry, { ...at, kind }));
    for (const name of (await at.list(dir)).filter((entry) => !entry.startsWith(".")))
      await each(name, async (entry) => {
        const record = await readRecord(entry, { ...at, kind });
        state.records.set(formatPath(record), record);
      });
  }
}

async function readRecord(dir: string, { run, kind }: { run: string; kind: CheckpointKind }) {
  const name = basename(dir);
  if (!isName(name)) throw new Error("it was set aside, or its name is not a checkpoint's");
  return readCheckpointRecord(await readFile(join(dir, RECORD), "utf8"), { run, kind, name });
}

/** Finishes a deletion or a save: a complete checkpoint moves to its place if that is free; any other folder is deleted. */
async function finish(dir: string, of: { run: string; kind: CheckpointKind }): Promise<void> {
  const name = basename(dir);
  if (name.startsWith(DELETED)) return rm(dir, { recursive: true, force: true });
  if (!name.startsWith(PARTIAL)) return;
  const text = await readFile(join(dir, RECORD), "utf8").catch(unlessMissing);
  if (text !== undefined) {
    const wanted = (JSON.parse(text) as { name?: unknown }).name;
    if (typeof wanted !== "string" || !isName(wanted)) throw new Error("its record has no name");
    readCheckpointRecord(text, { ...of, name: wanted });
    const place = join(dirname(dir), wanted);
    if (!(await exists(place))) return rename(dir, place);
  }
  await rm(dir, { recursive: true, force: true });
}

function damageAt(root: string, path: string, cause: unknown): Damage {
  const { code, message } = cause as NodeJS.ErrnoException;
  const missing = basename(path) === RUN_RECORD ? "it is missing" : `it has no ${RECORD}`;
  const reasons: Readonly<Record<string, string>> = { ENOENT: missing, EACCES: "this user must not read it" };
  return { path: relative(root, path) || ".", reason: reasons[code ?? ""] ?? code ?? message };
}

/** Names of the folders in a folder; none if it does not exist. */
async function foldersIn(dir: string, failed: (cause: unknown) => void): Promise<string[]> {
  const entries = await readdir(dir, { withFileTypes: true }).catch((cause) => {
    if (cause.code !== "ENOENT") failed(cause);
    return [];
  });
  return entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
}

function unlessMissing(cause: NodeJS.ErrnoException): undefined {
  if (cause.code !== "ENOENT") throw cause;
}

async function exists(path: string): Promise<boolean> {
  return (await stat(path).catch(unlessMissing)) !== undefined;
}

/** Makes a finished checkpoint's files readable for this user alone. @returns their size in bytes. */
export async function closeFiles(dir: string): Promise<number> {
  let sum = 0;
  for (const name of await readdir(dir)) {
    await chmod(join(dir, name), 0o600);
    sum += (await stat(join(dir, name))).size;
  }
  return sum;
}

/**
 * Replaces the folder `dir` with `by`. The old folder is then deleted if the server knows its content (`isKnown`), and
 * set aside otherwise.
 * @returns the folder that could not be deleted, if any.
 */
export async function replaceFolder(
  dir: string,
  { by, isKnown }: { by: string; isKnown: boolean },
): Promise<string | undefined> {
  const aside = isKnown ? `${by}${REPLACED}` : await freeName(`${dir}${UNREADABLE}`);
  const stoodAside = await rename(dir, aside).then(() => true, unlessMissing);
  try {
    await rename(by, dir);
  } catch (cause) {
    if (stoodAside) await rename(aside, dir);
    throw cause;
  }
  await syncDirectory(dirname(dir));
  return stoodAside && isKnown ? deleted(aside) : undefined;
}

async function freeName(wanted: string): Promise<string> {
  let name = wanted;
  for (let i = 2; await exists(name); i++) name = `${wanted}-${i}`;
  return name;
}

/**
 * Renames a folder, then deletes it, so that it disappears at once.
 * @returns the folder that could not be deleted, if any. @throws the disk's error if the folder is unchanged.
 */
export async function removeFolder(dir: string): Promise<string | undefined> {
  const name = `${DELETED}${basename(dir)}-${crypto.randomUUID().slice(0, 8)}`;
  const removed = join(dirname(dir), name);
  await rename(dir, removed).catch(unlessMissing);
  return deleted(removed);
}

/** @returns the folder if it cannot be deleted. */
export async function deleted(dir: string): Promise<string | undefined> {
  return rm(dir, { recursive: true, force: true }).then(
    () => undefined,
    () => dir,
  );
}

/** @throws ConfigError that describes the disk's error. */
export async function onDisk<T>(act: string, file: string, work: Promise<T>): Promise<T> {
  return work.catch((cause) => {
    throw fileError(cause, { act, file }) ?? cause;
  });
}
