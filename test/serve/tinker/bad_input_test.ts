import { describe, expect, test } from "vitest";
import { bytesOf, ProtobufWriter } from "../../../src/leaves/protobuf.ts";
import { uniform } from "../../fixtures/numbers.ts";
import { backward, draw, input, openServer, step, type TestServer } from "./tinker_client.ts";

const isAlive = async (server: TestServer) => {
  const id = await server.model();
  expect((await server.result("optim_step", step(id, 1))).json.metrics).toBeDefined();
};

/** A batch with a readable address and truncated data. */
const truncated = (modelId: string, seq = 1) => backward(modelId, { seq }).subarray(0, modelId.length + 25);

describe("refused with a status and what to do", () => {
  test.each<[string, string, unknown, number, RegExp]>([
    ["a body that is not JSON", "create_session", "{", 422, /must be JSON/],
    [
      "a wrong type",
      "create_session",
      { tags: "x" },
      422,
      /^Cannot read tags of the request: it must be a list \("x"\)\.$/,
    ],
    ["a field this server does not know", "create_session", { tags: [], colour: "red" }, 422, /field colour/],
    ["an unknown session", "session_heartbeat", { session_id: "x" }, 404, /Cannot find the session x/],
    ["an unknown model", "optim_step", step("nobody:train:0", 1), 404, /left no checkpoint/],
    ["an unknown sampler", "asample", draw("nobody:sample:0", 0), 404, /Cannot find the sampler/],
    ["an unknown request", "retrieve_future", { request_id: "r" }, 404, /there is no such request/],
    [
      "a path outside",
      "weights_info",
      { tinker_path: "tinker://a:train:0/weights/../../etc" },
      400,
      /its path must be/,
    ],
    ["a path of another scheme", "weights_info", { tinker_path: "file:///etc/passwd" }, 400, /its path must be/],
    ["an unknown path", "weights_info", { tinker_path: "tinker://a:train:0/weights/b" }, 404, /it does not exist/],
    ["bytes that are not protobuf", "forward_backward", Uint8Array.of(255, 255, 255), 422, /protobuf/],
    ["a batch of an unknown model, whose rest is damaged", "forward_backward", truncated("m"), 404, /the model m/],
    ["protobuf without content", "forward_backward", new Uint8Array(), 422, /must have model_id/],
    [
      "an optimiser of another kind",
      "create_model",
      { session_id: "s", model_seq_id: 0, base_model: "toy", optimizer_config: { type: "dimuon" } },
      422,
      /only adamw/,
    ],
  ])("%s", async (_, path, body, status, message) => {
    const server = await openServer();
    const answer = await server.post(path, body);
    expect({ status: answer.status, detail: answer.json.detail }).toEqual({
      status,
      detail: expect.stringMatching(message),
    });
    await isAlive(server);
  });

  test.each<[string, (id: string) => [string, string | Uint8Array, Record<string, string>?]]>([
    ["truncated JSON", (id) => ["optim_step", `{"model_id":"${id}","seq_id":1,"adam_params":{`]],
    ["JSON that is too deep", (id) => ["optim_step", `{"x":${"[".repeat(99)},"seq_id": 1,"model_id": "${id}"}`]],
    [
      "JSON beyond the limit",
      (id) => ["save_weights", `{"model_id":"${id}","seq_id":1,"path":"${"x".repeat(2 ** 21)}`],
    ],
    [
      "JSON of another content type",
      (id) => ["optim_step", JSON.stringify(step(id, 1)), { "content-type": "text/plain" }],
    ],
    [
      "a batch of another content type",
      (id) => ["forward_backward", backward(id, { seq: 1 }), { "content-type": "application/json" }],
    ],
    ["a truncated batch", (id) => ["forward_backward", truncated(id)]],
    ["a batch beyond the limit", (id) => ["forward_backward", Buffer.concat([truncated(id), Buffer.alloc(2 ** 21)])]],
  ])("%s does not hold up the requests behind it", async (_, of) => {
    const server = await openServer({ bodyBytes: 2 ** 21 });
    const id = await server.model();
    const [path, body, headers] = of(id);
    expect((await server.post(path, body, headers)).status).toBeOneOf([413, 415, 422]);
    const { json } = await server.result("optim_step", step(id, 2));
    // optim_step after a refused forward_backward fails at once.
    if (path === "forward_backward") expect(json.error).toMatch(/Cannot run optim_step/);
    else expect(json.metrics).toBeDefined();
  });

  test("a batch whose connection breaks off can be sent again under its number", async () => {
    const server = await openServer();
    const id = await server.model();
    const whole = backward(id, { seq: 1 });
    const body = new ReadableStream({
      start: (controller) => controller.enqueue(whole.subarray(0, whole.length - 5)),
      pull: (controller) => controller.error(new Error("socket hang up")),
    });
    const headers = { "content-type": "application/x-protobuf" };
    const url = "http://localhost/api/v1/forward_backward";
    const broken = new Request(url, { method: "POST", headers, body, duplex: "half" } as RequestInit);
    expect((await server.send(broken)).status).toBe(408);
    expect((await server.result("forward_backward", whole)).bytes.length).toBeGreaterThan(0);
    expect((await server.result("optim_step", step(id, 2))).json.metrics).toBeDefined();
  });

  test("a truncated batch", async () => {
    const server = await openServer();
    const { status, json } = await server.post("forward_backward", truncated(await server.model()));
    expect([status, json.detail]).toEqual([422, expect.stringMatching(/truncated/)]);
  });

  test("a body beyond the limit, with and without a declared length, and as zstd", async () => {
    const server = await openServer({ bodyBytes: 1000 });
    const large = JSON.stringify({ tags: ["x".repeat(2000)] });
    expect((await server.post("create_session", large)).status).toBe(413);
    const stream = new Blob([large]).stream();
    const request = new Request("http://localhost/api/v1/create_session", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: stream,
      duplex: "half",
    } as RequestInit);
    expect((await server.send(request)).status).toBe(413);
    // 2000 zeros as one run-length block.
    const bomb = Uint8Array.of(0x28, 0xb5, 0x2f, 0xfd, 0x60, 0xd0, 0x06, 0x83, 0x3e, 0x00, 0x30);
    const headers = { "content-encoding": "zstd" };
    expect((await server.post("create_session", bomb, headers)).status).toBe(413);
    expect((await server.post("create_session", "nonsense", headers)).status).toBe(422);
    expect((await server.post("create_session", "x", { "content-encoding": "br" })).status).toBe(415);
    await isAlive(server);
  });

  const padded = (bytes: number) => {
    const body = { tags: [], sdk_version: "" };
    return JSON.stringify({ ...body, sdk_version: "x".repeat(bytes - JSON.stringify(body).length) });
  };

  // The context has 64 tokens, each of up to 16 bytes in JSON; their targets have a row start per token, ids and columns.
  const PROMPT_NUMBERS = 2 * 64 + 2 * 32_768;

  test.each<[string, string, number, number]>([
    ["a megabyte", "create_session", 2 ** 20, 200],
    ["more than a megabyte", "create_session", 2 ** 20 + 1, 413],
    ["four megabytes of telemetry", "telemetry", 4 * 2 ** 20, 200],
    ["more telemetry", "telemetry", 4 * 2 ** 20 + 1, 413],
    // Read, but without a sampler.
    ["a megabyte and the numbers of a prompt", "asample", 2 ** 20 + 16 * PROMPT_NUMBERS, 422],
    ["more than that to sample", "asample", 2 ** 20 + 16 * PROMPT_NUMBERS + 1, 413],
  ])("%s as JSON", async (_, path, bytes, status) => {
    const server = await openServer();
    expect((await server.post(path, padded(bytes))).status).toBe(status);
  });

  test.each<[string, number, number]>([
    ["create_session", 16_384, 200],
    ["create_session", 16_385, 422],
    ["asample", 16_384 + PROMPT_NUMBERS, 404],
    ["asample", 16_384 + PROMPT_NUMBERS + 1, 422],
  ])("%s with %d values in its JSON", async (path, values, status) => {
    const server = await openServer();
    // The object and the list count, and what is in it.
    const session = { tags: Array.from({ length: values - 2 }, () => "") };
    const tokens = (count: number) => [{ type: "encoded_text", tokens: new Array(count).fill(1) }];
    const prompt = (count: number) => ({ ...draw("nobody:sample:0", 1), prompt: { chunks: tokens(count) } });
    const counted = (body: object): number =>
      1 + Object.values(body).reduce((sum, it) => sum + (typeof it === "object" && it ? counted(it) : 1), 0);
    const body = path === "asample" ? prompt(values - counted(prompt(0))) : session;
    expect(counted(body)).toBe(values);
    expect((await server.post(path, body)).status).toBe(status);
  });

  test("a body as zstd is read", async () => {
    const server = await openServer();
    // {"tags":[]} as one raw block.
    const text = new TextEncoder().encode('{"tags":[]}');
    const frame = Uint8Array.of(0x28, 0xb5, 0x2f, 0xfd, 0x20, text.length, (text.length << 3) | 1, 0, 0, ...text);
    const { json } = await server.post("create_session", frame, { "content-encoding": "zstd" });
    expect(json.session_id).toMatch(/^[0-9a-f-]{36}$/);
  });
});

