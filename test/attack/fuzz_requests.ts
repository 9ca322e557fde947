/** Random requests for a server of Tinker's protocol: most of them nearly right, which reaches furthest. */
import { request } from "node:http";
import { bytesOf, ProtobufWriter } from "../../src/leaves/protobuf.ts";
import type { Known } from "./bodies.ts";
import { type Chance, mutateBytes, mutateJson, mutateText } from "./mutate.ts";

export interface FuzzRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array;
}

/** A request of each route, as the SDK sends it. `n` numbers it. */
function templates({ model, sampler }: Known, n: number): readonly (readonly [string, object])[] {
  const session_id = model.split(":")[0];
  const prompt = { chunks: [{ type: "encoded_text", tokens: [1, 2, 3] }] };
  const sampling_params = { max_tokens: 4, temperature: 1, top_k: -1, top_p: 1, stop: ["x"], seed: 1 };
  const lora_config = { rank: 4, seed: 1, train_unembed: true, train_mlp: true, train_attn: true };
  return [
    ["create_session", { tags: ["a"], user_metadata: { a: { b: 1 } }, sdk_version: "0.25.0" }],
    ["session_heartbeat", { session_id }],
    ["create_model", { session_id, model_seq_id: n, base_model: "toy", lora_config, user_metadata: {} }],
    ["get_info", { model_id: model }],
    ["optim_step", { model_id: model, seq_id: 0, adam_params: { learning_rate: 1e-4, beta1: 0.9, eps: 1e-8 } }],
    ["save_weights", { model_id: model, seq_id: 0, path: "decoy", overwrite: true, ttl_seconds: 60 }],
    ["save_weights_for_sampler", { model_id: model, seq_id: 0, sampling_session_seq_id: n }],
    ["save_weights_external", { model_id: model, seq_id: 0, path: `external-${n}`, ttl_seconds: 60 }],
    ["save_weights_for_sampler", { model_id: model, seq_id: 0, sampling_session_seq_id: n, kind: "inflight" }],
    ["sessions/search", { display_name: "a b", user_metadata: { a: "b" }, owner: { type: "own" }, limit: 5 }],
    ["load_weights", { model_id: model, seq_id: 0, path: `tinker://${model}/weights/decoy`, optimizer: true }],
    ["create_sampling_session", { session_id, sampling_session_seq_id: n, base_model: "toy" }],
    ["asample", { sampling_session_id: sampler, seq_id: n, num_samples: 2, prompt, sampling_params }],
    ["retrieve_future", { request_id: `${session_id}:${(n % 50).toString(36)}`, allow_metadata_only: false }],
    ["cancel_future", { request_id: `${session_id}:${n.toString(36)}` }],
    ["weights_info", { tinker_path: `tinker://${model}/weights/decoy` }],
    ["telemetry", { events: [{}], platform: "x", sdk_version: "1", session_id, process_uuid: "u" }],
    ["client/config", { sdk_version: "0.25.0" }],
    [`training_runs/${model}/checkpoints/weights/decoy/ttl`, { ttl_seconds: 60 }],
    [`training_runs/${model}/checkpoints/weights/decoy/publish`, {}],
  ];
}

const GETS = ["", "metrics", "api/v1/sessions", "api/v1/training_runs?limit=5", "api/v1/checkpoints?offset=0", "x"];
const TYPES = ["application/json", "text/plain", "application/x-protobuf", "application/json; charset=x", ""];
const ENCODINGS = ["zstd", "gzip", "identity", "zstd, zstd"];
const METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];

