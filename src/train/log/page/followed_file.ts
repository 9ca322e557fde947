/** Reads the lines that another process appends to a file, and notices when it starts over. */
import { closeSync, fstatSync, openSync, readSync, statSync } from "node:fs";
import { ConfigError } from "../../../leaves/errors.ts";

const CHUNK_BYTES = 1 << 20;
/** No run writes such a line; one that never ends would take all memory. */
const MOST_LINE_BYTES = 16 * CHUNK_BYTES;
/** Bytes before the place reached that must still be the same. */
const TAIL_BYTES = 64;

export class FollowedFile {
  private readonly file: string;
  private offset = 0;
  private tail = Buffer.alloc(0);
  /** Start of a line that has no end yet. */
  private rest = Buffer.alloc(0);
  private isSkipping = false;
  /** Lines that were left out for their length. */
  tooLong = 0;

  constructor(file: string) {
    this.file = file;
  }

  /**
   * Passes every new complete line to `onLine`. Calls `onReset` first when the file was truncated (by a resumed run) or
   * replaced: then all its lines follow again. A file that does not exist has no lines.
   * @throws {ConfigError} for a pipe or a device
   */
  poll(onLine: (line: string) => void, onReset: () => void): void {
    const file = openIfThere(this.file);
    if (file === undefined) return;
    try {
      if (!this.isContinued(file)) {
        this.offset = 0;
        this.tail = this.rest = Buffer.alloc(0);
        this.isSkipping = false;
        this.tooLong = 0;
        onReset();
      }
      this.readFrom(file, onLine);
    } finally {
      closeSync(file);
    }
  }

  private isContinued(file: number): boolean {
    if (this.offset === 0) return true;
    if (fstatSync(file).size < this.offset) return false;
    const now = Buffer.alloc(this.tail.length);
    readSync(file, now, 0, now.length, this.offset - now.length);
    return now.equals(this.tail);
  }

  private readFrom(file: number, onLine: (line: string) => void): void {
    const chunk = Buffer.alloc(CHUNK_BYTES);
    for (;;) {
      const count = readSync(file, chunk, 0, CHUNK_BYTES, this.offset);
      if (count === 0) return;
      this.offset += count;
      this.tail = Buffer.from(Buffer.concat([this.tail, chunk.subarray(0, count)]).subarray(-TAIL_BYTES));
      this.split(chunk.subarray(0, count), onLine);
    }
  }

  private split(chunk: Buffer, onLine: (line: string) => void): void {
    let from = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, from)) {
      const line = Buffer.concat([this.rest, chunk.subarray(from, end)]);
      if (!this.isSkipping && line.length > 0) onLine(line.toString("utf8"));
      this.rest = Buffer.alloc(0);
      this.isSkipping = false;
      from = end + 1;
    }
    if (this.isSkipping) return;
    this.rest = Buffer.concat([this.rest, chunk.subarray(from)]);
    if (this.rest.length <= MOST_LINE_BYTES) return;
    this.rest = Buffer.alloc(0);
    this.isSkipping = true;
    this.tooLong++;
  }
}

function openIfThere(file: string): number | undefined {
  try {
    checkRegular(file);
    return openSync(file, "r");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** A pipe would block the process, and a device may have no end. @throws {ConfigError} for one; ENOENT */
export function checkRegular(file: string): void {
  const found = statSync(file);
  // Opening a folder says what is wrong.
  if (found.isFile() || found.isDirectory()) return;
  throw new ConfigError("Cannot read the run: it is not a regular file. Name the folder of a run.", {
    file,
    kind: "data",
  });
}