describe("failures of accepted requests, in the category user", () => {
  const tensor = (name: string, data: ArrayBufferView, dtype: number) => ({ name, data, dtype });
  test.each<[string, ReturnType<typeof tensor>[], RegExp]>([
    ["no targets", [tensor("weights", new Float32Array(3), 1)], /must have target_tokens/],
    ["targets as floats", [tensor("target_tokens", new Float32Array(3), 1)], /target_tokens must be int64/],
    [
      "weights as integers",
      [tensor("target_tokens", new BigInt64Array(3), 2), tensor("weights", new BigInt64Array(3), 2)],
      /weights must be float32/,
    ],
    ["too few targets", [tensor("target_tokens", new BigInt64Array(2), 2)], /\[3\] \(\[\] with 2 elements\)/],
    ["a target below 0", [tensor("target_tokens", BigInt64Array.of(1n, -1n, 2n), 2)], /must be token ids \(-1\)/],
  ])("%s", async (_, inputs, message) => {
    const server = await openServer();
    const id = await server.model();
    const chunk = new ProtobufWriter().message(1, new ProtobufWriter().bytes(1, bytesOf(Int32Array.of(1, 2, 3))));
    const datum = new ProtobufWriter().message(1, chunk);
    for (const it of inputs) datum.message(2, input(it.name, it));
    const body = new ProtobufWriter().text(1, id).varint(2, 1).message(3, datum).text(4, "cross_entropy").finish();
    const { json } = await server.result("forward_backward", body);
    expect(json).toEqual({ error: expect.stringMatching(message), category: "user" });
    await isAlive(server);
  });

  test.each<[string, object, RegExp]>([
    ["a token outside", { prompt: { chunks: [{ type: "encoded_text", tokens: [100] }] } }, /\[0, 100\) \(100\)/],
    ["no prompt", { prompt: { chunks: [] } }, /at least one token/],
    [
      "a prompt that fills the context",
      { prompt: { chunks: [{ type: "encoded_text", tokens: new Array(64).fill(1) }] } },
      /leave room in the context of 64/,
    ],
    ["no samples", { num_samples: 0 }, /num_samples/],
    ["four billion samples", { num_samples: 4e9 }, /num_samples/],
    ["max_tokens of 0", { sampling_params: { max_tokens: 0 } }, /max_tokens/],
    ["a negative temperature", { sampling_params: { temperature: -1 } }, /temperature/],
    ["top_p of 0", { sampling_params: { top_p: 0 } }, /top_p/],
    ["top_k of a half", { sampling_params: { top_k: 0.5 } }, /top_k/],
    ["more top log-probs than tokens in the vocabulary", { topk_prompt_logprobs: 101 }, /topk_prompt_logprobs/],
  ])("sampling with %s", async (_, more, message) => {
    const server = await openServer();
    const session_id = await server.session();
    const { json } = await server.post("create_sampling_session", {
      session_id,
      sampling_session_seq_id: 0,
      base_model: "toy",
    });
    const told = await server.result("asample", draw(json.sampling_session_id, 0, more));
    expect(told.json).toEqual({ error: expect.stringMatching(message), category: "user" });
    await isAlive(server);
  });

  test("names that lead out of the folder, and taken names", async () => {
    const server = await openServer();
    const id = await server.model();
    const names = ["../x", "a/b", "", ".", "..", "a\\b", "x".repeat(200), "a\0b"];
    for (const [i, path] of names.entries()) {
      const { json } = await server.result("save_weights", { model_id: id, seq_id: i + 1, path });
      expect(json, path).toMatchObject({ category: "user", error: expect.stringContaining("Cannot save") });
    }
    const seq = names.length + 1;
    const save = (seq_id: number, overwrite: boolean) =>
      server.result("save_weights", { model_id: id, seq_id, path: "kept", overwrite });
    expect((await save(seq, false)).json.path).toBe(`tinker://${id}/weights/kept`);
    expect((await save(seq + 1, false)).json.error).toContain("there is already a checkpoint of that name");
    expect((await save(seq + 2, true)).json.path).toBe(`tinker://${id}/weights/kept`);
  });
});

