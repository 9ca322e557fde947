/** Bodies that are not what they seem, for a server of Tinker's protocol; the largest of each kind that is read, too. */
import { bytesOf, ProtobufWriter } from "../../src/leaves/protobuf.ts";
import type { Hostile } from "./requests.ts";

/** What is known of the server. */
export interface Known {
  readonly model: string;
  readonly sampler: string;
}

interface Encoded {
  readonly type?: string;
  readonly encoding?: string;
  readonly bytes: string | Uint8Array;
}

type Content = string | Uint8Array | Encoded;
type Row = readonly [name: string, path: string, body: (of: Known) => Content, ...statuses: number[]];

const TRAIN = "forward_backward";
const SESSION = "create_session";
/** 0: where much more comes than is read, the connection may end before the answer is read. */
const TOO_LARGE = [413, 0] as const;

export const BODIES: readonly Row[] = [
  ["20 M prompt tokens", "asample", (of) => draw(of, prompt(20_000_000)), ...TOO_LARGE],
  ["the most prompt tokens that are read", "asample", (of) => draw(of, prompt(16_000)), 200],
  ["JSON 5 M levels deep", SESSION, () => "[".repeat(5e6), ...TOO_LARGE],
  ["JSON 500,000 levels deep", SESSION, () => `{"user_metadata":${"[".repeat(5e5)}`, 422],
  ["JSON 10,000 levels deep, whole", SESSION, () => `{"user_metadata":{"a":${nested(10_000)}}}`, 422],
  ["JSON as deep as is read", "telemetry", () => `{"events":[${nested(62)}]}`, 200],
  ["500,000 values of a wrong type", SESSION, () => `{"tags":[${"1,".repeat(5e5)}1]}`, 422],
  ["16,000 values of a wrong type", SESSION, () => `{"tags":[${"1,".repeat(16_000)}1]}`, 422],
  ["16,000 stop texts of a wrong type", "asample", (of) => draw(of, stops("{},")), 422],
  ["16,000 unknown fields", SESSION, () => `{${range(16_000, (i) => `"f${i}":0`).join()}}`, 200, 422],
  ["a number of a million digits", "optim_step", (of) => `{"model_id":"${of.model}","seq_id":${"9".repeat(1e6)}}`, 422],
  ["a million spaces behind seq_id", "optim_step", () => `{"seq_id"${" ".repeat(1e6)}}`, 422],
  ["text that no UTF-8 is", SESSION, () => new Uint8Array(1e6).fill(0xff), 422],
  ["5 M empty data", TRAIN, (of) => batch(of, repeated(EMPTY, 5e6)), 413],
  ["2 M tiny data", TRAIN, (of) => batch(of, repeated(TINY, 2e6)), 413],
  ["as many tiny data as are read", TRAIN, (of) => batch(of, repeated(TINY, 8192)), 200],
  ["as many chunks as are read", TRAIN, (of) => batch(of, repeated(datum(repeated(TOKEN, 20)), 8192)), 200],
  ["3 M unknown fields", TRAIN, (of) => batch(of, repeated(Uint8Array.of(0x50, 1), 3e6)), 422],
  ["a datum of 3 M chunks", TRAIN, (of) => batch(of, datum(repeated(Uint8Array.of(0x0a, 0), 3e6))), 422],
  ["a tensor of a million dimensions", TRAIN, (of) => batch(of, datum(shaped(1e6))), 422],
  ["5 M data of an unknown model", TRAIN, () => batch({ model: "x:train:0" }, repeated(EMPTY, 5e6)), 404],
  ["a length beyond the message", TRAIN, (of) => batch(of, hex("1affffffff0f")), 422],
  ["a length of 2^63", TRAIN, (of) => batch(of, hex("1affffffffffffffff7f")), 422],
  ["a batch of 30 MB", TRAIN, (of) => batch(of, datum(tokens(7_500_000))), 200],
  ["a body of 200 MB", TRAIN, () => new Uint8Array(2e8), ...TOO_LARGE],
  ["200 frames with windows of 2^30 bytes", TRAIN, () => zstd(repeated(hex("28b52ffd00a00b000061"), 200)), 422],
  ["a run of 32 MB in 1 KB", TRAIN, () => zstd(runs(256)), 422],
  ["a run of 8 GB in 256 KB", TRAIN, () => zstd(runs(65_000)), 413],
  ["2 M empty zstd blocks", TRAIN, () => zstd(repeated(hex("000000"), 2e6)), 422],
  ["JSON as text, as any page's form sends it", SESSION, () => ({ type: "text/plain", bytes: "{}" }), 415],
  ["JSON as a form", SESSION, () => ({ type: "application/x-www-form-urlencoded", bytes: "{}" }), 415],
  ["a batch as JSON", TRAIN, () => ({ type: "application/json", bytes: "{}" }), 415],
  ["a path out of the folder", "weights_info", () => '{"tinker_path":"tinker://a:train:0/weights/../../etc"}', 400],
  ["a name out of the folder", "save_weights", (of) => `{"model_id":"${of.model}","path":"../../x"}`, 200, 400, 422],
];

