/** What other people's clients send: the SDK's newer requests, and those that this server lacks. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { bytesOf, fields, ProtobufWriter } from "../../../src/leaves/protobuf.ts";
import { encodeTrainingOutput } from "../../../src/serve/tinker/protocol/results.ts";
import { decodeSamples } from "../../../src/train/backend/tinker/protobuf_messages.ts";
import { sdkMessage } from "../../fixtures/tinker_messages.ts";
import { backward, draw, eventually, holdEngine, openServer, step, type TestServer } from "./tinker_client.ts";

describe("a numbered request that the server cannot take", () => {
  interface Lacking {
    readonly path: string;
    /** Fields besides the address; absent: a binary body. */
    readonly more?: object;
  }
  const lacking: readonly (readonly [string, Lacking])[] = [
    ["on a route that it lacks", { path: "merge_weights", more: { path: "x" } }],
    ["in protobuf, on a route that it lacks", { path: "forward_backward_graph" }],
    ["of another optimiser", { path: "optim_step", more: { optimizer_params: { type: "dimuon", learning_rate: 1 } } }],
    ["without parameters of an optimiser", { path: "optim_step", more: {} }],
    ["with an access token", { path: "load_weights", more: { path: "tinker://x", weights_access_token: "secret" } }],
    ["with a name for inflight weights", { path: "save_weights_for_sampler", more: { path: "a", kind: "inflight" } }],
    [
      "with an unknown kind",
      { path: "save_weights_for_sampler", more: { sampling_session_seq_id: 0, kind: "pinned" } },
    ],
  ];
  test.each(lacking)("%s leaves no gap", async (_, { path, more }) => {
    const server = await openServer({ limits: { gapMs: 60_000 }, holdMs: 50 });
    const id = await server.model();
    const refused = more
      ? await server.post(path, { model_id: id, seq_id: 1, ...more })
      : await server.post(path, backward(id, { seq: 1 }), { "content-type": "application/x-protobuf" });
    expect([404, 415, 422]).toContain(refused.status);
    const next = await server.post("optim_step", step(id, 2));
    expect(await server.retrieve(next.json.request_id)).toMatchObject({ status: 200, json: { metrics: {} } });
  });

  test("says what it lacks", async () => {
    const server = await openServer();
    const id = await server.model();
    const detail = async (path: string, body: object) =>
      (await server.post(path, { model_id: id, seq_id: 0, ...body })).json.detail;
    expect(await detail("optim_step", { optimizer_params: { type: "dimuon" } })).toBe(
      'Cannot run optim_step: this server trains only with AdamW ("dimuon"). Tinker\'s documentation describes the update of dimuon and publishes no formula of it. Send AdamParams.',
    );
    expect(await detail("optim_step", { optimizer_params: { type: "sgd" } })).toBe(
      'Cannot run optim_step: this server trains only with AdamW ("sgd"). Send AdamParams.',
    );
    expect(await detail("load_weights", { path: "x", optimizer: true, weights_access_token: "a" })).toContain(
      "Omit weights_access_token.",
    );
    expect(await detail("save_weights_for_sampler", { sampling_session_seq_id: 0, kind: "pinned" })).toContain(
      'must be "snapshot" or "inflight"',
    );
  });
});

test("sampling for a loss that the server lacks is refused when it begins, with the losses to take", async () => {
  const server = await openServer();
  const session_id = await server.session();
  const sampler = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
  const id = (await server.post("create_sampling_session", sampler)).json.sampling_session_id;
  const refused = await server.post("asample", draw(id, 0, { record_stability_info: true }));
  expect(refused).toMatchObject({
    status: 422,
    json: {
      detail: expect.stringMatching(
        /train with importance_sampling, cispo or gspo.*--stable-reinforce score_centering/,
      ),
    },
  });
  expect((await server.post("asample", draw(id, 1, { record_stability_info: false }))).status).toBe(200);
});

