/**
 * Scalars for TensorBoard: a file of `Event` messages in TFRecord framing.
 * @see tensorflow/core/util/event.proto, tensorflow/core/lib/io/record_writer.cc
 */

import { concatBytes, ProtobufWriter } from "../../../leaves/protobuf.ts";
import type { LogRecord } from "../logger.ts";
import { AppendedFile } from "./appended_file.ts";

export const EVENTS_FILE = "events.out.tfevents.0.grpu";

/** One scalar for each metric and step. Each phase counts its own steps; tags are the metrics' names. */
export class TensorBoardFile extends AppendedFile {
  protected encode({ step, metrics }: LogRecord): Uint8Array {
    const time = Date.now() / 1000;
    const events = [scalarsEvent(metrics, { step, time })];
    if (this.size() === 0) events.unshift(versionEvent(time));
    return concatBytes(events.map(framed));
  }
}

/** The first record of a file: its format version. */
function versionEvent(time: number): Uint8Array {
  return new ProtobufWriter().double(1, time).text(3, "brain.Event:2").finish();
}

function scalarsEvent(metrics: LogRecord["metrics"], at: { step: number; time: number }): Uint8Array {
  const summary = new ProtobufWriter();
  for (const [tag, value] of Object.entries(metrics))
    summary.message(1, new ProtobufWriter().text(1, tag).float(2, value));
  return new ProtobufWriter().double(1, at.time).varint(2, at.step).message(5, summary).finish();
}

/** Length, its checksum, the record, its checksum. */
function framed(record: Uint8Array): Uint8Array {
  const length = new Uint8Array(8);
  new DataView(length.buffer).setUint32(0, record.length, true);
  return concatBytes([length, checksum(length), record, checksum(record)]);
}

/** CRC-32C, rotated and offset, as TFRecord masks it. */
function checksum(bytes: Uint8Array): Uint8Array {
  const crc = crc32c(bytes);
  const masked = (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
  const out = new Uint8Array(4);
  new DataView(out.buffer).setUint32(0, masked, true);
  return out;
}

/** The Castagnoli polynomial, reflected. */
const POLYNOMIAL = 0x82f63b78;

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ POLYNOMIAL : value >>> 1;
  return value;
});

export function crc32c(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 0xff]! ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}
