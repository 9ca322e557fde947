/**
 * Checkpoints on disk, by their tinker:// paths: a folder each, with a JSON file that is written last. What a server
 * has saved the next one finds.
 */
import { mkdir, mkdtemp, open, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { TrainerConfig } from "../engine.ts";
import { writeFolder } from "../model/files.ts";
import { Refusal } from "./problem.ts";
import { tarHeader, tarPadding, tarTrailer } from "./tar.ts";

export type CheckpointKind = "weights" | "sampler_weights";

/** What a tinker:// path says. */
export interface CheckpointPath {
  readonly run: string;
  readonly kind: CheckpointKind;
  readonly name: string;
}

export interface CheckpointRecord extends CheckpointPath {
  /** ISO 8601, as every time here. */
  readonly time: string;
  readonly expiresAt?: string;
  readonly isPublic: boolean;
  readonly bytes: number;
  readonly step: number;
  readonly userMetadata?: Readonly<Record<string, unknown>>;
}

/** A training client, as it is remembered. */
export interface RunRecord {
  readonly id: string;
  readonly session: string;
  readonly baseModel: string;
  readonly config: TrainerConfig;
  readonly userMetadata?: Readonly<Record<string, unknown>>;
  readonly created: string;
  readonly lastRequest: string;
}

const RUN = /^([A-Za-z0-9][A-Za-z0-9-]{0,63}):train:(\d{1,9})$/;
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
const RECORD = "checkpoint.json";
const RUN_RECORD = "run.json";
/** Not part of the weights that others read. */
const PRIVATE = /^(checkpoint\.json|optimizer\.safetensors)$/;

/** `tinker://RUN/weights/NAME`. */
export function formatPath({ run, kind, name }: CheckpointPath): string {
  return `tinker://${run}/${kind}/${name}`;
}

/** @throws Refusal 400 for anything but `tinker://RUN/weights/NAME` or `tinker://RUN/sampler_weights/NAME`. */
export function parsePath(path: string): CheckpointPath {
  const [run, kind, name, ...rest] = path.startsWith("tinker://") ? path.slice(9).split("/") : [];
  const isKind = kind === "weights" || kind === "sampler_weights";
  if (isKind && rest.length === 0 && RUN.test(run) && NAME.test(name)) return { run, kind, name };
  throw new Refusal(
    400,
    `Cannot find the checkpoint as its path must be tinker://RUN/weights/NAME or tinker://RUN/sampler_weights/NAME: ${path.slice(0, 200)}`,
  );
}

/** @throws Refusal 400 for a name that is no plain file name. */
export function checkName(name: string): string {
  if (NAME.test(name)) return name;
  throw new Refusal(
    400,
    `Cannot save under the name ${JSON.stringify(name.slice(0, 200))}: use 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit first.`,
  );
}

export class Checkpoints {
  readonly root: string;
  private readonly runs = new Map<string, RunRecord>();
  private readonly records = new Map<string, CheckpointRecord>();

  private constructor(root: string) {
    this.root = root;
  }

  /** Opens the folder, made when absent, and reads what is there. */
  static async open(root: string): Promise<Checkpoints> {
    const store = new Checkpoints(root);
    await mkdir(root, { recursive: true });
    for (const session of await folders(root))
      for (const train of await folders(join(root, session))) await store.readRun(join(root, session, train));
    return store;
  }

  private async readRun(dir: string): Promise<void> {
    const run = await readJson<RunRecord>(join(dir, RUN_RECORD));
    if (!run) return;
    this.runs.set(run.id, run);
    for (const kind of ["weights", "sampler_weights"] as const)
      for (const name of await folders(join(dir, kind))) {
        const record = await readJson<CheckpointRecord>(join(dir, kind, name, RECORD));
        // A folder of another name, or without a record, is one whose writing was cut short.
        if (record?.name === name) this.records.set(formatPath(record), record);
        else await rm(join(dir, kind, name), { recursive: true, force: true });
      }
  }

  allRuns(): RunRecord[] {
    return [...this.runs.values()].sort((a, b) => b.created.localeCompare(a.created));
  }

  findRun(id: string): RunRecord {
    const run = this.runs.get(id);
    if (run) return run;
    throw new Refusal(404, `Cannot find the training run ${id}: there is none of that id.`);
  }

  async putRun(run: RunRecord): Promise<void> {
    this.runs.set(run.id, run);
    const content = `${JSON.stringify(run, null, 2)}\n`;
    await writeFolder(this.runFolder(run.id), [{ name: RUN_RECORD, content }]);
  }

  /** The newest first; of one run or of all. */
  list(run?: string): CheckpointRecord[] {
    const records = [...this.records.values()].filter(
      (record) => (run === undefined || record.run === run) && !isExpired(record),
    );
    return records.sort((a, b) => b.time.localeCompare(a.time));
  }

  has(path: CheckpointPath): boolean {
    return this.records.has(formatPath(path));
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
      ttlSeconds?: number;
      overwrite: boolean;
      userMetadata?: Readonly<Record<string, unknown>>;
      write: (dir: string) => Promise<void>;
    },
  ): Promise<CheckpointRecord> {
    if (!contents.overwrite && this.has(path) && !isExpired(this.records.get(formatPath(path))!))
      throw new Refusal(
        400,
        `Cannot save ${formatPath(path)} as there is a checkpoint of that name: choose another, or overwrite it.`,
      );
    const parent = join(this.runFolder(path.run), path.kind);
    await mkdir(parent, { recursive: true });
    const partial = await mkdtemp(join(parent, ".partial-"));
    try {
      await contents.write(partial);
      const record = {
        ...path,
        time: new Date().toISOString(),
        expiresAt: expiry(contents.ttlSeconds),
        isPublic: false,
        bytes: await sizeOf(partial),
        step: contents.step,
        userMetadata: contents.userMetadata,
      };
      await this.putRecord(record, partial);
      await replaceFolder(this.folder(path), partial);
      this.records.set(formatPath(path), record);
      return record;
    } finally {
      await rm(partial, { recursive: true, force: true });
    }
  }

  /** Changes what is said of a checkpoint. `ttlSeconds` null: it never expires. */
  async change(
    path: CheckpointPath,
    to: { isPublic?: boolean; ttlSeconds?: number | null },
  ): Promise<CheckpointRecord> {
    const { record, dir } = this.find(path);
    const changed = {
      ...record,
      isPublic: to.isPublic ?? record.isPublic,
      expiresAt: to.ttlSeconds === undefined ? record.expiresAt : expiry(to.ttlSeconds ?? undefined),
    };
    await this.putRecord(changed, dir);
    this.records.set(formatPath(path), changed);
    return changed;
  }

  async remove(path: CheckpointPath): Promise<void> {
    const { dir } = this.find(path);
    this.records.delete(formatPath(path));
    await rm(dir, { recursive: true, force: true });
  }

  /** Deletes what has expired. */
  async sweep(): Promise<void> {
    for (const [key, record] of this.records) {
      if (!isExpired(record)) continue;
      this.records.delete(key);
      await rm(this.folder(record), { recursive: true, force: true });
    }
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
    await writeFolder(dir, [{ name: RECORD, content: `${JSON.stringify(record, null, 2)}\n` }]);
  }

  private folder({ run, kind, name }: CheckpointPath): string {
    return join(this.runFolder(run), kind, name);
  }

  private runFolder(run: string): string {
    const [, session, number] = RUN.exec(run) ?? [];
    if (session === undefined) throw new Refusal(404, `Cannot find the training run ${run.slice(0, 200)}.`);
    return join(this.root, session, `train-${number}`);
  }
}

function expiry(ttlSeconds: number | undefined): string | undefined {
  return ttlSeconds === undefined ? undefined : new Date(Date.now() + ttlSeconds * 1000).toISOString();
}

function isExpired({ expiresAt }: CheckpointRecord): boolean {
  return expiresAt !== undefined && Date.parse(expiresAt) <= Date.now();
}

/** Puts `by` in the place of `dir`, which stands aside until then. */
async function replaceFolder(dir: string, by: string): Promise<void> {
  const aside = `${by}.old`;
  const stoodAside = await rename(dir, aside).then(
    () => true,
    () => false,
  );
  await rename(by, dir);
  if (stoodAside) await rm(aside, { recursive: true, force: true });
}

async function folders(dir: string): Promise<string[]> {
  const entries = await readdir(dir, { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
}

async function readJson<T>(file: string): Promise<T | undefined> {
  try {
    return JSON.parse(await readFile(file, "utf8")) as T;
  } catch {
    return undefined;
  }
}

async function sizeOf(dir: string): Promise<number> {
  let sum = 0;
  for (const name of await readdir(dir)) sum += (await stat(join(dir, name))).size;
  return sum;
}