test("the top tokens of a prompt come with the log-probs of its own", async () => {
  const server = await openServer();
  const session_id = await server.session();
  const sampler = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
  const id = (await server.post("create_sampling_session", sampler)).json.sampling_session_id;
  const { bytes } = await server.result("asample", draw(id, 0, { topk_prompt_logprobs: 2 }));
  expect([...decodeSamples(bytes).promptLogprobs!]).toEqual([Number.NaN, -1]);
});

test("samples come with the most likely tokens at each of theirs", async () => {
  const server = await openServer({ bodiesBytes: 1_000_000 });
  const session_id = await server.session();
  const sampler = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
  const id = (await server.post("create_sampling_session", sampler)).json.sampling_session_id;
  const sequenceOf = async (seq: number, more: object) => {
    const { bytes } = await server.result("asample", draw(id, seq, more));
    return new Map([...fields([...fields(bytes)][0]!.bytes)].map(({ number, bytes }) => [number, bytes]));
  };
  const topk = { token_ids: Int32Array.of(1, 2), logprobs: Float32Array.of(-1, -2) };
  const written = new ProtobufWriter().bytes(1, bytesOf(topk.token_ids)).bytes(2, bytesOf(topk.logprobs)).varint(3, 2);
  expect((await sequenceOf(0, { topk_sample_logprobs: 2 })).get(4)).toEqual(written.varint(4, 1).finish());
  expect((await sequenceOf(1, {})).has(4)).toBe(false);
  // 4 tokens, 100 top ones, 64 bytes each: they count while the request waits, with the bodies.
  const open = holdEngine(server);
  const many = (seq: number) => server.post("asample", draw(id, seq, { topk_sample_logprobs: 100, num_samples: 20 }));
  expect((await many(2)).status).toBe(200);
  expect((await many(3)).status).toBe(429);
  open();
});

test("a result holds the loss of every target, and data of several targets keep their shape", async () => {
  const server = await openServer();
  const id = await server.model();
  const { bytes } = await server.result("forward_backward", backward(id, { seq: 1, targets: [4, 6] }));
  const written = encodeTrainingOutput({
    logprobs: Float32Array.of(-4, -6),
    losses: Float32Array.of(2, 3),
    offsets: Uint32Array.of(0, 2),
    metrics: { "loss:sum": 1.5 },
  });
  expect(Buffer.from(bytes).equals(written)).toBe(true);
  // Later fields win: the fixture's model and number are those of another client.
  const address = new ProtobufWriter().text(1, id).varint(2, 2).finish();
  const answer = await server.result("forward_backward", Buffer.concat([address, sdkMessage("sparse"), address]));
  expect(answer.status).toBe(200);
  expect(server.engine.calls.at(-1)).toBe("backward 7,0,8,0,9,0");
});

describe("the base model's name", () => {
  const root = async () => {
    const folder = await mkdtemp(join(tmpdir(), "grpu-tinker-"));
    onTestFinished(() => rm(folder, { recursive: true, force: true }));
    return folder;
  };
  const modelOf = async (server: TestServer, base_model: string) => {
    const session_id = await server.session();
    return (await server.result("create_model", { session_id, model_seq_id: 0, base_model })).json.model_id as string;
  };

  test.each(["toy", "/models/toy"])("is the one that the client used (%s)", async (name) => {
    const server = await openServer();
    const model_id = await modelOf(server, name);
    const { json } = await server.post("get_info", { model_id });
    expect(json).toMatchObject({ model_name: name, model_data: { model_name: name } });
  });

  test.each([
    ["the same weights: its own folder, from which a client resumes", "toy weights", "/models/toy"],
    ["other weights: the recorded name, which it refuses", "other weights", "org/alias"],
  ])("of a checkpoint, on a server without that name but with %s", async (_, fingerprint, expected) => {
    const folder = await root();
    const first = await openServer({ root: folder, modelNames: ["org/alias", "/models/toy"] });
    const id = await modelOf(first, "org/alias");
    const { path } = (await first.result("save_weights", { model_id: id, seq_id: 1, path: "a" })).json;
    first.service.close();
    const second = await openServer({ root: folder, modelNames: ["/models/toy"] });
    second.engine.fingerprint = fingerprint;
    const info = (await second.post("weights_info", { tinker_path: path })).json;
    expect(info.base_model).toBe(expected);
    expect((await second.get(`training_runs/${id}`)).json.base_model).toBe(expected);
    const session_id = await second.session();
    const { json } = await second.result("load_weights", { session_id, model_seq_id: 0, path, optimizer: true });
    if (expected === "org/alias") expect(json.error).toContain("this server has another one");
    else expect(json.model_id).toBe(`${session_id}:train:0`);
  });
});