/** A row as bytes for a socket. */
export function toRequest([name, path, body, ...statuses]: Row, of: Known): Hostile {
  const pieces = () => {
    const made = body(of);
    const content: Encoded = typeof made === "string" || made instanceof Uint8Array ? { bytes: made } : made;
    const bytes = Buffer.from(content.bytes as string);
    const type = content.type ?? (path === TRAIN ? "application/x-protobuf" : "application/json");
    const head = [
      `POST /api/v1/${path} HTTP/1.1`,
      "Host: localhost",
      "Connection: close",
      `Content-Type: ${type}`,
      `Content-Length: ${bytes.length}`,
      ...(content.encoding ? [`Content-Encoding: ${content.encoding}`] : []),
    ];
    return [`${head.join("\r\n")}\r\n\r\n`, bytes];
  };
  return { name, pieces, statuses };
}

function range<T>(count: number, make: (i: number) => T): T[] {
  return Array.from({ length: count }, (_, i) => make(i));
}

const nested = (levels: number) => "[".repeat(levels) + "]".repeat(levels);

function draw({ sampler }: Known, more: string): string {
  return `{"sampling_session_id":"${sampler}","num_samples":1,${more}}`;
}

const prompt = (count: number) =>
  `"prompt":{"chunks":[{"type":"encoded_text","tokens":[${"1,".repeat(count)}1]}]},"sampling_params":{}`;
const stops = (each: string) => `"prompt":{"chunks":[]},"sampling_params":{"stop":[${each.repeat(16_000)}1]}`;

function batch({ model }: Pick<Known, "model">, data: Uint8Array): Uint8Array {
  return Buffer.concat([new ProtobufWriter().text(1, model).text(4, "cross_entropy").finish(), data]);
}

function datum(content: Uint8Array): Uint8Array {
  return new ProtobufWriter().bytes(3, content).finish();
}

function tokens(count: number): Uint8Array {
  const chunk = new ProtobufWriter().bytes(1, bytesOf(new Int32Array(count)));
  return new ProtobufWriter().message(1, new ProtobufWriter().message(1, chunk)).finish();
}

const TOKEN = tokens(1);
const TINY = datum(TOKEN);
const EMPTY = Uint8Array.of(0x1a, 0);

function shaped(dimensions: number): Uint8Array {
  const tensor = new ProtobufWriter().varint(3, 1).bytes(4, new Uint8Array(dimensions).fill(1));
  return new ProtobufWriter().message(2, new ProtobufWriter().text(1, "weights").message(2, tensor)).finish();
}

function zstd(bytes: Uint8Array): Encoded {
  return { bytes, encoding: "zstd" };
}

/** A frame of runs of 128 KiB each. */
function runs(count: number): Uint8Array {
  return Buffer.concat([hex("28b52ffd0058"), repeated(hex("02001061"), count - 1), hex("03001061")]);
}

function repeated(bytes: Uint8Array, times: number): Uint8Array {
  return Buffer.alloc(bytes.length * times, bytes);
}

function hex(digits: string): Uint8Array {
  return Buffer.from(digits, "hex");
}