describe("the key", () => {
  const open = () => openServer({ apiKey: "tml-secret" });
  test.each([undefined, "", "tml-secreT", "tml-secret2", "tml-"])("%j is refused", async (key) => {
    const server = await open();
    const headers = key === undefined ? undefined : { "x-api-key": key };
    for (const path of ["create_session", "retrieve_future"])
      expect((await server.post(path, {}, headers)).status).toBe(401);
    for (const path of ["/", "/metrics", "checkpoints"]) expect((await server.get(path, headers)).status).toBe(401);
  });

  test("the right key is accepted in every place it may stand; the health check needs none", async () => {
    const server = await open();
    expect((await server.get("healthz")).json).toEqual({ status: "ok" });
    expect((await server.get("checkpoints", { "x-api-key": "tml-secret" })).status).toBe(200);
    expect((await server.get("checkpoints", { authorization: "Bearer tml-secret" })).status).toBe(200);
    expect((await server.get("/metrics?key=tml-secret")).status).toBe(200);
    expect((await server.get("checkpoints?key=tml-secret")).status).toBe(401);
  });
});

test("checkpoints are changed, exported and deleted over their routes", async () => {
  const server = await openServer();
  const id = await server.model();
  await server.result("save_weights", { model_id: id, seq_id: 1, path: "a", ttl_seconds: 60 });
  const route = `training_runs/${id}/checkpoints/weights/a`;
  const send = (method: string, path: string, body?: object) =>
    server.send(
      new Request(`http://localhost/api/v1/${path}`, {
        method,
        headers: { "content-type": "application/json" },
        body: body ? JSON.stringify(body) : null,
      }),
    );
  const state = async () => (await server.get(`training_runs/${id}/checkpoints`)).json.checkpoints[0];
  expect(await state()).toMatchObject({
    checkpoint_id: "weights/a",
    checkpoint_type: "training",
    public: false,
  });
  expect(Date.parse((await state()).expires_at) - Date.now()).toBeLessThanOrEqual(60_000);
  await send("POST", `${route}/publish`, {});
  await send("PUT", `${route}/ttl`, { ttl_seconds: null });
  expect(await state()).toMatchObject({ public: true, expires_at: null });
  await send("DELETE", `${route}/publish`);
  expect((await state()).public).toBe(false);
  const { json } = await server.get(`${route}/archive`);
  const tar = await server.get(new URL(json.url).pathname);
  expect(tar.bytes.length % 512).toBe(0);
  expect(Buffer.from(tar.bytes).includes("adapter_config.json")).toBe(true);
  for (const own of ["optimizer", "base.json", "checkpoint.json"])
    expect(Buffer.from(tar.bytes).includes(own)).toBe(false);
  expect((await send("DELETE", route)).status).toBe(204);
  expect((await send("DELETE", route)).status).toBe(404);
  expect((await server.get(`${route}/archive`)).status).toBe(404);
});