test("a load replaces a gradient with a failed part: the next optim_step runs", async () => {
  const server = await openServer();
  const id = await server.model();
  const { path } = (await server.result("save_weights", { model_id: id, seq_id: 1, path: "a" })).json;
  await server.result("forward_backward", backward(id, { seq: 2, loss: "mse" }));
  await server.result("load_weights", { model_id: id, seq_id: 3, path, optimizer: true });
  await server.result("forward_backward", backward(id, { seq: 4 }));
  expect((await server.result("optim_step", step(id, 5))).json).toMatchObject({ metrics: { grad_norm: 1 } });
});

test("a load that fails leaves a failed gradient refused", async () => {
  const server = await openServer();
  const id = await server.model();
  await server.result("forward_backward", backward(id, { seq: 1, loss: "mse" }));
  const path = `tinker://${id}/weights/absent`;
  expect(
    (await server.result("load_weights", { model_id: id, seq_id: 2, path, optimizer: true })).json.error,
  ).toContain("does not exist");
  expect((await server.result("optim_step", step(id, 3))).json.error).toContain("Cannot take the loss mse");
});

describe("inflight weights", () => {
  const drawn = async (server: TestServer, sampler: string, seq: number) =>
    decodeSamples((await server.result("asample", draw(sampler, seq))).bytes).sequences[0]!.tokens[0];
  const save = async (server: TestServer, id: string, seq_id: number, kind?: string) =>
    (await server.result("save_weights_for_sampler", { model_id: id, seq_id, sampling_session_seq_id: seq_id, kind }))
      .json.sampling_session_id as string;

  test("reach clients that exist already; snapshots stay", async () => {
    const server = await openServer();
    const id = await server.model();
    const [first, pinned] = [await save(server, id, 1, "inflight"), await save(server, id, 2)];
    expect([await drawn(server, first, 0), await drawn(server, pinned, 0)]).toEqual([0, 0]);
    await server.result("optim_step", step(id, 3));
    expect(await drawn(server, first, 1)).toBe(0);
    const second = await save(server, id, 4, "inflight");
    expect(second).not.toBe(first);
    expect([await drawn(server, first, 2), await drawn(server, second, 0)]).toEqual([1, 1]);
    expect(await drawn(server, pinned, 1)).toBe(0);
    // The weights that were replaced are freed, and those of the session end with it.
    expect(server.service.policies.bytes).toBe(2 * server.engine.snapshotBytes);
  });

  test("are another model's own", async () => {
    const server = await openServer();
    const session = await server.session();
    const [a, b] = [await server.model(session, 0), await server.model(session, 1)];
    const sampler = await save(server, a, 1, "inflight");
    await server.result("optim_step", step(b, 1));
    await save(server, b, 2, "inflight");
    expect(await drawn(server, sampler, 0)).toBe(0);
  });

  test("that were dropped to free memory come back with the next save", async () => {
    const server = await openServer({ limits: { policyBytes: 100 } });
    const id = await server.model();
    const sampler = await save(server, id, 1, "inflight");
    await save(server, id, 2);
    expect((await server.result("asample", draw(sampler, 0))).json.error).toContain("dropped to free memory");
    await save(server, id, 3, "inflight");
    expect(await drawn(server, sampler, 1)).toBe(0);
  });
});

