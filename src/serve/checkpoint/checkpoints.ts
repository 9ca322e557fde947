/**
 * Checkpoints by their tinker:// paths, on disk: what one server has saved the next one finds. A record is shown only
 * after it has been written.
 */
import { mkdir, mkdtemp, open, readdir } from "node:fs/promises";
import { join } from "node:path";
import { FolderLock } from "../../log/folder/lock.ts";
import { writeFolder } from "../../model/files/disk.ts";
import { Refusal } from "../protocol/outcome.ts";
import {
  type CheckpointPath,
  type CheckpointRecord,
  foldersOfRun,
  formatPath,
  type RunRecord,
} from "./record.ts";
import {
  closeFiles,
  type Damage,
  deleted,
  onDisk,
  openStateFolder,
  PARTIAL,
  RECORD,
  RUN_RECORD,
  readState,
  removeFolder,
  replaceFolder,
  type State,
} from "./state_folder.ts";
import { tarHeader, tarPadding, tarTrailer } from "./tar.ts";

/** Not part of the weights that others read. */
const PRIVATE = /^(checkpoint\.json|base\.json|optimizer\.safetensors)$/;

export class Checkpoints {
  readonly root: string;
  /** What could not be read, and stays on disk as it is. */
  readonly damage: readonly Damage[];
  private readonly runs: Map<string, RunRecord>;
  private readonly records: Map<string, CheckpointRecord>;
  private readonly log: (line: string) => void;
  private readonly lock: FolderLock;
  /** Folders that are left to delete. */
  private readonly leftOver = new Set<string>();
  private readonly said = new Set<string>();
  private changes: Promise<unknown> = Promise.resolve();

  private constructor(root: string, of: State & { log: (line: string) => void; lock: FolderLock }) {
    this.root = root;
    this.runs = of.runs;
    this.records = of.records;
    this.damage = of.damage;
    this.log = of.log;
    this.lock = of.lock;
  }

  /**
   * Opens the folder, made when absent, locks it until {@link close}, and reads what is there.
   * @param options.log one line for each thing that cannot be read or deleted.
   * @throws ConfigError where there can be no such folder, or another server uses it.
   */
  static async open(root: string, options: { log?: (line: string) => void } = {}): Promise<Checkpoints> {
    await openStateFolder(root);
    const log = options.log ?? (() => {});
    const lock = await FolderLock.take(root, {
      advice: "Stop that server, or give this one another folder.",
      setting: "--checkpoints",
      // The command line itself may hold a key.
      command: "grpu serve tinker",
    });
    const store = new Checkpoints(root, { ...(await readState(root)), log, lock });
    for (const { path, reason } of store.damage)
      log(`cannot read ${path} in ${root}: ${reason}. It stays as it is; mend it and restart the server.`);
    return store;
  }

  /** Lets another server have the folder. Nothing may be saved any more. */
  close(): void {
    this.lock.releaseNow();
  }

  allRuns(): RunRecord[] {
    return [...this.runs.values()].sort((a, b) => b.created.localeCompare(a.created));
  }

  findRun(id: string): RunRecord {
    const run = this.runs.get(id);
    if (run) return run;
    const damage = this.damage.find((it) => it.run === id);
    const why = damage ? `${damage.path} cannot be read (${damage.reason})` : "there is none of that id";
    throw new Refusal(404, `Cannot find the training run ${id}: ${why}.`);
  }

  hasRun(id: string): boolean {
    return this.runs.has(id);
  }

  async putRun(run: RunRecord): Promise<void> {
    const content = json(run);
    await this.makeFolder(this.runFolder(run.id));
    await writeFolder(this.runFolder(run.id), [{ name: RUN_RECORD, content, mode: 0o600 }]);
    this.runs.set(run.id, run);
  }

  /** The newest first; of one run or of all. */
  list(run?: string): CheckpointRecord[] {
    const records = [...this.records.values()].filter(
      (record) => (run === undefined || record.run === run) && !isExpired(record),
    );
    return records.sort((a, b) => b.time.localeCompare(a.time));
  }

  has(path: CheckpointPath): boolean {
    const record = this.records.get(formatPath(path));
    return record !== undefined && !isExpired(record);
  }

  /** @throws Refusal 404 where there is none, or it has expired. */
  find(path: CheckpointPath): { readonly dir: string; readonly record: CheckpointRecord } {
    const record = this.records.get(formatPath(path));
    if (record && !isExpired(record)) return { dir: this.folder(path), record };
    throw new Refusal(
      404,
      `Cannot find the checkpoint ${formatPath(path)}: there is none, or it has expired.`,
    );
  }

