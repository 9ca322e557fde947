/** The folder of a run whose training happens on a cluster: configuration, job, metrics, log, report. One process writes there. */
import { writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileError } from "../../../leaves/errors.ts";
import { toYaml } from "../../config/show.ts";
import { FolderLock } from "../../log/folder/lock.ts";
import { makeFolders } from "../../log/folder/make_folders.ts";
import { namesIn } from "../../log/folder/owner.ts";
import { placeAside } from "../../log/folder/place_aside.ts";
import { writeFacts } from "../../log/loggers/report_file.ts";
import { CONFIG_FILE, type RunFacts } from "../../log/run_files.ts";
import type { RunIo } from "../io.ts";
import { type Composition, runFolder } from "../session.ts";

const SETTING = "training.default_local_dir";
const UNKNOWN: RunFacts = { title: "", subtitle: "", total_steps: 0, started: "" };

export class ClusterFolder {
  readonly dir: string;
  private readonly lock: FolderLock;
  private readonly io: RunIo;
  private facts: RunFacts | undefined;

  private constructor(dir: string, lock: FolderLock, io: RunIo) {
    this.dir = dir;
    this.lock = lock;
    this.io = io;
  }

  /** Locks the folder. @throws {ConfigError} when another process writes there */
  static async open({ config }: Pick<Composition, "config">, io: RunIo): Promise<ClusterFolder> {
    const dir = runFolder(config);
    makeFolders(dirname(resolve(dir)), { act: `make the folder that ${SETTING} names` });
    const advice = `Wait until it has ended, or give this run a folder of its own with ${SETTING}=DIR.`;
    return new ClusterFolder(dir, await FolderLock.take(dir, { advice, setting: SETTING }), io);
  }

  /** Aborted when another process took the folder, or it was moved away. */
  get signal(): AbortSignal {
    return this.lock.signal;
  }

  /** Writes the configuration; an earlier run makes way. */
  async begin({ config, added }: Pick<Composition, "config" | "added">): Promise<void> {
    if ((await namesIn(this.dir)).length > 0) {
      const place = await placeAside(this.lock.folder);
      await this.lock.moveAside(place).catch((cause) => {
        throw fileError(cause, { act: "move the earlier run out of the way", file: this.dir }) ?? cause;
      });
      this.io.err(`Moved the earlier run from ${this.dir} to ${place}\n`);
    }
    await this.lock.check();
    // Without the head, the file would not compose again.
    const head = added.length > 0 ? `# @added ${JSON.stringify(added)}\n` : "";
    writeFileSync(join(this.dir, CONFIG_FILE), head + toYaml(config));
  }

  /** Writes `run.json`; a later call changes some of it. */
  async describe(facts: RunFacts | Pick<RunFacts, "total_steps">): Promise<void> {
    await this.lock.check();
    this.facts = { ...UNKNOWN, ...this.facts, ...facts };
    writeFacts(this.dir, this.facts);
  }

  /** Says how the run ended, as far as this process saw. */
  async end(outcome: Pick<RunFacts, "complete">): Promise<void> {
    await this.lock.check();
    if (this.facts) writeFacts(this.dir, { ...this.facts, ended: new Date().toISOString(), ...outcome });
  }

  async close(): Promise<void> {
    await this.lock.release();
  }
}
