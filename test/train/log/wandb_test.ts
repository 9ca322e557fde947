import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { crc32 } from "node:zlib";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { LogRecord } from "../../../src/train/log/logger.ts";
import { checkWandb, openWandb, type WandbOptions } from "../../../src/train/log/loggers/wandb.ts";
import { WandbFile } from "../../../src/train/log/loggers/wandb_file.ts";
import { grpu } from "../../fixtures/cli.ts";
import { pythonWith } from "../../fixtures/python.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "grpu-wandb-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const KEY = "k".repeat(40);
const RUN = { project: "sums", name: "first", config: { rllm: { rollout: { n: 8 } } }, warmupSteps: 2 };

function record(phase: LogRecord["phase"], step: number, metrics: Record<string, number>): LogRecord {
  return { phase, step, totalSteps: 9, metrics };
}

/** The records of a file: LevelDB's framing undone, every checksum held. */
function recordsOf(file: string): Buffer[] {
  const bytes = readFileSync(file);
  expect(bytes.subarray(0, 7).toString("latin1")).toBe(":W&B\xe1\xbe\0");
  const records: Buffer[] = [];
  let parts: Buffer[] = [];
  for (let at = 7; at < bytes.length; ) {
    const left = 32_768 - (at % 32_768);
    if (left < 7) {
      at += left;
      continue;
    }
    const [sum, length, kind] = [bytes.readUInt32LE(at), bytes.readUInt16LE(at + 4), bytes[at + 6]];
    const data = bytes.subarray(at + 7, at + 7 + length);
    expect(crc32(bytes.subarray(at + 6, at + 7 + length))).toBe(sum);
    expect(length + 7).toBeLessThanOrEqual(left);
    expect(kind === 1 || kind === 2).toBe(parts.length === 0);
    parts.push(data);
    if (kind === 1 || kind === 4) {
      records.push(Buffer.concat(parts));
      parts = [];
    }
    at += 7 + length;
  }
  expect(parts).toEqual([]);
  return records;
}

/** Fields of a message, by number; only what the records hold. */
function fieldsOf(bytes: Buffer): { field: number; value: number | Buffer }[] {
  const fields: { field: number; value: number | Buffer }[] = [];
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let shift = 1; ; shift *= 128) {
      const byte = bytes[at++]!;
      value += (byte % 128) * shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint();
    const size = varint();
    const isBytes = key % 8 === 2;
    fields.push({ field: key >> 3, value: isBytes ? bytes.subarray(at, at + size) : size });
    if (isBytes) at += size;
  }
  return fields;
}

/** The first bytes that wandb 0.31.0 itself wrote: the file's header and its first record. */
const THEIRS =
  "3a572642e1be00158fa6dc4d00010801c20c0a0a087068733068797635aa013b0a390a2f302e33312e302b313566386362" +
  "633538316431633563666336653331663638623438626464313363656332646432631206302e37302e30";

test("framing and checksums are those of W&B's own writer", () => {
  const path = join(dir, "theirs.wandb");
  writeFileSync(path, Buffer.from(THEIRS, "hex"));
  const [record] = recordsOf(path);
  expect(record!.length).toBe(77);
  expect(fieldsOf(record!).map(({ field }) => field)).toEqual([1, 200, 21]);
});

const HISTORY = 2;

/** The rows of a run's history. */
function rowsOf(file: string): Record<string, number>[] {
  const histories = recordsOf(file)
    .map((each) => fieldsOf(each)[0]!)
    .filter(({ field }) => field === HISTORY);
  return histories.map(({ value }) => {
    const items = fieldsOf(value as Buffer).filter(({ field }) => field === 1);
    return Object.fromEntries(
      items.map((item) => {
        const [key, json] = fieldsOf(item.value as Buffer);
        return [String(key!.value), JSON.parse(String(json!.value))];
      }),
    );
  });
}

test("a run on disk has one row per step, rising steps, and nothing twice after a resume", async () => {
  const path = join(dir, "run-a.wandb");
  const file = new WandbFile(path, { ...RUN, id: "a" });
  file.log(record("warmup", 1, { "warmup/loss": 2 }));
  file.log(record("warmup", 2, { "warmup/loss": 1 }));
  file.log(record("val", 0, { "val/x/pass@1": 0.5 }));
  file.log(record("train", 1, { "actor/lr": 1, broken: Number.NaN }));
  const position = await file.position();
  file.log(record("train", 2, { lost: 1 }));
  file.log(record("train", 3, { lost: 1 }));
  const resumed = new WandbFile(path, { ...RUN, id: "a" });
  await resumed.rewind(position);
  resumed.log(record("train", 2, { "actor/lr": 0.5 }));
  resumed.log(record("val", 2, { "val/x/pass@1": 0.75 }));
  resumed.finish();
  for (const { _timestamp, _runtime } of rowsOf(path)) {
    expect(Math.abs(Date.now() / 1000 - _timestamp!)).toBeLessThan(60);
    expect(_runtime).toBeGreaterThanOrEqual(0);
    expect(_runtime).toBeLessThan(60);
  }
  const rows = rowsOf(path).map(({ _timestamp, _runtime, ...row }) => row);
  expect(rows).toEqual([
    { _step: 1, "warmup/loss": 2 },
    { _step: 2, "warmup/loss": 1, "val/x/pass@1": 0.5 },
    { _step: 3, "actor/lr": 1 },
    { _step: 4, "actor/lr": 0.5, "val/x/pass@1": 0.75 },
  ]);
  const kinds = recordsOf(path).map((each) => fieldsOf(each)[0]!.field);
  expect([kinds[0], kinds[1], kinds.at(-1)]).toEqual([21, 17, 18]);
});

