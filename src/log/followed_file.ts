/** Reads the lines that another process appends to a file, and notices when it starts over. */
import { closeSync, fstatSync, openSync, readSync } from "node:fs";

const CHUNK_BYTES = 1 << 20;
/** Bytes before the place reached that must still be the same. */
const TAIL_BYTES = 64;

export class FollowedFile {
  private readonly file: string;
  private offset = 0;
  private tail = Buffer.alloc(0);
  private rest = Buffer.alloc(0);

  constructor(file: string) {
    this.file = file;
  }

  /**
   * Hands every whole line that is new to `onLine`. `onReset` comes first when the file was cut back, as a resumed run
   * does, or replaced: all its lines come again. A file that is not there has no lines.
   */
  poll(onLine: (line: string) => void, onReset: () => void): void {
    const file = openIfThere(this.file);
    if (file === undefined) return;
    try {
      if (!this.isContinued(file)) {
        this.offset = 0;
        this.tail = this.rest = Buffer.alloc(0);
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
      const bytes = Buffer.concat([this.rest, chunk.subarray(0, count)]);
      this.tail = Buffer.from(Buffer.concat([this.tail, chunk.subarray(0, count)]).subarray(-TAIL_BYTES));
      let from = 0;
      for (let end = bytes.indexOf(10); end >= 0; end = bytes.indexOf(10, from)) {
        if (end > from) onLine(bytes.toString("utf8", from, end));
        from = end + 1;
      }
      this.rest = Buffer.from(bytes.subarray(from));
    }
  }
}

function openIfThere(file: string): number | undefined {
  try {
    return openSync(file, "r");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
