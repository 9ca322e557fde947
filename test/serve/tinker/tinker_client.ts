/** A client of the server's routes without a socket, which sends what the SDK sends or anything else. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished, vi } from "vitest";
import type { App } from "../../../src/leaves/http/listen.ts";
import { bytesOf, ProtobufWriter } from "../../../src/leaves/protobuf.ts";
import { type AppOptions, createApp } from "../../../src/serve/tinker/app.ts";
import type { ServedBaseModel } from "../../../src/serve/tinker/base_models.ts";
import { Checkpoints } from "../../../src/serve/tinker/checkpoint/checkpoints.ts";
import {
  TinkerService,
  type TinkerServiceLimits,
  type TinkerServiceOptions,
} from "../../../src/serve/tinker/service.ts";
import { ToyEngine } from "../../fixtures/toy_engine.ts";

export interface Answer {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: JSON of many shapes
  readonly json: any;
  readonly bytes: Uint8Array;
  readonly headers: Headers;
}

export interface TestServer {
  readonly engine: ToyEngine;
  readonly service: TinkerService;
  readonly app: App;
  readonly root: string;
  post(path: string, body: unknown, headers?: Record<string, string>): Promise<Answer>;
  get(path: string, headers?: Record<string, string>): Promise<Answer>;
  send(request: Request): Promise<Answer>;
  /** POSTs a request and waits for its result. */
  result(path: string, body: unknown): Promise<Answer>;
  retrieve(requestId: string): Promise<Answer>;
  session(): Promise<string>;
  /** A session's training client. */
  model(session?: string, number?: number): Promise<string>;
}

export async function openServer(
  options: Partial<Omit<AppOptions, "service">> & {
    limits?: Partial<TinkerServiceLimits>;
    root?: string;
    modelNames?: readonly string[];
    /** After the first one. */
    moreModels?: readonly ServedBaseModel[];
    log?: (line: string) => void;
    stableReinforce?: TinkerServiceOptions["stableReinforce"];
    peers?: TinkerServiceOptions["peers"];
  } = {},
): Promise<TestServer> {
  const root = options.root ?? (await mkdtemp(join(tmpdir(), "grpu-tinker-")));
  const engine = new ToyEngine();
  const checkpoints = await Checkpoints.open(root);
  const { limits, log } = options;
  const service = new TinkerService({
    models: [{ engine, names: options.modelNames ?? ["toy", "/models/toy"] }, ...(options.moreModels ?? [])],
    checkpoints,
    limits,
    log,
    stableReinforce: options.stableReinforce,
    peers: options.peers,
  });
  const app = createApp({ service, holdMs: 2000, ...options });
  onTestFinished(async () => {
    service.close();
    if (!options.root) await rm(root, { recursive: true, force: true });
  });
  const send = async (request: Request): Promise<Answer> => {
    const response = await app.fetch(request);
    const bytes = new Uint8Array(await response.arrayBuffer());
    const isJson = response.headers.get("content-type")?.includes("json");
    const json = isJson ? JSON.parse(new TextDecoder().decode(bytes)) : undefined;
    return { status: response.status, json, bytes, headers: response.headers };
  };
  const url = (path: string) => `http://localhost:8000${path.startsWith("/") ? path : `/api/v1/${path}`}`;
  const post: TestServer["post"] = (path, body, headers) => {
    const isRaw = typeof body === "string" || body instanceof Uint8Array;
    const content = isRaw ? (body as string) : JSON.stringify(body);
    const type = path === "forward_backward" ? "application/x-protobuf" : "application/json";
    const all = { "content-type": type, ...headers };
    return send(new Request(url(path), { method: "POST", body: content, headers: all }));
  };
  const retrieve = (request_id: string) => post("retrieve_future", { request_id });
  const result: TestServer["result"] = async (path, body) => {
    const { json, status } = await post(path, body);
    if (status !== 200) throw new Error(`${path} answered ${status}: ${JSON.stringify(json)}`);
    let answer = await retrieve(json.request_id);
    while (answer.status === 408) answer = await retrieve(json.request_id);
    return answer;
  };
  const session = async () => (await post("create_session", { tags: [], sdk_version: "1" })).json.session_id;
  return {
    engine,
    service,
    app,
    root,
    send,
    post,
    retrieve,
    result,
    session,
    get: (path, headers) => send(new Request(url(path), headers && { headers })),
    async model(of, model_seq_id = 0) {
      const session_id = of ?? (await session());
      const lora_config = { rank: 4, train_mlp: true, train_attn: true, train_unembed: true };
      const { json } = await result("create_model", {
        session_id,
        model_seq_id,
        base_model: "toy",
        lora_config,
      });
      return json.model_id;
    },
  };
}

/** Waits until the check passes: the disk and the engine may be slow on a busy machine. */
export function eventually(check: () => void): Promise<void> {
  return vi.waitFor(check, { timeout: 30_000 });
}

/** Makes the engine wait before each call. @returns what lets it go on */
export function holdEngine({ engine }: Pick<TestServer, "engine">): () => void {
  let open = () => {};
  engine.gate = new Promise((resolve) => {
    open = resolve;
  });
  return open;
}

/** A forward_backward request of one datum, as the SDK encodes it. */
export function backward(
  modelId: string,
  of: {
    seq: number;
    targets?: readonly number[];
    tokens?: readonly number[];
    loss?: string;
    forwardOnly?: boolean;
  },
): Uint8Array {
  const targets = of.targets ?? [1, 2, 3];
  const tokens = of.tokens ?? targets;
  const chunk = new ProtobufWriter().message(1, new ProtobufWriter().bytes(1, bytesOf(Int32Array.from(tokens))));
  const datum = new ProtobufWriter()
    .message(1, chunk)
    .message(2, input("target_tokens", { data: BigInt64Array.from(targets, BigInt), dtype: 2 }))
    .message(2, input("weights", { data: new Float32Array(targets.length).fill(1), dtype: 1 }));
  return new ProtobufWriter()
    .text(1, modelId)
    .varint(2, of.seq)
    .message(3, datum)
    .text(4, of.loss ?? "cross_entropy")
    .varint(6, of.forwardOnly ? 1 : 0)
    .finish();
}

export function input(name: string, { data, dtype }: { data: ArrayBufferView; dtype: number }): ProtobufWriter {
  return new ProtobufWriter().text(1, name).message(2, new ProtobufWriter().bytes(1, bytesOf(data)).varint(3, dtype));
}

export const step = (model_id: string, seq_id: number) => ({ model_id, seq_id, adam_params: {} });

export const draw = (sampling_session_id: string, seq_id: unknown, more: object = {}) => ({
  sampling_session_id,
  seq_id,
  num_samples: 1,
  prompt: { chunks: [{ type: "encoded_text", tokens: [1, 2] }] },
  sampling_params: { max_tokens: 4 },
  ...more,
});