describe("projects", () => {
  test("select training runs, also after a session moves and the server restarts", async () => {
    const folder = await mkdtemp(join(tmpdir(), "grpu-tinker-"));
    onTestFinished(() => rm(folder, { recursive: true, force: true }));
    const first = await openServer({ root: folder });
    const session = async (project_id?: string) =>
      (await first.post("create_session", { tags: [], sdk_version: "1", project_id })).json.session_id as string;
    const [a, b, none] = [await session("a"), await session("b"), await session()];
    for (const id of [a, b, none]) await first.model(id);
    const listed = async (server: TestServer, query: string) => {
      const { json } = await server.get(`training_runs?limit=9${query}`);
      expect(json.cursor.total_count).toBe(json.training_runs.length);
      return json.training_runs.map((run: { training_run_id: string }) => run.training_run_id).sort();
    };
    const runs = (...sessions: string[]) => sessions.map((id) => `${id}:train:0`).sort();
    expect(await listed(first, "")).toEqual(runs(a, b, none));
    expect(await listed(first, "&project_id=a")).toEqual(runs(a));
    expect((await first.send(put(`sessions/${none}/project`, { project_id: "a" }))).status).toBe(204);
    expect(await listed(first, "&project_id=a")).toEqual(runs(a, none));
    first.service.close();
    expect(await listed(await openServer({ root: folder }), "&project_id=a")).toEqual(runs(a, none));
  });

  test("queries with fields that would be ignored are refused", async () => {
    const server = await openServer();
    for (const [query, text] of [
      ["training_runs?owner=me", "does not support the field owner"],
      ["checkpoints?project_id=a", "does not support the field project_id"],
      ["sessions?access_scope=all", "access_scope must be owned or accessible (all)"],
    ] as const)
      expect(await server.get(query)).toMatchObject({ status: 422, json: { detail: expect.stringContaining(text) } });
    expect((await server.get("training_runs?access_scope=accessible")).status).toBe(200);
  });
});

function put(path: string, body: object): Request {
  return new Request(`http://localhost:8000/api/v1/${path}`, {
    method: "PUT",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json" },
  });
}

describe("external weights", () => {
  test("are files that others read, each from its own secret URL; they are listed, expire and are deleted like the others", async () => {
    const server = await openServer({ apiKey: "tml-secret" });
    const key = { "x-api-key": "tml-secret" };
    const post = (path: string, body: object) => server.post(path, body, key);
    const session_id = (await post("create_session", { tags: [], sdk_version: "1" })).json.session_id;
    await post("create_model", { session_id, model_seq_id: 0, base_model: "toy", lora_config: { rank: 4 } });
    const id = `${session_id}:train:0`;
    const { request_id } = (await post("save_weights_external", { model_id: id, seq_id: 1, path: "out" })).json;
    const path = `tinker://${id}/external_weights/out`;
    expect((await post("retrieve_future", { request_id })).json).toEqual({ path, type: "save_weights_external" });
    const at = `training_runs/${id}/checkpoints`;
    expect((await server.get(at, key)).json.checkpoints).toMatchObject([
      { checkpoint_id: "external_weights/out", checkpoint_type: "external", tinker_path: path },
    ]);
    const { urls, expires } = (await server.get(`${at}/external_weights/out/external_weights_urls`, key)).json;
    expect(Object.keys(urls)).toEqual(["adapter_config.json"]);
    expect(Date.parse(expires)).toBeGreaterThan(Date.now() + 3_500_000);
    const file = await server.send(new Request(urls["adapter_config.json"]));
    expect([file.status, new TextDecoder().decode(file.bytes)]).toEqual([200, "{}"]);
    for (const name of ["base.json", "checkpoint.json", "..%2Fcheckpoint.json"]) {
      const other = urls["adapter_config.json"].replace("adapter_config.json", name);
      expect((await server.send(new Request(other))).status).toBe(404);
    }
    const remove = new Request(`http://localhost:8000/api/v1/${at}/external_weights/out`, {
      method: "DELETE",
      headers: key,
    });
    expect((await server.send(remove)).status).toBe(204);
    expect((await server.send(new Request(urls["adapter_config.json"]))).status).toBe(404);
  });

  test("are encrypted to the recipients of age that a client names", async () => {
    const server = await openServer();
    const model_id = await server.model();
    const save = (more: object) => server.result("save_weights_external", { model_id, ...more });
    const age_encryption_recipients = ["age1rn2alw350zve3qf07vzl5lcey50dkrdj03c5hengwp56v9fdrcyqdyyynl"];
    const { path } = (await save({ seq_id: 1, path: "a", age_encryption_recipients })).json;
    const at = `training_runs/${model_id}/checkpoints/external_weights/a`;
    const { urls } = (await server.get(`${at}/external_weights_urls`)).json;
    expect(Object.keys(urls)).toEqual(["adapter_config.json.age"]);
    const { bytes } = await server.send(new Request(urls["adapter_config.json.age"]));
    expect(new TextDecoder().decode(bytes.subarray(0, 32))).toBe("age-encryption.org/v1\n-> X25519 ");
    const load = await server.result("load_weights", { model_id, seq_id: 2, path });
    expect(load.json).toMatchObject({ category: "user", error: expect.stringContaining("are encrypted") });
    const refused = { model_id, seq_id: 3, path: "b", age_encryption_recipients: ["age1x"] };
    expect(await server.post("save_weights_external", refused)).toMatchObject({
      status: 422,
      json: { detail: expect.stringContaining("age_encryption_recipients[0] is not a public key of age") },
    });
  });

  test("outlive the server, and have no optimiser", async () => {
    const root = await mkdtemp(join(tmpdir(), "grpu-tinker-"));
    onTestFinished(() => rm(root, { recursive: true, force: true }));
    const first = await openServer({ root });
    const id = await first.model();
    const { path } = (await first.result("save_weights_external", { model_id: id, seq_id: 1, path: "out" })).json;
    const load = { model_id: id, seq_id: 2, path, optimizer: true };
    expect((await first.result("load_weights", load)).json.error).toContain("external weights have none");
    first.service.close();
    const second = await openServer({ root });
    expect((await second.get(`training_runs/${id}/checkpoints`)).json.checkpoints).toHaveLength(1);
  });
});

