/** What a server with copied weights recorded for stable_reinforce, handed on to the server that trains them. */
import { describe, expect, test } from "vitest";
import { parsePath } from "../../../src/serve/tinker/checkpoint_path.ts";
import { handedMessages } from "../../../src/serve/tinker/stability/handed_message.ts";
import type { NamedSequence } from "../../../src/serve/tinker/stability/recorded_sequences.ts";
import { draw, holdEngine, openServer, type TestServer } from "./tinker_client.ts";

const FIRST = "http://first:8000";
const KEY = "tml-secret";
const SERVED = { stableReinforce: "score_centering", apiKey: KEY } as const;
const HEADERS = { "x-api-key": KEY };
type Answering = (request: Request, real: () => Promise<Response>) => Response | Promise<Response>;

/** A server that trains, with a checkpoint of its model, and one that samples from it. */
async function openTwo(answer: Answering = (_, real) => real(), first: Parameters<typeof openServer>[0] = SERVED) {
  const one = await openServer(first);
  const sent: Request[] = [];
  const two = await openServer({
    ...SERVED,
    peers: {
      ...{ urls: [FIRST], apiKey: KEY, patienceMs: 1000 },
      fetch: async (url, init) => {
        const request = new Request(url.replace("first", "localhost"), init);
        const real = async () => one.app.fetch(request);
        if (!url.endsWith("/recorded_sequences")) return real();
        sent.push(request.clone());
        return answer(request, real);
      },
    },
  });
  const { session, model, path } = await trained(one);
  return { one, two, sent, session, model, path, ...(await sampler(two, path)) };
}

const call = async (server: TestServer, path: string, body: object) => {
  const { json } = await server.post(path, body, HEADERS);
  return json?.request_id === undefined ? json : (await retrieve(server, json.request_id)).json;
};
const retrieve = (server: TestServer, request_id: string) => server.post("retrieve_future", { request_id }, HEADERS);

async function trained(server: TestServer) {
  const session = (await call(server, "create_session", { tags: [], sdk_version: "1" })).session_id as string;
  const model = { session_id: session, model_seq_id: 0, base_model: "toy", lora_config: { rank: 4 } };
  const { model_id } = await call(server, "create_model", model);
  const save = { model_id, seq_id: 1, path: "a" };
  const { path } = await call(server, "save_weights_for_sampler", save);
  return { session, model: model_id as string, path: path as string };
}

async function sampler(server: TestServer, model_path: string) {
  const session_id = (await call(server, "create_session", { tags: [], sdk_version: "1" })).session_id as string;
  const of = { session_id, sampling_session_seq_id: 0, model_path };
  const { sampling_session_id } = await call(server, "create_sampling_session", of);
  let drawn = 0;
  const sample = async (more: object = {}) => {
    const body = draw(sampling_session_id, drawn++, { record_stability_info: true, ...more });
    const { json } = await server.post("asample", body, HEADERS);
    return { ids: json.sample_sequence_ids as string[], result: await retrieve(server, json.request_id) };
  };
  return { sampling: session_id, sample };
}

test("a sample is answered when the server that trains has it, with the key and no redirect", async () => {
  const { one, two, sent, session, sampling, sample } = await openTwo();
  const { ids, result } = await sample({ num_samples: 2 });
  expect(result.status).toBe(200);
  expect(sent.map(({ url, redirect, headers }) => [url, redirect, headers.get("x-api-key")])).toEqual([
    ["http://localhost:8000/api/v1/recorded_sequences", "error", KEY],
  ]);
  for (const id of ids) {
    expect(id).toMatch(new RegExp(`^${sampling}:`));
    const [there, here] = [
      one.service.stability.recorded.use(id, session),
      two.service.stability.recorded.use(id, sampling),
    ];
    for (const it of [there, here]) expect([[...it.tokens], it.k, it.top.tokens.length]).toEqual([[7], 20, 20]);
    expect(there.top).toEqual(here.top);
  }
});

test("samples that are not recorded, or of the server's own base model, go nowhere", async () => {
  const { two, sent, sample } = await openTwo();
  expect((await sample({ record_stability_info: false })).result.status).toBe(200);
  const session_id = (await call(two, "create_session", { tags: [], sdk_version: "1" })).session_id;
  const of = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
  const { sampling_session_id } = await call(two, "create_sampling_session", of);
  expect(await call(two, "asample", draw(sampling_session_id, 0, { record_stability_info: true }))).toBeUndefined();
  expect(sent).toEqual([]);
});

test("a peer that fails is asked again, and keeps once what it answered in vain", async () => {
  let tries = 0;
  const { one, session, sample } = await openTwo(async (_, real) => {
    tries++;
    if (tries === 1) throw new TypeError("fetch failed");
    const answer = await real();
    return tries === 2 ? new Response(null, { status: 502 }) : answer;
  });
  const { ids } = await sample();
  expect(tries).toBe(3);
  expect(one.service.stability.recorded.size).toBe(1);
  expect(one.service.stability.recorded.use(ids[0]!, session).k).toBe(20);
});

