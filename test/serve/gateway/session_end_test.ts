/** Who may open and end sessions: what an agent's key, a session's own key and the admin token do once a session has ended. */
import { afterEach, describe, expect, test, vi } from "vitest";
import type { ChatEngine } from "../../../src/chat/engine.ts";
import type { SessionSummary, TraceStore } from "../../../src/engine/contract/trace.ts";
import { MemoryTraceStore, UnrecordedStore } from "../../../src/train/trace/mod.ts";
import { call, closeGateways, openGateway, scriptedHost } from "../../fixtures/gateway.ts";

afterEach(closeGateways);

const AUTH = { apiKeys: ["agent-1"], adminToken: "admin-token" };
const CHAT = { model: "scripted", messages: [{ role: "user", content: "in" }] };

/** Another process may hold the database: what was read is old when it arrives. */
class SlowStore extends MemoryTraceStore {
  override async getSession(id: string): Promise<SessionSummary | undefined> {
    const found = await super.getSession(id);
    await new Promise((resolve) => setTimeout(resolve, 5));
    return found;
  }
}

/** A gateway and its callers. */
async function opened(options: Parameters<typeof openGateway>[0] = {}) {
  const gateway = await openGateway({ auth: AUTH, ...options });
  const { url } = gateway;
  return {
    ...gateway,
    chat: async (id: string, key: string) => call(`${url}/sessions/${id}/v1/chat/completions`, { body: CHAT, key }),
    create: async (body: object, key: string) => call(`${url}/sessions`, { body, key }),
    reward: async (id: string, it: { key: string; reward: number }) =>
      call(`${url}/sessions/${id}/reward`, { body: { reward: it.reward }, key: it.key }),
  };
}

const rewardIn = async (store: TraceStore, id: string) => (await store.getSession(id))?.outcome?.reward;

describe("what a run trained on", () => {
  const trajectories = [{ name: "a", label: "a", reward: 1, calls: [{ trace_id: "t", reward: 0, advantage: [1] }] }];
  const given = async (key: string, body: object) => {
    const { url, create, store } = await opened();
    await create({ session_id: "s" }, "agent-1");
    const { status } = await call(`${url}/sessions/s/reward`, { body: { reward: 1, ...body }, key });
    return { status, kept: (await store.getSession("s"))?.outcome?.trajectories };
  };

  test("comes from an administrator alone", async () => {
    expect(await given("admin-token", { trajectories })).toEqual({ status: 200, kept: trajectories });
    expect(await given("agent-1", { trajectories })).toEqual({ status: 200, kept: undefined });
    expect(await given("admin-token", { trajectories: null })).toEqual({ status: 200, kept: undefined });
  });

  test.each([
    [[{ ...trajectories[0], label: undefined }]],
    [[{ ...trajectories[0], calls: [{ trace_id: "t" }] }]],
    [[{ ...trajectories[0], step: 1 }]],
  ])("is refused in another form: %j", async (wrong) => {
    expect(await given("admin-token", { trajectories: wrong })).toEqual({ status: 400, kept: undefined });
  });
});

describe("a session that has ended", () => {
  test("takes no call, no second start and no second reward from an agent's key", async () => {
    const { chat, create, reward, store } = await opened();
    await chat("s", "agent-1");
    expect((await reward("s", { key: "agent-1", reward: 0.5 })).status).toBe(200);
    expect(await chat("s", "agent-1")).toMatchObject({ status: 410, body: { error: { code: "session_ended" } } });
    expect(await create({ session_id: "s" }, "agent-1")).toMatchObject({
      status: 409,
      body: { error: "Cannot create the session s: it has ended. Choose another session_id, or send the admin token." },
    });
    expect((await reward("s", { key: "agent-1", reward: 1 })).status).toBe(409);
    expect(await rewardIn(store, "s")).toBe(0.5);
    expect((await store.traces({ session_id: "s" })).length).toBe(1);
  });

  test("takes another reward, and starts again, with the admin token", async () => {
    const { chat, create, reward, store } = await opened();
    await chat("s", "agent-1");
    await reward("s", { key: "agent-1", reward: 0.5 });
    expect((await reward("s", { key: "admin-token", reward: 1 })).status).toBe(200);
    expect(await rewardIn(store, "s")).toBe(1);
    expect((await create({ session_id: "s", metadata: { try: 2 } }, "admin-token")).status).toBe(200);
    expect(await rewardIn(store, "s")).toBeUndefined();
    expect((await chat("s", "agent-1")).status).toBe(200);
  });

  test("takes one of many rewards that come at once, and no call that starts it again", async () => {
    const store = new SlowStore();
    const { chat, create, reward } = await opened({ store });
    await chat("s", "agent-1");
    const answers = await Promise.all(
      Array.from({ length: 16 }, async (_, i) => {
        const [one] = await Promise.all([
          reward("s", { key: "agent-1", reward: i }),
          create({ session_id: "s" }, "agent-1"),
        ]);
        return one.status;
      }),
    );
    const first = answers.indexOf(200);
    expect(answers.filter((status) => status === 200)).toHaveLength(1);
    expect(new Set(answers)).toEqual(new Set([200, 409]));
    expect(await rewardIn(store, "s")).toBe(first);
  });

  test("of a run takes one report of its agent; the run may use its id again", async () => {
    const gateway = await opened();
    const engine = scriptedHost(() => "hello").open({ model: "m", history: [] }) as never;
    const one = await gateway.openSession({ session_id: "task:0", engine });
    const report = (key: string) => call(one.callback_url, { body: { reward: 1 }, key });
    expect((await report(one.api_key)).status).toBe(200);
    expect((await report(one.api_key)).status).toBe(409);
    await one.end({ reward: 1 });
    expect((await report(one.api_key)).status).toBe(409);
    // A run that is resumed may give its sessions the same names.
    const two = await gateway.openSession({ session_id: "task:0", engine });
    expect((await gateway.chat("task:0", one.api_key)).status).toBe(401);
    expect((await gateway.chat("task:0", two.api_key)).status).toBe(200);
    await two.end({ reward: 0 });
    expect(await rewardIn(gateway.store, "task:0")).toBe(0);
  });
});

