/** Checkpoints on disk by their tinker:// paths, found again by the next server. Records are listed once they are written. */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp } from "node:fs/promises";
import { join } from "node:path";
import { writeFolder } from "../../../engine/model/files/disk.ts";
import { FolderLock } from "../../../train/log/folder/lock.ts";
import { type CheckpointPath, foldersOfRun, formatPath } from "../checkpoint_path.ts";
import { Refusal } from "../protocol/outcome.ts";
import type { CheckpointRecord, RunRecord } from "./record.ts";
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
  type ServiceState,
} from "./state_folder.ts";

export class Checkpoints {
  readonly root: string;
  /** Unreadable records; they stay on disk unchanged. */
  readonly damage: readonly Damage[];
  private readonly runs: Map<string, RunRecord>;
  private readonly records: Map<string, CheckpointRecord>;
  private readonly log: (line: string) => void;
  private readonly lock: FolderLock;
  /** Folders that could not be deleted yet. */
  private readonly leftOver = new Set<string>();
  private readonly logged = new Set<string>();
  private changes: Promise<unknown> = Promise.resolve();

  private constructor(root: string, of: ServiceState & { log: (line: string) => void; lock: FolderLock }) {
    this.root = root;
    this.runs = of.runs;
    this.records = of.records;
    this.damage = of.damage;
    this.log = of.log;
    this.lock = of.lock;
  }

  /**
   * Creates the folder if it is absent, locks it until {@link close}, and reads its records.
   * @param options.log takes a line for each thing that cannot be read or deleted
   * @throws ConfigError for a folder that cannot be used, or that another server uses.
   */
  static async open(root: string, options: { log?: (line: string) => void } = {}): Promise<Checkpoints> {
    await openStateFolder(root);
    const log = options.log ?? (() => {});
    const lock = await FolderLock.take(root, {
      advice: "Stop that server, or give this one another folder.",
      setting: "--checkpoints",
      // Not the whole command line, which may hold a key.
      command: "grpu serve tinker",
    });
    const store = new Checkpoints(root, { ...(await readState(root)), log, lock });
    for (const { path, reason } of store.damage)
      log(`cannot read ${path} in ${root}: ${reason}. It stays unchanged; repair it and restart the server.`);
    return store;
  }

  /** Unlocks the folder for another server. Nothing may be saved afterwards. */
  close(): void {
    this.lock.releaseNow();
  }

  allRuns(): RunRecord[] {
    return [...this.runs.values()].sort((a, b) => b.created.localeCompare(a.created));
  }