test.each([0, 1, 6, 7, 8, 13, 14])("a record that leaves %i bytes of a block is split as LevelDB does", (left) => {
  const path = join(dir, "run-b.wandb");
  const probe = new WandbFile(join(dir, "probe.wandb"), { ...RUN, id: "b", config: { pad: "" } });
  probe.finish();
  const [, opening] = recordsOf(join(dir, "probe.wandb"));
  // File header, two record headers and the first record come before; lengths above 127 take a byte more each.
  const before = 7 + 7 + recordsOf(join(dir, "probe.wandb"))[0]!.length + 7;
  let size = 32_768 - left - before - opening!.length;
  for (let tries = 0; tries < 12; tries++) {
    rmSync(path, { force: true });
    new WandbFile(path, { ...RUN, id: "b", config: { pad: "x".repeat(size) } }).finish();
    const off = before + recordsOf(path)[1]!.length - (32_768 - left);
    if (off === 0) break;
    size -= off;
  }
  const records = recordsOf(path);
  expect(before + records[1]!.length).toBe(32_768 - left);
  expect(records.map((each) => fieldsOf(each)[0]!.field)).toEqual([21, 17, 18]);
});

test.each([
  [{}, /WANDB_API_KEY is not set\. Set it, or WANDB_MODE=offline/],
  [{ WANDB_MODE: "sometimes" }, /unknown value \(sometimes\)\. Use online, offline, disabled/],
])("checkWandb(%j) is refused", (env, message) => {
  expect(() => checkWandb(env)).toThrow(message);
});

test("disabled writes nothing", () => {
  expect(openWandb({ ...RUN, dir, env: { WANDB_MODE: "disabled" }, notify: () => {} })).toEqual([]);
  expect(readdirSync(dir)).toEqual([]);
});

test("a resumed run goes on in its own folder", () => {
  const open = () => openWandb({ ...RUN, dir, env: { WANDB_MODE: "offline" }, notify: () => {} });
  for (let part = 0; part < 2; part++) void open()[0]!.log(record("train", 1, { x: 1 }));
  const [folder, ...others] = readdirSync(join(dir, "wandb"));
  expect(others).toEqual([]);
  expect(folder).toMatch(/^offline-run-\d{8}_\d{6}-[a-z0-9]{8}$/);
});