describe("a search of sessions", () => {
  const found = async (server: TestServer, query: object) => (await server.post("sessions/search", query)).json;
  const ids = async (server: TestServer, query: object) =>
    (await found(server, query)).sessions.map((it: { session_id: string }) => it.session_id).sort();

  test("finds by name, metadata, project, owner and status, newest first, page by page", async () => {
    vi.useFakeTimers({ toFake: ["Date"] });
    onTestFinished(() => void vi.useRealTimers());
    const server = await openServer();
    const open = async (more: object) => {
      vi.setSystemTime(Date.now() + 1000);
      return (await server.post("create_session", { tags: [], sdk_version: "1", ...more })).json.session_id as string;
    };
    const a = await open({ display_name: "Nightly run A", user_metadata: { team: "x" }, project_id: "p" });
    const b = await open({ display_name: "nightly other", user_metadata: { team: "y" } });
    const c = await open({});
    const tests: readonly (readonly [object, readonly string[]])[] = [
      [{}, [a, b, c]],
      [{ display_name: "NIGHTLY" }, [a, b]],
      [{ display_name: "a nightly" }, [a]],
      [{ display_name: "other", session_id: c }, [b, c]],
      [{ session_id: "absent" }, []],
      [{ user_metadata: { team: "y" } }, [b]],
      [{ project_ids: ["p", "q"] }, [a]],
      [{ project_ids: ["default"] }, [b, c]],
      [{ owner: { type: "own" }, statuses: [{ type: "active" }] }, [a, b, c]],
      [{ owner: { type: "user", owner_urns: ["someone"] } }, []],
      [{ statuses: [{ type: "failed" }] }, []],
    ];
    for (const [query, expected] of tests) expect(await ids(server, query)).toEqual([...expected].sort());
    const page = await found(server, { limit: 2 });
    expect(page.sessions.map((it: { session_id: string }) => it.session_id)).toEqual([c, b]);
    const rest = await found(server, { limit: 2, cursor: page.next_cursor });
    expect(rest).toMatchObject({ sessions: [{ session_id: a, display_name: "Nightly run A" }], next_cursor: null });
    for (const [query, text] of [
      [{ limit: 201 }, "limit"],
      [{ cursor: { last_created_at: "later", last_session_id: a } }, "must be a time (later)"],
      [{ regex: "x" }, "does not support the field regex"],
    ] as const)
      expect(await server.post("sessions/search", query)).toMatchObject({
        status: 422,
        json: { detail: expect.stringContaining(text) },
      });
  });

  test("finds sessions that have ended by their training runs, with their checkpoints", async () => {
    const server = await openServer();
    const session = await server.session();
    const id = await server.model(session);
    await server.result("save_weights", { model_id: id, seq_id: 1, path: "a" });
    const [open] = (await found(server, {})).sessions;
    expect(open).toMatchObject({ status: { type: "active" }, checkpoints_count: 1 });
    expect(open.checkpoint_storage_bytes).toBeGreaterThan(0);
    await server.post(`sessions/${session}/finish`, {});
    expect((await found(server, {})).sessions).toMatchObject([
      { session_id: session, status: null, checkpoints_count: 1, project_id: "default", owner: "local" },
    ]);
    expect((await found(server, { statuses: [{ type: "active" }] })).sessions).toEqual([]);
  });
});