  findRun(id: string): RunRecord {
    const run = this.runs.get(id);
    if (run) return run;
    const damage = this.damage.find((entry) => entry.run === id);
    const why = damage ? `${damage.path} cannot be read (${damage.reason})` : "no run has that id";
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

  /** The checkpoints of one run or of all, newest first. */
  list(run?: string): CheckpointRecord[] {
    const records = [...this.records.values()].filter(
      (record) => (run === undefined || record.run === run) && !isExpired(record),
    );
    return records.sort((a, b) => b.time.localeCompare(a.time));
  }

  /**
   * The path of a run's checkpoint by its name alone.
   * @throws Refusal 404 if there is none, 400 if the run has training and sampler weights of that name.
   */
  named(run: string, name: string): CheckpointPath {
    const [found, other] = this.list(run).filter((record) => record.name === name);
    if (!found)
      throw new Refusal(404, `Cannot find the checkpoint ${name.slice(0, 200)} of the run ${run.slice(0, 200)}.`);
    if (other)
      throw new Refusal(
        400,
        `Cannot tell which checkpoint ${name} is meant: the run has ${formatPath(found)} and ${formatPath(other)}. Name it as ${found.kind}/${name} or ${other.kind}/${name}.`,
      );
    return found;
  }

  has(path: CheckpointPath): boolean {
    const record = this.records.get(formatPath(path));
    return record !== undefined && !isExpired(record);
  }

  /** @throws Refusal 404 for a checkpoint that does not exist or has expired. */
  find(path: CheckpointPath): { readonly dir: string; readonly record: CheckpointRecord } {
    const record = this.records.get(formatPath(path));
    if (record && !isExpired(record)) return { dir: this.folder(path), record };
    throw new Refusal(404, `Cannot find the checkpoint ${formatPath(path)}: it does not exist or has expired.`);
  }

  /** Weights to open. @throws Refusal as {@link find}, and 400 for encrypted files, which the server cannot read. */
  findReadable(path: CheckpointPath): { readonly dir: string; readonly record: CheckpointRecord } {
    const found = this.find(path);
    if (!found.record.isEncrypted) return found;
    throw new Refusal(
      400,
      `Cannot load ${formatPath(path)}: its files are encrypted to recipients of age. Load weights that were saved without age_encryption_recipients.`,
    );
  }

  /**
   * Reads the files of weights. Errors name the checkpoint, not the server's folder.
   * @throws Refusal as {@link findReadable}, and 404 where the files are deleted while they are read.
   */
  async read<T>(path: CheckpointPath, use: (dir: string, record: CheckpointRecord) => Promise<T>): Promise<T> {
    const { dir, record } = this.findReadable(path);
    try {
      return await use(dir, record);
    } catch (error) {
      this.find(path);
      const name = formatPath(path);
      if (!existsSync(dir)) throw new Refusal(404, `Cannot read the checkpoint ${name}: its files were deleted.`);
      if (error instanceof Error) error.message = error.message.replaceAll(dir, name);
      throw error;
    }
  }

  /**
   * Saves what `write` puts into an empty folder. The checkpoint appears complete or not at all; until then the one that
   * it replaces stays.
   * @throws Refusal 400 if the path is taken and `overwrite` is not set.
   */
  async save(
    path: CheckpointPath,
    contents: {
      step: number;
      /** When it was saved, for a copy. Default: now. */
      time?: string | undefined;
      ttlSeconds?: number | undefined;
      overwrite: boolean;
      isEncrypted?: boolean | undefined;
      userMetadata?: Readonly<Record<string, unknown>> | undefined;
      write: (dir: string) => Promise<void>;
    },
  ): Promise<CheckpointRecord> {
    if (!contents.overwrite && this.has(path))
      throw new Refusal(
        400,
        `Cannot save ${formatPath(path)}: there is already a checkpoint of that name. Choose another name, or set overwrite.`,
      );
    const parent = join(this.runFolder(path.run), path.kind);
    await this.makeFolder(parent);
    // mkdtemp makes folders that only this user can read.
    const partial = await onDisk("save the checkpoint", parent, mkdtemp(join(parent, PARTIAL)));
    try {
      await contents.write(partial);
      const record = {
        ...path,
        time: contents.time ?? new Date().toISOString(),
        expiresAt: expiry(contents.ttlSeconds),
        isPublic: false,
        bytes: await closeFiles(partial),
        step: contents.step,
        userMetadata: contents.userMetadata,
        isEncrypted: contents.isEncrypted,
      };
      await this.putRecord(record, partial);
      await this.inTurn(() => this.publish(record, partial));
      return record;
    } finally {
      this.deleteLater(await deleted(partial));
    }
  }

  private async publish(record: CheckpointRecord, partial: string): Promise<void> {
    const [key, dir] = [formatPath(record), this.folder(record)];
    const isKnown = this.records.has(key);
    const replaced = replaceFolder(dir, { by: partial, isKnown });
    this.deleteLater(await onDisk("save the checkpoint", dir, replaced));
    this.records.set(key, record);
  }

  /** Changes the record of a checkpoint. With `ttlSeconds` null it never expires. */
  change(path: CheckpointPath, to: { isPublic?: boolean; ttlSeconds?: number | null }): Promise<CheckpointRecord> {
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

  /** @throws ConfigError if the disk refuses; the checkpoint then still exists. */
  remove(path: CheckpointPath): Promise<void> {
    return this.inTurn(() => this.removeKnown(this.find(path)));
  }

  private async removeKnown({ dir, record }: { dir: string; record: CheckpointRecord }): Promise<void> {
    await this.lock.check();
    this.deleteLater(await onDisk(`delete ${formatPath(record)}`, dir, removeFolder(dir)));
    this.records.delete(formatPath(record));
  }

  /** Deletes expired checkpoints. Failures are logged once and tried again by the next sweep. Never rejects. */
  async sweep(): Promise<void> {
    for (const [key, record] of this.records)
      if (isExpired(record))
        await this.inTurn(async () => {
          // A client may have changed or replaced it while this waited.
          const now = this.records.get(key);
          if (now && isExpired(now)) await this.removeKnown({ dir: this.folder(now), record: now });
        }).catch((error: Error) => this.logOnce(error.message));
    for (const dir of this.leftOver) if ((await deleted(dir)) === undefined) this.leftOver.delete(dir);
  }

  private async putRecord(record: CheckpointRecord, dir: string): Promise<void> {
    await this.lock.check();
    await writeFolder(dir, [{ name: RECORD, content: json(record), mode: 0o600 }]);
  }

  /** Runs changes on disk one after another. */
  private inTurn<T>(change: () => Promise<T>): Promise<T> {
    const done = this.changes.then(change);
    this.changes = done.catch(() => {});
    return done;
  }

  private deleteLater(dir: string | undefined): void {
    if (dir === undefined) return;
    this.leftOver.add(dir);
    this.logOnce(`cannot delete ${dir}: trying again every half minute.`);
  }

  private logOnce(line: string): void {
    if (!this.logged.has(line)) this.log(line);
    this.logged.add(line);
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