/** W&B's server as its SDK and `wandb sync` need it. */
async function fakeServer(status: number) {
  const asked: { url: string; body: string }[] = [];
  const server = createServer((request, reply) => {
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", () => {
      asked.push({ url: request.url ?? "", body });
      const bucket = {
        id: "b",
        name: "n",
        displayName: "first",
        project: { name: "sums", entity: { name: "me" } },
      };
      const data = {
        viewer: { entity: "me" },
        upsertBucket: { bucket },
        createRunFiles: { runID: "b", uploadHeaders: [], files: [] },
      };
      reply.writeHead(status, { "content-type": "application/json" });
      reply.end(JSON.stringify({ data }));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { url, asked, close: () => new Promise((resolve) => server.close(resolve).closeAllConnections()) };
}

/** The rows that a server was sent. */
function historyOf(asked: readonly { url: string; body: string }[]): Record<string, number>[] {
  return asked
    .filter(({ url }) => url.endsWith("/file_stream"))
    .flatMap(({ body }) => JSON.parse(body).files?.["wandb-history.jsonl"]?.content ?? [])
    .map((line: string) => JSON.parse(line));
}

async function logOnline(url: string) {
  const told: string[] = [];
  const env = { WANDB_API_KEY: KEY, WANDB_BASE_URL: url };
  const options: WandbOptions = { ...RUN, dir, env, notify: (message) => void told.push(message) };
  const signals = process.listenerCount("SIGINT");
  const loggers = openWandb(options);
  for (const step of [1, 2, 3])
    for (const logger of loggers) await logger.log(record("train", step, { "actor/lr": step / 4 }));
  for (const logger of loggers) await logger.log(record("val", 3, { "val/x/pass@1": 0.5 }));
  for (const logger of loggers) await logger.finish?.();
  expect(process.listenerCount("SIGINT")).toBe(signals);
  expect(told.join()).not.toContain(KEY);
  const [folder] = readdirSync(join(dir, "wandb"));
  const file = join(dir, "wandb", folder!, `${folder!.replace(/^run-\d+_\d+/, "run")}.wandb`);
  return { told, rows: rowsOf(file) };
}

test("online, rows go to the server through @wandb/sdk, and to disk", async () => {
  const server = await fakeServer(200);
  const { told, rows } = await logOnline(server.url);
  await server.close();
  expect(told).toEqual([expect.stringMatching(/^wandb {3}http.*\/me\/sums\/runs\//)]);
  const created = server.asked.find(({ body }) => body.includes("UpsertBucket"));
  expect(JSON.parse(created?.body ?? "{}").variables).toMatchObject({
    project: "sums",
    displayName: "first",
  });
  const plain = ({ _timestamp, _runtime, ...row }: Record<string, number>) => row;
  const expected = [
    { _step: 3, "actor/lr": 0.25 },
    { _step: 4, "actor/lr": 0.5 },
    { _step: 5, "actor/lr": 0.75, "val/x/pass@1": 0.5 },
  ];
  expect(historyOf(server.asked).map(plain)).toEqual(expected);
  expect(rows.map(plain)).toEqual(expected);
});

const python = pythonWith("wandb");

test.skipIf(!python)("`wandb sync` uploads every row of an offline run", { timeout: 60_000 }, async () => {
  const options: WandbOptions = { ...RUN, dir, env: { WANDB_MODE: "offline" }, notify: () => {} };
  const steps = Array.from({ length: 300 }, (_, i) => i + 1);
  const metrics = (step: number) =>
    Object.fromEntries(Array.from({ length: 50 }, (_, i) => [`m/${i}`, (step * i) / 8]));
  for (const logger of openWandb(options)) {
    for (const step of steps) await logger.log(record("train", step, metrics(step)));
    await logger.finish?.();
  }
  const [folder] = readdirSync(join(dir, "wandb"));
  const server = await fakeServer(200);
  const env = {
    ...{ PATH: process.env.PATH, HOME: dir, WANDB_API_KEY: KEY, WANDB_BASE_URL: server.url },
    WANDB_ERROR_REPORTING: "false",
  };
  const sync = promisify(execFile)(python as string, ["-m", "wandb", "sync", join(dir, "wandb", folder!)], {
    env,
    cwd: dir,
  });
  await sync.finally(server.close);
  expect(server.asked.find(({ body }) => body.includes("UpsertBucket"))?.body).toContain('"sums"');
  const rows = historyOf(server.asked);
  expect(rows.map((row) => row._step)).toEqual(steps.map((step) => step + RUN.warmupSteps));
  expect(rows[299]).toMatchObject(metrics(300));
});

test("a server that refuses is told of, once, and costs nothing but the upload", async () => {
  const server = await fakeServer(401);
  const { told, rows } = await logOnline(server.url);
  await server.close();
  expect(told).toEqual([expect.stringMatching(/^warning: W&B gets nothing more of this run: .*wandb sync /)]);
  expect(rows).toHaveLength(3);
});

test("grpu train logs to W&B offline, with the settings and without secrets", async () => {
  const args = [
    "train",
    "examples/arithmetic/run.yaml",
    "model.init={layers: 1, hidden_size: 16, heads: 2, kv_heads: 1, head_dim: 8, intermediate_size: 32}",
    ...["warmup.steps=2", "warmup.batch_size=4", "rllm.data.train_batch_size=2", "rllm.rollout.n=2"],
    ...["rllm.trainer.total_batches=2", "rllm.trainer.test_freq=0", "rllm.trainer.val_before_train=false"],
    ...["rllm.trainer.logger=[wandb]", `training.default_local_dir=${dir}`, "--device", "cpu"],
  ];
  const { code, err } = await grpu(args, { env: { WANDB_MODE: "offline", WANDB_API_KEY: KEY } });
  expect(err).toContain("upload it with:  wandb sync");
  expect(code).toBe(0);
  const [folder] = readdirSync(join(dir, "wandb"));
  const file = join(dir, "wandb", folder!, `run-${folder!.split("-").at(-1)}.wandb`);
  expect(existsSync(join(dir, "wandb", folder!, "files"))).toBe(true);
  expect(rowsOf(file).map((row) => row._step)).toEqual([1, 2, 3, 4]);
  expect(rowsOf(file)[3]).toHaveProperty(["reward/arithmetic/mean"]);
  const text = readFileSync(file, "latin1");
  expect(text).toContain('"experiment_name":"arithmetic"');
  for (const secret of [KEY, "my-shared-secret"]) expect(text).not.toContain(secret);
});
