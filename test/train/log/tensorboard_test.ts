import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { crc32c, EVENTS_FILE, TensorBoardFile } from "../../../src/train/log/loggers/tensorboard.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { pythonWith } from "../../fixtures/python.ts";

const dir = temporaryFolder("tensorboard");

const record = (step: number) => ({
  phase: "train" as const,
  step,
  totalSteps: 300,
  metrics: { "reward/adder/mean": step / 4, "actor/lr": 1e-3 },
});

// RFC 3720, appendix B.4.
test.each([
  [new Uint8Array(32), 0x8a9136aa],
  [new Uint8Array(32).fill(0xff), 0x62a8ab43],
  [Uint8Array.from({ length: 32 }, (_, i) => i), 0x46dd794e],
])("crc32c() of the published vectors", (bytes, crc) => {
  expect(crc32c(bytes)).toBe(crc);
});

/** The records of a file, with both checksums checked. */
function recordsOf(file: string): Buffer[] {
  const bytes = readFileSync(file);
  const records: Buffer[] = [];
  const masked = (part: Buffer) => {
    const crc = crc32c(part);
    return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
  };
  for (let at = 0; at < bytes.length; ) {
    const length = bytes.readUInt32LE(at);
    expect(bytes.readUInt32LE(at + 8)).toBe(masked(bytes.subarray(at, at + 8)));
    const body = bytes.subarray(at + 12, at + 12 + length);
    expect(bytes.readUInt32LE(at + 12 + length)).toBe(masked(body));
    records.push(body);
    at += 16 + length;
  }
  return records;
}

test("the file holds a version, then one event a step, and goes on after a resume", async () => {
  const file = join(dir, "run", EVENTS_FILE);
  const log = new TensorBoardFile(file);
  log.log(record(1));
  const position = await log.position();
  log.log(record(2));
  const resumed = new TensorBoardFile(file);
  await resumed.rewind(position);
  resumed.log(record(300));
  const [version, first, last, ...rest] = recordsOf(file);
  expect(rest).toEqual([]);
  expect(version!.toString("latin1")).toContain("brain.Event:2");
  expect(first!.toString("latin1")).toContain("reward/adder/mean");
  // Field 2, a varint: 300 is 0xac 0x02.
  expect([...last!.subarray(9, 12)]).toEqual([0x10, 0xac, 0x02]);
});

const READER = `
import sys, json
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
print(json.dumps([[e.step, {v.tag: (v.simple_value if v.HasField("simple_value") else v.tensor.float_val[0]) for v in e.summary.value}]
    for e in EventFileLoader(sys.argv[1]).Load() if e.HasField("summary")]))
`;
const python = pythonWith("tensorboard");

test.skipIf(!python)("TensorBoard itself reads the scalars back", () => {
  const file = join(dir, "read", EVENTS_FILE);
  new TensorBoardFile(file).log(record(3));
  const { stdout, stderr } = spawnSync(python as string, ["-c", READER, file], { encoding: "utf8" });
  expect(stdout, stderr).not.toBe("");
  const [[step, scalars]] = JSON.parse(stdout);
  expect(step).toBe(3);
  expect(scalars["reward/adder/mean"]).toBeCloseTo(0.75, 6);
  expect(scalars["actor/lr"]).toBeCloseTo(1e-3, 6);
});