export function fuzzRequest(known: Known, { chance, n }: { chance: Chance; n: number }): FuzzRequest {
  const base = chance.is(0.12)
    ? get(known, chance)
    : chance.is(0.3)
      ? batch(known, chance)
      : post(known, { chance, n });
  const headers = { ...base.headers };
  if (chance.is(0.05)) headers["content-type"] = chance.pick(TYPES);
  if (chance.is(0.05)) headers["content-encoding"] = chance.pick(ENCODINGS);
  if (chance.is(0.03)) headers.host = chance.pick(["evil.example", "localhost:1", "[::1", "a b", "127.0.0.1"]);
  if (chance.is(0.03)) headers.origin = chance.pick(["null", "http://evil.example", "http://127.0.0.1", "x"]);
  if (chance.is(0.1)) headers["x-idempotency-key"] = `key-${chance.int(20)}`;
  const path = chance.is(0.1) ? encodePath(mutateText(base.path, chance)) : base.path;
  return { ...base, headers, path, method: chance.is(0.05) ? chance.pick(METHODS) : base.method };
}

function get({ model }: Known, chance: Chance): FuzzRequest {
  const archive = `api/v1/training_runs/${model}/checkpoints/weights/decoy/archive`;
  const path = `/${chance.pick([...GETS, archive, `api/v1/sessions/${model.split(":")[0]}`, `api/v1/training_runs/${model}`])}`;
  // Only the decoy may be deleted: another checkpoint must be there at the end.
  if (chance.is(0.05))
    return { method: "DELETE", path: archive.replace(/^/, "/").replace(/\/archive$/, ""), headers: {} };
  return { method: "GET", path, headers: {} };
}

function post(known: Known, { chance, n }: { chance: Chance; n: number }): FuzzRequest {
  const [route, value] = chance.pick(templates(known, n));
  const changed = chance.is(0.85) ? mutateJson(value, chance) : value;
  const text = JSON.stringify(changed) ?? "";
  const headers = { "content-type": "application/json" };
  const method = route.endsWith("/ttl") ? "PUT" : "POST";
  return {
    method,
    path: `/api/v1/${route}`,
    headers,
    body: chance.is(0.2) ? mutateText(text, chance) : text,
  };
}

function batch({ model }: Known, chance: Chance): FuzzRequest {
  const datum = new ProtobufWriter();
  const length = chance.pick([1, 3, 40]);
  datum.message(1, new ProtobufWriter().message(1, new ProtobufWriter().bytes(1, bytesOf(new Int32Array(length)))));
  const tensor = (name: string, data: ArrayBufferView, dtype: number) =>
    datum.message(
      2,
      new ProtobufWriter().text(1, name).message(2, new ProtobufWriter().bytes(1, bytesOf(data)).varint(3, dtype)),
    );
  tensor("target_tokens", new BigInt64Array(length), 2);
  tensor("weights", new Float32Array(length), 1);
  const message = new ProtobufWriter().text(1, model);
  for (let i = 0; i <= chance.int(4); i++) message.message(3, datum);
  message.text(4, chance.pick(["cross_entropy", "ppo", "__proto__"])).varint(6, chance.int(2));
  const bytes = message.finish();
  const headers = { "content-type": "application/x-protobuf" };
  const path = "/api/v1/forward_backward";
  return { method: "POST", path, headers, body: chance.is(0.9) ? mutateBytes(bytes, chance) : bytes };
}

/** What Node's client lets through; raw bytes are the table's. */
function encodePath(path: string): string {
  const text = `/${path.replace(/^\/+/, "")}`;
  return [...text]
    .map((it) => (/[!-~]/.test(it) ? it : it === " " ? "+" : "%ff"))
    .join("")
    .slice(0, 12_000);
}

/** The status, or 0 where the connection was ended. */
export function send(
  url: string,
  { agent, of }: { agent: import("node:http").Agent; of: FuzzRequest },
): Promise<number> {
  return new Promise((resolve) => {
    const bytes = of.body === undefined ? undefined : Buffer.from(of.body as string);
    const headers = { ...of.headers, ...(bytes && { "content-length": String(bytes.length) }) };
    const { hostname, port } = new URL(url);
    try {
      const sent = request({ hostname, port, method: of.method, path: of.path, headers, agent }, (answer) => {
        answer.on("error", () => resolve(0));
        answer.on("end", () => resolve(answer.statusCode ?? 0));
        answer.resume();
      });
      sent.on("error", () => resolve(0));
      sent.end(bytes);
    } catch {
      // Node's client refuses some headers itself.
      resolve(0);
    }
  });
}