test("random input at every route gets one of the protocol's statuses", async () => {
  const server = await openServer({ holdMs: 1, limits: { sessions: 1e6 } });
  const next = uniform(11);
  const pick = <T>(of: readonly T[]): T => of[Math.floor(next() * of.length)]!;
  const routes = [
    "create_session",
    "session_heartbeat",
    "create_model",
    "get_info",
    "forward_backward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "load_weights",
    "unload_model",
    "create_sampling_session",
    "asample",
    "retrieve_future",
    "cancel_future",
    "weights_info",
    "sessions/x/finish",
    "telemetry",
    "client/config",
    "nowhere",
  ];
  const model = await server.model();
  const valid = [
    JSON.stringify(step(model, 1)),
    JSON.stringify(draw("x:sample:0", 1)),
    JSON.stringify({ session_id: model.split(":")[0], model_seq_id: 0 }),
  ];
  const proto = backward(model, { seq: 7 });
  const values = [null, -1, 1e300, "x", "\u0000", [], {}, true, [[[]]], model, "../../x", 2 ** 60];
  const keys = [
    "session_id",
    "model_id",
    "seq_id",
    "path",
    "tags",
    "prompt",
    "sampling_params",
    "model_seq_id",
    "base_model",
    "request_id",
    "tinker_path",
  ];
  for (let i = 0; i < 600; i++) {
    const kind = next();
    let body: string | Uint8Array;
    if (kind < 0.3)
      body = JSON.stringify(Object.fromEntries(Array.from({ length: 4 }, () => [pick(keys), pick(values)])));
    else if (kind < 0.5) body = pick(valid).slice(0, Math.floor(next() * 60));
    else {
      const bytes = proto.slice(0, 1 + Math.floor(next() * proto.length));
      for (let flip = 0; flip < 3; flip++) bytes[Math.floor(next() * bytes.length)] = Math.floor(next() * 256);
      body = bytes;
    }
    const { status, json } = await server.post(pick(routes), body);
    expect([200, 204, 400, 404, 408, 415, 422, 429], `${status} ${JSON.stringify(json)}`).toContain(status);
    if (status >= 400 && status !== 408) expect(json.detail).toEqual(expect.any(String));
  }
  await isAlive(server);
});
