/**
 * A run as Weights & Biases keeps it on disk: a log of protocol buffers in LevelDB's framing, which `wandb sync`
 * uploads and `wandb leet` shows. Written against the published formats; test/train/log/wandb_test.ts has Python's reader
 * read it where that is installed.
 * @see https://github.com/google/leveldb/blob/main/doc/log_format.md
 * @see https://github.com/wandb/wandb/blob/main/wandb/proto/wandb_internal.proto
 */
import { dirname, join } from "node:path";
import { crc32 } from "node:zlib";
import { concatBytes, ProtobufWriter } from "../../../leaves/protobuf.ts";
import { makeFolders } from "../folder/make_folders.ts";
import type { LogRecord } from "../logger.ts";
import { AppendedFile } from "./appended_file.ts";

export interface WandbRun {
  readonly id: string;
  readonly project: string;
  /** Name of the run. */
  readonly name: string;
  readonly entity?: string;
  /** Configuration by key; values may be nested. */
  readonly config: Readonly<Record<string, unknown>>;
  /** Steps before the first training step: W&B wants one count for all phases. */
  readonly warmupSteps: number;
}

/** Fields of `Record`. */
const RECORD = { history: 2, summary: 3, run: 17, exit: 18, header: 21 } as const;

/** The oldest reader of these records, from W&B's own writer. */
const MIN_CONSUMER = "0.70.0";

/** One row per step: a validation shares the row of the step that it follows. */
export class WandbFile extends AppendedFile {
  private readonly run: WandbRun;
  private row: { step: number; metrics: Record<string, number> } | undefined;
  private readonly started = Date.now() / 1000;

  constructor(file: string, run: WandbRun) {
    super(file);
    this.run = run;
  }

  /** Rows that are whole; what came last may get more. */
  protected encode({ phase, step, metrics }: LogRecord): Uint8Array {
    const at = wandbStep(this.run, { phase, step });
    const done = this.row && this.row.step !== at ? this.closeRow() : [];
    this.row = { step: at, metrics: { ...this.row?.metrics, ...metrics } };
    return this.framedAll([...this.opening(), ...done]);
  }

  private closeRow(): Uint8Array[] {
    if (!this.row) return [];
    const { step, metrics } = this.row;
    const now = Date.now() / 1000;
    const finite = Object.entries(metrics).filter(([, value]) => Number.isFinite(value));
    const row = { ...Object.fromEntries(finite), _step: step, _timestamp: now, _runtime: now - this.started };
    this.row = undefined;
    const history = jsonItems(row).message(2, new ProtobufWriter().varint(1, step));
    return [record(RECORD.history, history), record(RECORD.summary, jsonItems(row))];
  }

  /** The first records of a file: what it is, and which run. */
  private opening(): Uint8Array[] {
    if (this.size() > 0) return [];
    // Where `wandb sync` looks for a run's own files.
    makeFolders(join(dirname(this.file), "files"));
    const { id, project, name, entity, config } = this.run;
    const now = Math.floor(Date.now() / 1000);
    const version = new ProtobufWriter().text(1, "grpu").text(2, MIN_CONSUMER);
    const run = new ProtobufWriter().text(1, id);
    if (entity) run.text(2, entity);
    run.text(3, project).message(4, jsonItems(config)).text(8, name).message(17, new ProtobufWriter().varint(1, now));
    return [record(RECORD.header, new ProtobufWriter().message(1, version)), record(RECORD.run, run)];
  }

  private framedAll(records: readonly Uint8Array[]): Uint8Array {
    const parts: Uint8Array[] = [];
    let at = this.size();
    if (at === 0 && records.length > 0) at = put(parts, FILE_HEADER, at);
    for (const each of records) for (const part of framed(each, at)) at = put(parts, part, at);
    return concatBytes(parts);
  }

  private write(records: readonly Uint8Array[]): void {
    this.append(this.framedAll([...this.opening(), ...records]));
  }

  override async position(): Promise<number> {
    this.write(this.closeRow());
    return super.position();
  }

  override async rewind(position: number): Promise<void> {
    this.row = undefined;
    await super.rewind(position);
  }

  finish(): void {
    const runtime = Math.floor(Date.now() / 1000 - this.started);
    this.write([...this.closeRow(), record(RECORD.exit, new ProtobufWriter().varint(2, runtime))]);
  }
}

/** W&B's steps never fall: warm-up first, then training; validation stands at the step it follows. */
export function wandbStep(
  { warmupSteps }: Pick<WandbRun, "warmupSteps">,
  { phase, step }: Pick<LogRecord, "phase" | "step">,
): number {
  return phase === "warmup" ? step : warmupSteps + step;
}

/** Keys with their values as JSON: the items of `HistoryRecord`, `SummaryRecord` and `ConfigRecord`. */
function jsonItems(values: Readonly<Record<string, unknown>>): ProtobufWriter {
  const items = new ProtobufWriter();
  for (const [key, value] of Object.entries(values))
    items.message(1, new ProtobufWriter().text(1, key).text(16, JSON.stringify(value) ?? "null"));
  return items;
}

function record(field: number, content: ProtobufWriter): Uint8Array {
  return new ProtobufWriter().message(field, content).finish();
}

// ---- LevelDB's log: blocks of 32 KiB, records split over them ----------------------------------------------------

const FILE_HEADER = Uint8Array.of(0x3a, 0x57, 0x26, 0x42, 0xe1, 0xbe, 0); // ":W&B", 0xbee1, version 0
const BLOCK_BYTES = 32_768;
const HEADER_BYTES = 7;
const KIND = { full: 1, first: 2, middle: 3, last: 4 } as const;

/** Parts to write from byte `offset` of the file on: padding where no header fits, and the record's fragments. */
function* framed(data: Uint8Array, offset: number): Generator<Uint8Array> {
  let left = BLOCK_BYTES - (offset % BLOCK_BYTES);
  if (left < HEADER_BYTES) {
    yield new Uint8Array(left);
    left = BLOCK_BYTES;
  }
  let from = 0;
  // The first may hold nothing, where only a header fits into the block.
  for (let isFirst = true; isFirst || from < data.length; isFirst = false) {
    const end = Math.min(from + left - HEADER_BYTES, data.length);
    const isLast = end === data.length;
    const kind = isFirst ? (isLast ? KIND.full : KIND.first) : isLast ? KIND.last : KIND.middle;
    yield fragment(kind, data.subarray(from, end));
    from = end;
    left = BLOCK_BYTES;
  }
}

/** Checksum (W&B's is plain CRC-32, of kind and data), length, kind, data. */
function fragment(kind: number, data: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(HEADER_BYTES + data.length);
  const view = new DataView(bytes.buffer);
  bytes[6] = kind;
  bytes.set(data, HEADER_BYTES);
  view.setUint32(0, crc32(bytes.subarray(6)), true);
  view.setUint16(4, data.length, true);
  return bytes;
}

function put(parts: Uint8Array[], part: Uint8Array, at: number): number {
  parts.push(part);
  return at + part.length;
}