describe("a session's own key", () => {
  const keyed = async (gateway: Awaited<ReturnType<typeof opened>>, id = "s") => {
    const { body } = await gateway.create({ session_id: id, own_key: true, metadata: { a: 1 } }, "admin-token");
    return (body as { key: string }).key;
  };

  test("opens it after a restart, and no agent's key does", async () => {
    const store = new MemoryTraceStore();
    const first = await opened({ store });
    const key = await keyed(first);
    expect((await first.chat("s", key)).status).toBe(200);
    const { chat, create, reward } = await opened({ store });
    expect((await chat("s", "agent-1")).status).toBe(401);
    expect((await reward("s", { key: "agent-1", reward: 1 })).status).toBe(401);
    expect((await create({ session_id: "s" }, "agent-1")).status).toBe(409);
    expect((await chat("s", key)).status).toBe(200);
    expect((await reward("s", { key, reward: 1 })).status).toBe(200);
    expect((await reward("s", { key, reward: 0 })).status).toBe(409);
    expect((await reward("s", { key: "admin-token", reward: 0.5 })).status).toBe(200);
    expect((await chat("s", key)).status).toBe(410);
    expect((await chat("s", "agent-1")).status).toBe(401);
  });

  test("opens it after it left memory", async () => {
    const gateway = await opened({ limits: { sessions: 1 } });
    const key = await keyed(gateway);
    await gateway.chat("s", key);
    await gateway.chat("other", "agent-1");
    expect(gateway.service.sessions.get("s")).toBeUndefined();
    const named = { body: { ...CHAT, metadata: { session_id: "s" } }, key: "agent-1" };
    expect((await call(`${gateway.url}/v1/chat/completions`, named)).status).toBe(401);
    expect((await gateway.chat("s", "agent-1")).status).toBe(401);
    expect((await gateway.chat("s", key)).status).toBe(200);
  });

  test("is replaced by a new one of the administrator's, and stays without", async () => {
    const gateway = await opened();
    const one = await keyed(gateway);
    await gateway.create({ session_id: "s", metadata: { b: 2 } }, "admin-token");
    expect((await gateway.chat("s", one)).status).toBe(200);
    const two = await keyed(gateway);
    expect((await gateway.chat("s", one)).status).toBe(401);
    expect((await gateway.chat("s", two)).status).toBe(200);
  });

  test("is stored as a digest, which no answer shows", async () => {
    const gateway = await opened();
    const key = await keyed(gateway);
    const stored = (await gateway.store.getSession("s")) as SessionSummary;
    expect(stored.key_digest).toMatch(/^[0-9a-f]{64}$/);
    expect(JSON.stringify(stored)).not.toContain(key);
    for (const path of ["/sessions", "/sessions/s"]) {
      const { body } = await call(`${gateway.url}${path}`, { key: "admin-token" });
      expect(JSON.stringify(body)).toContain('"session_id":"s"');
      expect(JSON.stringify(body)).not.toContain("key_digest");
    }
  });

  test("guards a session that a run opens while an agent's call is still arriving", async () => {
    const gateway = await opened();
    const engine = scriptedHost(() => "secret").open({ model: "m", history: [] }) as never;
    let send: (text: string) => void = () => {};
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        send = (text) => {
          controller.enqueue(new TextEncoder().encode(text));
          if (text.endsWith("}")) controller.close();
        };
      },
    });
    send("{");
    const answer = fetch(`${gateway.url}/sessions/s/v1/chat/completions`, {
      method: "POST",
      headers: { authorization: "Bearer agent-1", "content-type": "application/json" },
      body,
      duplex: "half",
    } as RequestInit);
    await expect.poll(() => gateway.service.bodies.used).toBeGreaterThan(0);
    await gateway.openSession({ session_id: "s", engine });
    send(JSON.stringify(CHAT).slice(1));
    expect((await answer).status).toBe(401);
  });
});