test("a checkpoint is deleted by its name alone where only one kind has it", async () => {
  const server = await openServer();
  const id = await server.model();
  await server.result("save_weights_for_sampler", { model_id: id, seq_id: 1, path: "step-1" });
  await server.result("save_weights_for_sampler", { model_id: id, seq_id: 2, path: "both" });
  await server.result("save_weights", { model_id: id, seq_id: 3, path: "both" });
  const remove = (name: string) =>
    server.send(
      new Request(`http://localhost:8000/api/v1/training_runs/${id}/checkpoints/${name}`, { method: "DELETE" }),
    );
  expect((await remove("step-1")).status).toBe(204);
  expect(await remove("step-1")).toMatchObject({ status: 404, json: { detail: expect.stringContaining("step-1") } });
  expect(await remove("both")).toMatchObject({
    status: 400,
    json: { detail: expect.stringContaining("Name it as weights/both or sampler_weights/both.") },
  });
  const left = (await server.get(`training_runs/${id}/checkpoints`)).json.checkpoints;
  expect(left.map((it: { checkpoint_id: string }) => it.checkpoint_id).sort()).toEqual([
    "sampler_weights/both",
    "weights/both",
  ]);
});

test("a sweep that fails in parts is logged and ends neither the server nor the rest of the sweep", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "Date"] });
  onTestFinished(() => void vi.useRealTimers());
  const lines: string[] = [];
  const server = await openServer({ log: (line) => lines.push(line), limits: { sessionMs: 60_000 } });
  const ids = [await server.session(), await server.session()];
  await server.model(ids[0]);
  vi.spyOn(server.service.policies, "dropSession").mockImplementationOnce(() => {
    throw new Error("the device is away");
  });
  vi.spyOn(server.service.checkpoints, "sweep").mockRejectedValueOnce(new Error("EACCES"));
  // A sweep does not start before the last one has ended.
  for (let i = 0; i < 3; i++) {
    vi.advanceTimersByTime(30_500);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  await eventually(() =>
    expect(lines).toEqual(
      expect.arrayContaining([
        `could not end session ${ids[0]}: the device is away`,
        `session ${ids[1]} ended: no sign of life for 2 min`,
        "could not delete expired checkpoints: EACCES",
      ]),
    ),
  );
  expect(server.service.sessions.size).toBe(0);
});

test("no sweep starts while another one runs", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  const server = await openServer({ limits: { sessionMs: 1000 } });
  let end: () => void = () => {};
  const sweep = vi.spyOn(server.service.checkpoints, "sweep").mockReturnValueOnce(
    new Promise((resolve) => {
      end = resolve;
    }),
  );
  vi.advanceTimersByTime(1000);
  await eventually(() => expect(sweep).toHaveBeenCalledTimes(1));
  vi.advanceTimersByTime(3000);
  end();
  await new Promise((resolve) => setImmediate(resolve));
  expect(sweep).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1000);
  await eventually(() => expect(sweep).toHaveBeenCalledTimes(2));
});