  /**
   * Saves what `write` puts into an empty folder. It is there whole or not at all; one that it replaces stays until then.
   * @throws Refusal 400 where there is one of that path already and `overwrite` is not set.
   */
  async save(
    path: CheckpointPath,
    contents: {
      step: number;
      ttlSeconds?: number | undefined;
      overwrite: boolean;
      userMetadata?: Readonly<Record<string, unknown>> | undefined;
      write: (dir: string) => Promise<void>;
    },
  ): Promise<CheckpointRecord> {
    if (!contents.overwrite && this.has(path))
      throw new Refusal(
        400,
        `Cannot save ${formatPath(path)}: there is a checkpoint of that name. Choose another, or overwrite it.`,
      );
    const parent = join(this.runFolder(path.run), path.kind);
    await this.makeFolder(parent);
    // For this user alone, as mkdtemp makes folders.
    const partial = await onDisk("save the checkpoint", parent, mkdtemp(join(parent, PARTIAL)));
    try {
      await contents.write(partial);
      const record = {
        ...path,
        time: new Date().toISOString(),
        expiresAt: expiry(contents.ttlSeconds),
        isPublic: false,
        bytes: await closeFiles(partial),
        step: contents.step,
        userMetadata: contents.userMetadata,
      };
      await this.putRecord(record, partial);
      await this.inTurn(() => this.publish(record, partial));
      return record;
    } finally {
      this.leave(await deleted(partial));
    }
  }

  private async publish(record: CheckpointRecord, partial: string): Promise<void> {
    const [key, dir] = [formatPath(record), this.folder(record)];
    const isKnown = this.records.has(key);
    const replaced = replaceFolder(dir, { by: partial, isKnown });
    this.leave(await onDisk("save the checkpoint", dir, replaced));
    this.records.set(key, record);
  }

  /** Changes what is said of a checkpoint. `ttlSeconds` null: it never expires. */
  change(
    path: CheckpointPath,
    to: { isPublic?: boolean; ttlSeconds?: number | null },
  ): Promise<CheckpointRecord> {
    return this.inTurn(async () => {
      const { record, dir } = this.find(path);
      const changed = {
        ...record,
        isPublic: to.isPublic ?? record.isPublic,
        expiresAt: to.ttlSeconds === undefined ? record.expiresAt : expiry(to.ttlSeconds ?? undefined),
      };
      await this.putRecord(changed, dir);
      this.records.set(formatPath(path), changed);
      return changed;
    });
  }

  /** @throws ConfigError where the disk refuses: the checkpoint is then still there. */
  remove(path: CheckpointPath): Promise<void> {
    return this.inTurn(() => this.removeKnown(this.find(path)));
  }

  private async removeKnown({ dir, record }: { dir: string; record: CheckpointRecord }): Promise<void> {
    await this.lock.check();
    this.leave(await onDisk(`delete ${formatPath(record)}`, dir, removeFolder(dir)));
    this.records.delete(formatPath(record));
  }

  /** Deletes what has expired. What cannot be deleted is said once, and tried again the next time. Never rejects. */
  async sweep(): Promise<void> {
    for (const [key, record] of this.records)
      if (isExpired(record))
        await this.inTurn(async () => {
          // A client may have changed or replaced it meanwhile.
          const now = this.records.get(key);
          if (now && isExpired(now)) await this.removeKnown({ dir: this.folder(now), record: now });
        }).catch((error: Error) => this.sayOnce(error.message));
    for (const dir of this.leftOver) if ((await deleted(dir)) === undefined) this.leftOver.delete(dir);
  }

  /** The checkpoint's weights as others read them (PEFT's files for an adapter), as a tar archive. */
  async *archive(path: CheckpointPath): AsyncGenerator<Uint8Array> {
    const { dir } = this.find(path);
    for (const name of (await readdir(dir)).sort()) {
      if (PRIVATE.test(name)) continue;
      const file = await open(join(dir, name));
      try {
        const { size } = await file.stat();
        yield tarHeader(name, size);
        for await (const chunk of file.createReadStream({ autoClose: false })) yield chunk as Uint8Array;
        yield tarPadding(size);
      } finally {
        await file.close();
      }
    }
    yield tarTrailer();
  }

  private async putRecord(record: CheckpointRecord, dir: string): Promise<void> {
    await this.lock.check();
    await writeFolder(dir, [{ name: RECORD, content: json(record), mode: 0o600 }]);
  }

  /** Changes to what is on disk go one after another. */
  private inTurn<T>(change: () => Promise<T>): Promise<T> {
    const done = this.changes.then(change);
    this.changes = done.catch(() => {});
    return done;
  }

  private leave(dir: string | undefined): void {
    if (dir === undefined) return;
    this.leftOver.add(dir);
    this.sayOnce(`cannot delete ${dir}: it is tried again every half minute.`);
  }

  private sayOnce(line: string): void {
    if (!this.said.has(line)) this.log(line);
    this.said.add(line);
  }

  private async makeFolder(dir: string): Promise<void> {
    await this.lock.check();
    await onDisk("save the checkpoint", dir, mkdir(dir, { recursive: true, mode: 0o700 }));
  }

  private folder({ run, kind, name }: CheckpointPath): string {
    return join(this.runFolder(run), kind, name);
  }

  private runFolder(run: string): string {
    return join(this.root, ...foldersOfRun(run));
  }
}

function json(record: object): string {
  return `${JSON.stringify(record, null, 2)}\n`;
}

function expiry(ttlSeconds: number | undefined): string | undefined {
  return ttlSeconds === undefined ? undefined : new Date(Date.now() + ttlSeconds * 1000).toISOString();
}

function isExpired({ expiresAt }: CheckpointRecord): boolean {
  return expiresAt !== undefined && Date.parse(expiresAt) <= Date.now();
}