describe("what a session's name and record may hold", () => {
  test.each([
    ["..", "a part between slashes"],
    ["a/../b", "a part between slashes"],
    ["./a", "a part between slashes"],
    ["a\nb", "control character"],
    ["a\u0000", "control character"],
    ["a\u2028b", "control character"],
    ["\ud800", "control character"],
    ["x".repeat(1025), "1025 letters"],
    ["", "it is empty"],
  ])("the id %j is refused wherever it comes from", async (id, why) => {
    const { url, store } = await openGateway();
    const created = await call(`${url}/sessions`, { body: { session_id: id } });
    expect(created).toMatchObject({ status: 400, body: { error: expect.stringContaining(why) } });
    if (id !== "") {
      const body = { ...CHAT, metadata: { session_id: id } };
      expect((await call(`${url}/v1/chat/completions`, { body })).status).toBe(400);
    }
    const isUrl = id.isWellFormed() && !id.includes(".");
    if (isUrl) {
      const path = `/sessions/${encodeURIComponent(id)}/v1/chat/completions`;
      expect((await call(`${url}${path}`, { body: CHAT })).status).toBe(id === "" ? 404 : 400);
    }
    if (/^[ -~]*$/.test(id)) {
      const headers = { "x-session-id": id };
      expect((await call(`${url}/v1/chat/completions`, { body: CHAT, headers })).status).toBe(400);
    }
    expect(await store.sessions({})).toEqual([]);
  });

  test.each(["a/b", "a/v1", "v1/a", "v1", "a b/%2F?#", "é/ü", "x/reward", "x".repeat(1024)])(
    "the URL of the session %j leads to it",
    async (id) => {
      const { url, store } = await openGateway();
      const { body } = await call(`${url}/sessions`, { body: { session_id: id } });
      const path = (body as { url: string }).url;
      expect((await call(`${url}${path}/chat/completions`, { body: CHAT })).status).toBe(200);
      expect((await store.sessions({})).map(({ session_id, trace_count }) => [session_id, trace_count])).toEqual([
        [id, 1],
      ]);
    },
  );

  test.each(["metadata", "sampling_params"])("%s that every trace would repeat have a limit", async (name) => {
    const { url, store } = await openGateway({ limits: { metadataLetters: 100 } });
    const create = (letters: number) => call(`${url}/sessions`, { body: { [name]: { a: "x".repeat(letters) } } });
    expect((await create(80)).status).toBe(200);
    expect(await create(100)).toMatchObject({
      status: 413,
      body: { error: expect.stringContaining(`its ${name} has`) },
    });
    expect(await store.sessions({})).toHaveLength(1);
  });

  test("opening and ending sessions counts as calls of the key, not for the administrator", async () => {
    const { create, reward } = await opened({ limits: { perMinute: 3 } });
    const statuses = [];
    for (let i = 0; i < 5; i++) statuses.push((await create({ session_id: `s${i}` }, "agent-1")).status);
    expect(statuses).toEqual([200, 200, 200, 429, 429]);
    expect((await reward("s0", { key: "agent-1", reward: 1 })).status).toBe(429);
    expect((await reward("s0", { key: "admin-token", reward: 1 })).status).toBe(200);
    for (let i = 0; i < 5; i++) expect((await create({ session_id: `a${i}` }, "admin-token")).status).toBe(200);
  });
});

