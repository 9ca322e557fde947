/** A log file that only grows, and that a resumed run cuts back to where its checkpoint was made. */
import { appendFileSync, existsSync, statSync, truncateSync } from "node:fs";
import { basename, dirname } from "node:path";
import { fileError } from "../../../leaves/errors.ts";
import { makeFolders } from "../folder/make_folders.ts";
import type { Logger, LogRecord } from "../logger.ts";

export abstract class AppendedFile implements Logger {
  readonly name: string;
  readonly file: string;
  private hasFolder = false;

  constructor(file: string) {
    this.name = basename(file);
    this.file = file;
  }

  protected abstract encode(record: LogRecord): string | Uint8Array;

  log(record: LogRecord): void {
    this.append(this.encode(record));
  }

  protected append(content: string | Uint8Array): void {
    if (content.length === 0) return;
    // Once: a folder that is moved away later is not made again.
    if (!this.hasFolder) makeFolders(dirname(this.file));
    this.hasFolder = true;
    try {
      appendFileSync(this.file, content, { mode: 0o600 });
    } catch (cause) {
      throw fileError(cause, { act: "write the run's log", file: this.file }) ?? cause;
    }
  }

  /** Bytes written so far, by earlier parts of the run too. */
  protected size(): number {
    return existsSync(this.file) ? statSync(this.file).size : 0;
  }

  async position(): Promise<number> {
    return this.size();
  }

  async rewind(position: number): Promise<void> {
    if (this.size() > position) truncateSync(this.file, position);
  }
}
