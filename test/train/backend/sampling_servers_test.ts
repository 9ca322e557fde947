/** Requests spread over servers whose answers a test decides: limits, servers that hang, and failures that come late. */
import { expect, onTestFinished, test, vi } from "vitest";
import { SYSTEM_CLOCK } from "../../../src/leaves/clock.ts";
import { SamplingServers } from "../../../src/train/backend/tinker/sampling_servers.ts";
import { TinkerSession } from "../../../src/train/backend/tinker/session.ts";
import { Transport } from "../../../src/train/backend/tinker/transport.ts";

/** How a server answers a request to sample: its result's token, a status, or not at all. */
type Outcome = number | "hangs" | "refuses";

class Server {
  readonly url: string;
  readonly most: number;
  inFlight = 0;
  mostSeen = 0;
  asked = 0;
  sessions = 0;
  /** All routes hang. */
  isSilent = false;
  outcome: (count: number) => Outcome | Promise<Outcome> = () => 7;

  constructor(url: string, most = 100) {
    this.url = url;
    this.most = most;
  }

  async answer(route: string, init: RequestInit): Promise<Response> {
    if (this.isSilent) return hang(init);
    if (route === "client/config") return Response.json({ sample_max_concurrent_requests: this.most });
    if (route === "create_session") return Response.json({ session_id: `s${++this.sessions}` });
    if (route === "create_sampling_session") return Response.json({ sampling_session_id: "sampler" });
    if (route === "asample") return Response.json({ request_id: String(this.asked++) });
    if (route === "retrieve_future") return this.result(init);
    return Response.json({});
  }

  private async result(init: RequestInit): Promise<Response> {
    this.mostSeen = Math.max(this.mostSeen, ++this.inFlight);
    try {
      const { request_id } = JSON.parse(String(init.body)) as { request_id: string };
      const outcome = await this.outcome(Number(request_id));
      if (outcome === "hangs") return await hang(init);
      if (outcome === "refuses") return Response.json({ detail: "the device is away" }, { status: 422 });
      return Response.json({ sequences: [{ tokens: [outcome], logprobs: [0], stop_reason: "length" }] });
    } finally {
      this.inFlight--;
    }
  }
}

function hang({ signal }: RequestInit): Promise<never> {
  return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
}

async function open(servers: readonly Server[], concurrency?: number) {
  const notices: string[] = [];
  const clock = { ...SYSTEM_CLOCK, ahead: 0, now: () => SYSTEM_CLOCK.now() + clock.ahead };
  const fetch = (url: string, init: RequestInit) => {
    const [, at, route] = /^(.*)\/api\/v1\/(.*)$/.exec(url)!;
    return servers.find((server) => server.url === at)!.answer(route!, init);
  };
  const [baseUrl, ...urls] = servers.map(({ url }) => url);
  const transport = { baseUrl: baseUrl!, apiKey: "", fetch, clock, notify: (it: string) => void notices.push(it) };
  const sessions = { sdkVersion: "0.38.0", wire: "json" } as const;
  const first = await TinkerSession.open(new Transport(transport), sessions);
  const all = new SamplingServers({ first, transport, sessions, urls, contextLength: 64, concurrency });
  onTestFinished(() => {
    all.close();
    first.close();
  });
  const params = { max_tokens: 1, temperature: 1, top_p: 1, top_k: 0, stop_token_ids: [] };
  const draw = async (count: number, signal?: AbortSignal) => {
    const requests = Array.from({ length: count }, (_, seed) => ({ prompt_ids: [1], params, seed }));
    const drawn = await all.draw(requests, { path: "tinker://a", version: 1, signal });
    return drawn.map(({ tokens }) => tokens[0]);
  };
  return { all, draw, notices, clock };
}

const soon = async (token: number) => {
  await new Promise((resolve) => setTimeout(resolve, 2));
  return token;
};

test("each server has no more requests in flight than it allows, or than the setting", async () => {
  const servers = [new Server("http://a", 8), new Server("http://b", 3), new Server("http://c")];
  for (const server of servers) server.outcome = () => soon(7);
  const { draw, notices } = await open(servers, 16);
  expect(await draw(200)).toEqual(Array.from({ length: 200 }, () => 7));
  expect(servers.map(({ mostSeen }) => mostSeen)).toEqual([8, 3, 16]);
  expect(notices).toEqual([]);
});

test("with every server at its limit, requests that wait end with their caller's signal", async () => {
  const server = new Server("http://a", 2);
  server.outcome = () => "hangs";
  const { draw } = await open([server]);
  const stop = new AbortController();
  const drawing = draw(9, stop.signal);
  await vi.waitFor(() => expect(server.inFlight).toBe(2));
  stop.abort(new Error("enough"));
  await expect(drawing).rejects.toThrow("enough");
});

test("a server that drops out ends its other requests, which the others draw", async () => {
  const [first, second] = [new Server("http://a"), new Server("http://b")];
  second.outcome = (count) => (count === 3 ? "refuses" : "hangs");
  const { draw, notices } = await open([first, second]);
  expect(await draw(12)).toEqual(Array.from({ length: 12 }, () => 7));
  expect([first.asked, second.asked, second.inFlight]).toEqual([12, 6, 0]);
  expect(notices).toEqual([expect.stringContaining("http://b does not sample (failure 1)")]);
});

test("a failure of a session from before does not end the present one", async () => {
  const [first, second] = [new Server("http://a"), new Server("http://b")];
  const { draw, notices, clock } = await open([first, second]);
  let late = (_: Outcome) => {};
  const held = new Promise<Outcome>((resolve) => {
    late = resolve;
  });
  // The first of its requests fails; the answer to the second comes after the next session has begun.
  second.outcome = (count) => (count === 0 ? "refuses" : held);
  const drawing = draw(4);
  await vi.waitFor(() => expect(notices).toHaveLength(1));
  clock.ahead += 31_000;
  second.outcome = () => 7;
  await draw(4);
  late("refuses");
  expect(await drawing).toEqual([7, 7, 7, 7]);
  await draw(4);
  expect(second.sessions).toBe(2);
  expect(notices[1]).toMatch(/samples again$/);
  expect(notices).toHaveLength(2);
});

test("a server that failed takes no request before it has opened the weights again", async () => {
  const [first, second] = [new Server("http://a"), new Server("http://b")];
  second.outcome = () => "refuses";
  const { draw, clock } = await open([first, second]);
  await draw(4);
  second.isSilent = true;
  clock.ahead += 31_000;
  const asked = first.asked;
  expect(await draw(4)).toEqual([7, 7, 7, 7]);
  expect(first.asked - asked).toBe(4);
});

test("a server that falls silent after the end is not reported", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const [first, second] = [new Server("http://a"), new Server("http://b")];
  const { all, draw, notices } = await open([first, second]);
  await draw(4);
  second.isSilent = true;
  // A heartbeat is under way.
  await vi.advanceTimersByTimeAsync(11_000);
  all.close();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(notices).toEqual([]);
});

test("a server that falls silent while it samples is noticed by its heartbeat", async () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const [first, second] = [new Server("http://a"), new Server("http://b")];
  second.outcome = () => {
    second.isSilent = true;
    return "hangs";
  };
  const { draw, notices } = await open([first, second]);
  const drawing = draw(4);
  await vi.advanceTimersByTimeAsync(40_000);
  expect(notices).toEqual([expect.stringContaining("http://b does not sample (failure 1)")]);
  expect(await drawing).toEqual([7, 7, 7, 7]);
});