describe("responses of the responses API", () => {
  const ask = (url: string, body: object) => call(`${url}/v1/responses`, { body });

  test("are found whatever model gave them, and only by their own session", async () => {
    const { url } = await openGateway({ engines: scriptedHost(() => "hello", { models: ["one", "two"] }) });
    const { id } = (await ask(`${url}/sessions/s`, { model: "two", input: "hi" })).body as { id: string };
    expect((await call(`${url}/sessions/s/v1/responses/${id}`)).body).toMatchObject({ id, model: "two" });
    const next = { model: "one", input: "on", previous_response_id: id };
    expect((await ask(`${url}/sessions/s`, next)).status).toBe(200);
    expect((await ask(`${url}/sessions/other`, next)).status).toBe(400);
    expect((await call(`${url}/v1/responses/${id}`)).status).toBe(404);
    expect((await call(`${url}/sessions/s/v1/responses/${id}`, { method: "DELETE" })).status).toBe(200);
    expect((await ask(`${url}/sessions/s`, next)).status).toBe(400);
  });

  test("hold a limited memory over all sessions, and none when a session leaves", async () => {
    const { url, service } = await openGateway({ limits: { responseBytes: 100_000 } });
    const { memory } = service as unknown as { memory: { bytes: number } };
    for (let i = 0; i < 30; i++) {
      await ask(`${url}/sessions/s${i}`, {
        model: "scripted",
        input: "x".repeat(2000),
        instructions: "y".repeat(2000),
      });
      expect(memory.bytes).toBeLessThanOrEqual(100_000);
    }
    expect(memory.bytes).toBeGreaterThan(50_000);
    await service.sessions.delete(Array.from({ length: 30 }, (_, i) => `s${i}`));
    expect(memory.bytes).toBe(0);
  });
});

test.each([false, true])(
  "a session that is deleted while it is called stays deleted: recorded synchronously %s",
  async (syncTraces) => {
    const { url, service, store } = await openGateway({ script: () => undefined, syncTraces });
    const { key } = (await call(`${url}/sessions`, { body: { session_id: "d", own_key: true } })).body as {
      key: string;
    };
    const body = { model: "scripted", messages: [{ role: "user", content: "in" }] };
    const answered = call(`${url}/sessions/d/v1/chat/completions`, { body, key });
    await expect.poll(() => service.sessions.get("d")?.running).toBe(1);
    // Tokens that the aborted call would leave as a trace.
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(await call(`${url}/sessions/d`, { method: "DELETE" })).toMatchObject({ body: { deleted: 1 } });
    await answered;
    await service.recorder.flush();
    expect([await store.getSession("d"), await store.traces({})]).toEqual([undefined, []]);
  },
);

describe("an outcome that a store does not take", () => {
  const setup = async (failures: number) => {
    const { service, store } = await openGateway();
    const engine = scriptedHost(() => "").open({ model: "scripted", history: [] }) as ChatEngine;
    const session = await service.openSession({ session_id: "run", engine });
    const put = store.putSession.bind(store);
    let left = failures;
    store.putSession = async (record) => {
      if (left-- > 0) throw new Error("database is locked");
      await put(record);
    };
    return { session, store };
  };

  test("at first is stored", async () => {
    const { session, store } = await setup(2);
    await session.end({ reward: 1 });
    expect((await store.getSession("run"))!.outcome).toMatchObject({ reward: 1 });
  });

  test("for long is stored by the next call, and of two calls the first counts", async () => {
    const { session, store } = await setup(12);
    vi.useFakeTimers();
    try {
      const failed = expect(session.end({ reward: 1 })).rejects.toThrow("database is locked");
      await vi.advanceTimersByTimeAsync(300_000);
      await failed;
    } finally {
      vi.useRealTimers();
    }
    await Promise.all([session.end({ reward: 2 }), session.end({ reward: 3 })]);
    expect((await store.getSession("run"))!.outcome).toMatchObject({ reward: 2 });
  });
});

describe("a gateway that records nothing", () => {
  test("knows which sessions have ended, and whose keys open them, when they have left memory", async () => {
    const { url } = await openGateway({ store: new UnrecordedStore(), auth: AUTH, limits: { sessions: 1 } });
    const open = (session_id: string, own_key: boolean) =>
      call(`${url}/sessions`, { body: { session_id, own_key }, key: "admin-token" });
    await open("own", true);
    await open("ended", false);
    await call(`${url}/sessions/ended/reward`, { body: { reward: 1 }, key: "agent-1" });
    await open("other", false);
    const status = async (id: string) =>
      (await call(`${url}/sessions/${id}/v1/chat/completions`, { body: CHAT, key: "agent-1" })).status;
    expect([await status("own"), await status("ended")]).toEqual([401, 410]);
  });

  test("forgets the sessions that were written longest ago", async () => {
    const store = new UnrecordedStore({ most: 1000 });
    for (let i = 0; i < 50; i++)
      await store.putSession({ session_id: `s${i}`, metadata: {}, created_at: i, key_digest: "ab" });
    const left = (await store.sessions({})).map(({ session_id }) => session_id);
    expect(left.length).toBeLessThanOrEqual(20);
    expect(left.slice(0, 2)).toEqual(["s49", "s48"]);
  });
});