test.each<[string, number, Answering, RegExp]>([
  [
    "stays away",
    503,
    () => Promise.reject(new TypeError("no route")),
    /which trains their weights: no route\. Sample again later\.$/,
  ],
  ["stays busy", 503, () => Response.json({ detail: "full." }, { status: 429 }), /it answers 429 \(full\)/],
  [
    "has another key",
    400,
    () => Response.json({ detail: "no" }, { status: 401 }),
    /answers 401 \(no\)\. .*the same key/,
  ],
  ["lacks the route", 400, () => Response.json({ detail: "no" }, { status: 404 }), /answers 404 .*same release/],
])("a peer that %s makes the sample fail with what is wrong", async (_, status, answer, message) => {
  const { sample } = await openTwo(answer);
  const { json } = (await sample()).result;
  expect(json.error).toMatch(message);
  expect(json.category).toBe(status === 503 ? "server" : "user");
});

test("a server that does not serve the loss says so at the sample", async () => {
  const { sample } = await openTwo(undefined, { apiKey: KEY });
  expect((await sample()).result.json.error).toMatch(/answers 422 \(.*--stable-reinforce/);
});

test("weights that no open session trains leave the sample where it was drawn", async () => {
  const { one, two, sampling, session, sample } = await openTwo();
  await call(one, `sessions/${session}/finish`, {});
  const { ids, result } = await sample();
  expect([result.status, result.json]).toEqual([200, undefined]);
  expect(one.service.stability.recorded.size).toBe(0);
  expect(two.service.stability.recorded.use(ids[0]!, sampling).k).toBe(20);
});

test("a hand-over ends when the server stops", async () => {
  const { two, sample } = await openTwo(() => {
    void two_.stop();
    return Promise.reject(new TypeError("away"));
  });
  const two_ = two.service;
  expect((await sample()).result.json.error).toContain("the server is stopping");
});

test("what one session of another server sampled makes room for it by its own oldest", async () => {
  const bytesOfOne = 256 + 8 + 4 + 8 * 20;
  const { one, session, path, sampling, sample } = await openTwo(undefined, {
    ...SERVED,
    limits: { stabilityBytes: 4 * bytesOfOne },
  });
  const own = await sampler(one, path);
  const mine = (await own.sample()).ids[0]!;
  const theirs: string[] = [];
  for (let i = 0; i < 5; i++) theirs.push((await sample()).ids[0]!);
  const { recorded } = one.service.stability;
  expect(recorded.bytes).toBe(4 * bytesOfOne);
  expect(recorded.use(mine, own.sampling).k).toBe(20);
  for (const id of theirs.slice(2)) recorded.use(id, session);
  expect(() => recorded.use(theirs[1]!, session)).toThrow("newer sequences took its room");
  expect(() => recorded.use(theirs[4]!, sampling)).toThrow("another session sampled it");
  await call(one, `sessions/${session}/finish`, {});
  expect(recorded.size).toBe(1);
});

const UUID = "01234567-89ab-cdef-0123-456789abcdef";
const SEQUENCE: NamedSequence = {
  id: `${UUID}:0:0`,
  prompt: Uint32Array.of(1, 2),
  tokens: Uint32Array.of(3, 4),
  k: 2,
  top: { tokens: Uint32Array.of(3, 5, 4, 6), logprobs: Float32Array.of(-1, -2, -0.5, -1) },
};

describe("a message", () => {
  const send = async (server: TestServer, { path, sequences }: { path: string; sequences: NamedSequence[] }) => {
    const [body] = handedMessages({ path, sequences });
    const headers = { ...HEADERS, "content-type": "application/x-protobuf" };
    return server.post("recorded_sequences", body, headers);
  };

  test("is taken once, and not in place of another one of its id", async () => {
    const { one, session, path } = await openTwo();
    for (let i = 0; i < 2; i++) expect((await send(one, { path, sequences: [SEQUENCE, SEQUENCE] })).status).toBe(204);
    const { recorded } = one.service.stability;
    expect(recorded.size).toBe(1);
    expect(recorded.use(SEQUENCE.id, session)).toMatchObject({ tokens: SEQUENCE.tokens, k: 2, top: SEQUENCE.top });
    const other = { ...SEQUENCE, top: { ...SEQUENCE.top, logprobs: Float32Array.of(-1, -2, -0.5, -1.5) } };
    expect(await send(one, { path, sequences: [other] })).toMatchObject({
      status: 400,
      json: { detail: expect.stringContaining("another sequence is recorded under the id") },
    });
  });

  test.each<[string, Partial<NamedSequence>, string]>([
    ["an id of another form", { id: "a:0" }, "the ids must be those of one session's samples"],
    ["no prompt", { prompt: new Uint32Array() }, "its prompt must have a token"],
    ["more tokens than the context has", { prompt: new Uint32Array(10_000) }, "it must fit the context"],
    ["more tokens at a place than are recorded", { k: 21 }, "it must have 1 to 20 tokens at each place"],
    ["none at a place", { k: 0 }, "it must have 1 to 20 tokens at each place"],
    ["arrays of another length", { k: 1 }, "its arrays must have these at every place"],
    ["a token that the model lacks", { tokens: Uint32Array.of(3, 1e6) }, "ids must be below"],
    [
      "more than all probability",
      { top: { ...SEQUENCE.top, logprobs: Float32Array.of(-1, -2, 0, -1) } },
      "add up to 1 at most",
    ],
    [
      "no number",
      { top: { ...SEQUENCE.top, logprobs: Float32Array.of(-1, Number.NaN, -1, -1) } },
      "add up to 1 at most",
    ],
  ])("with %s is refused", async (_, change, why) => {
    const { one, path } = await openTwo();
    const refused = await send(one, { path, sequences: [{ ...SEQUENCE, ...change }] });
    expect(refused).toMatchObject({ status: 422, json: { detail: expect.stringContaining(why) } });
    expect(one.service.stability.recorded.size).toBe(0);
  });

  test.each<[string, (ids: { path: string; session: string }) => { path: string; id?: string }, number]>([
    ["for a run that nobody trains", ({ path }) => ({ path: path.replace(":0/", ":7/") }), 410],
    ["for a path of another form", () => ({ path: "a" }), 400],
    ["that names a sample of an own session", ({ path, session }) => ({ path, id: `${session}:0:0` }), 400],
  ])("%s is refused", async (_, change, status) => {
    const { one, path, session } = await openTwo();
    const { id = SEQUENCE.id, path: to } = change({ path, session });
    expect((await send(one, { path: to, sequences: [{ ...SEQUENCE, id }] })).status).toBe(status);
    expect(one.service.stability.recorded.size).toBe(0);
  });

  test("for weights that this server copied too is refused with the server to name", async () => {
    const { two, path } = await openTwo();
    expect(two.service.checkpoints.findRun(parsePath(path).run).copiedFrom).toBe(FIRST);
    expect(await send(two, { path, sequences: [SEQUENCE] })).toMatchObject({
      status: 400,
      json: { detail: expect.stringContaining(`from ${FIRST}. Give that server as --peer.`) },
    });
  });

  test("needs the key, its type, and the loss", async () => {
    const { one, path } = await openTwo();
    const [body] = handedMessages({ path, sequences: [SEQUENCE] });
    const type = { "content-type": "application/x-protobuf" };
    expect((await one.post("recorded_sequences", body, type)).status).toBe(401);
    expect((await one.post("recorded_sequences", body, { ...HEADERS, "content-type": "text/plain" })).status).toBe(415);
    const damaged = await one.post("recorded_sequences", Uint8Array.of(0x12, 3, 1, 2, 3), { ...HEADERS, ...type });
    expect(damaged.status).toBe(422);
    const without = await openServer({ apiKey: KEY });
    expect((await without.post("recorded_sequences", body, { ...HEADERS, ...type })).status).toBe(422);
  });

  test("that is large goes in parts of some megabytes", () => {
    const tokens = new Uint32Array(20_000);
    const top = { tokens: new Uint32Array(400_000), logprobs: new Float32Array(400_000) };
    const many = Array.from({ length: 4 }, (_, i) => ({ ...SEQUENCE, id: `${UUID}:0:${i}`, tokens, k: 20, top }));
    const sizes = [...handedMessages({ path: "tinker://a", sequences: many })].map(({ byteLength }) => byteLength);
    expect(sizes).toHaveLength(4);
    expect(Math.max(...sizes)).toBeLessThan(4 * 2 ** 20);
    expect([...handedMessages({ path: "p", sequences: [SEQUENCE, SEQUENCE] })]).toHaveLength(1);
  });
});

test("few hand-overs are under way at once, and what waits holds its share of the memory for bodies", async () => {
  let [running, most] = [0, 0];
  let go = () => {};
  const gate = new Promise<void>((resolve) => {
    go = resolve;
  });
  const { two, sample } = await openTwo(async (_, real) => {
    most = Math.max(most, ++running);
    await gate;
    running--;
    return real();
  });
  const open = holdEngine(two);
  const all = Array.from({ length: 9 }, () => sample());
  open();
  await expect.poll(() => most).toBe(4);
  go();
  for (const { result } of await Promise.all(all)) expect(result.status).toBe(200);
  expect(most).toBe(4);
});
