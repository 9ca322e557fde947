/** One call of the Jobs API: what is sent, what is tried again, and what a refusal says, without a cluster. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { rayAddress } from "../../../src/cluster/ray/address.ts";
import type { RayOptions } from "../../../src/cluster/ray/contract.ts";
import { checkId, type RayCall, RayHttp } from "../../../src/cluster/ray/request.ts";
import { RemoteError } from "../../../src/leaves/errors.ts";

beforeEach(() => void vi.useFakeTimers({ now: 0 }));
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

/** The message of what is thrown, which must be an error. */
const messageOf = (act: () => unknown): string => {
  try {
    return `nothing is thrown: ${act()}`;
  } catch (error) {
    expect(error).toBeInstanceOf(Error);
    return (error as Error).message;
  }
};

type Answer = readonly [status: number, body?: string] | Error;
const AT = "http://head:8265";

/** Calls with these answers, the last again and again. */
async function call(answers: readonly Answer[], how: Partial<RayCall> = {}, options: Partial<RayOptions> = {}) {
  const sent: { at: number; url: string; init: RequestInit }[] = [];
  const began = Date.now();
  const request: RayOptions["request"] = async (url, init) => {
    const answer = answers[Math.min(sent.length, answers.length - 1)]!;
    sent.push({ at: Date.now() - began, url, init });
    if (answer instanceof Error) throw answer;
    return new Response(answer[1] ?? "", { status: answer[0] });
  };
  const http = new RayHttp({ address: `${AT}/`, request, tail: () => Promise.reject(), ...options });
  const settled = http.call("/api/jobs/", { act: "list the jobs", ...how }).then(
    async (response) => ({ status: response.status, text: await response.text(), error: undefined }),
    (error: RemoteError) => ({ status: error.status, text: error.message, error }),
  );
  await vi.runAllTimersAsync();
  return { sent, ...(await settled) };
}

const refused = new Error("", { cause: new Error("connect ECONNREFUSED 10.0.0.1:8265") });

describe("a call", () => {
  test("is a GET without a body by default", async () => {
    const { sent, text } = await call([[200, "[]"]]);
    expect(text).toBe("[]");
    expect(sent[0]).toMatchObject({ url: `${AT}/api/jobs/`, init: { method: "GET" } });
    expect(sent[0]!.init.headers).toEqual({ "user-agent": "grpu" });
    expect(sent[0]!.init).not.toHaveProperty("body");
  });

  test("sends JSON, and bytes as they are, with the headers of the settings and the token", async () => {
    const headers = { "x-proxy": "yes" };
    const json = await call([[200]], { method: "POST", body: { a: 1 } }, { headers, token: "secret" });
    expect(json.sent[0]!.init).toMatchObject({ method: "POST", body: '{"a":1}' });
    expect(json.sent[0]!.init.headers).toEqual({
      ...{ "user-agent": "grpu", "x-proxy": "yes", authorization: "Bearer secret" },
      "content-type": "application/json",
    });
    const body = new Uint8Array([1, 2]);
    const bytes = await call([[200]], { method: "PUT", body });
    expect(bytes.sent[0]!.init.body).toBe(body);
    expect(bytes.sent[0]!.init.headers).toEqual({
      "user-agent": "grpu",
      "content-type": "application/octet-stream",
    });
  });
});

describe("a cluster that is", () => {
  test("starting is asked four times, after one, two and four seconds", async () => {
    const { sent, text } = await call([[502], [503], [504], [200, "at last"]]);
    expect([sent.map(({ at }) => at), text]).toEqual([[0, 1_000, 3_000, 7_000], "at last"]);
    const { error, status } = await call([[503, "starting"]]);
    expect(status).toBe(503);
    expect(error).toMatchObject({ retryable: true });
  });

  test("away is asked four times, and named with the reason of the operating system", async () => {
    const { sent, error } = await call([refused]);
    expect(sent.map(({ at }) => at)).toEqual([0, 1_000, 3_000, 7_000]);
    expect(error).toMatchObject({ retryable: true, status: undefined });
    expect(error!.message).toContain(
      `Cannot list the jobs: the Ray cluster at ${AT} does not answer (connect ECONNREFUSED 10.0.0.1:8265).`,
    );
    expect((await call([refused, [200, "back"]])).text).toBe("back");
  });

  test("refusing is asked once, and so is one that must not be asked again", async () => {
    expect((await call([[500, "boom"]])).sent).toHaveLength(1);
    expect((await call([[400]])).sent).toHaveLength(1);
    expect((await call([refused], { repeats: false })).sent).toHaveLength(1);
    expect((await call([[503]], { repeats: false })).sent).toHaveLength(1);
  });

  test("silent is asked once, and named with the time", async () => {
    for (const timeoutMs of [undefined, 15_000]) {
      const late = new AbortController();
      const timeout = vi.spyOn(AbortSignal, "timeout").mockReturnValue(late.signal);
      late.abort();
      const { sent, error } = await call([new Error("aborted")], timeoutMs ? { timeoutMs } : {});
      expect(sent).toHaveLength(1);
      expect(sent[0]!.init.signal).toBe(late.signal);
      expect(timeout).toHaveBeenLastCalledWith(timeoutMs ?? 30_000);
      expect(error!.message).toContain(`(no answer within ${(timeoutMs ?? 30_000) / 1000} s)`);
      expect(error).toMatchObject({ retryable: true });
    }
  });

  test("handled by the caller gives its answer", async () => {
    expect(await call([[404, "none"]], { expects: [404] })).toMatchObject({ status: 404, text: "none" });
    expect((await call([[404, "none"]], { expects: [500] })).error).toBeInstanceOf(RemoteError);
  });
});

describe("a signal", () => {
  test("ends a call with its reason, without another try", async () => {
    const stop = new AbortController();
    stop.abort(new Error("enough"));
    const { sent, text } = await call([refused], { signal: stop.signal });
    expect([sent.length, text]).toEqual([1, "enough"]);
    expect(sent[0]!.init.signal!.aborted).toBe(true);
  });

  test("reaches the request beside the limit of time", async () => {
    const stop = new AbortController();
    const { sent } = await call([[200]], { signal: stop.signal });
    const { signal } = sent[0]!.init;
    expect(signal!.aborted).toBe(false);
    stop.abort();
    expect(signal!.aborted).toBe(true);
  });
});

const LOGS = "The logs of the cluster's dashboard (dashboard*.log on its head node) tell more";
const API = "Check that this is the dashboard of a Ray cluster of version 2.9 or newer";
const TOKEN = "Set RAY_AUTH_TOKEN to the cluster's token";

test.each<[status: number, body: string, token: string | undefined, says: string]>([
  [400, "Traceback\nTypeError: a.\n", undefined, `it answered 400: TypeError: a (${AT}). ${API}.`],
  [499, "", undefined, `it answered 499: nothing (${AT}). ${API}.`],
  [500, " . ", undefined, `it answered 500: nothing (${AT}). ${LOGS}.`],
  [500, "x".repeat(501), undefined, `it answered 500: ${"x".repeat(500)} (${AT}). ${LOGS}.`],
  [501, "a.b..", undefined, `it answered 501: a.b. (${AT}). ${LOGS}.`],
  [401, "", undefined, `the Ray cluster asks for a token (${AT}). ${TOKEN}.`],
  [401, "", "secret", `the Ray cluster does not accept the token (${AT}). ${TOKEN}.`],
  [403, "", "secret", `the Ray cluster refuses the token (${AT}). Set RAY_AUTH_TOKEN to the token with which`],
  [404, "Job x does not exist", undefined, "the Ray cluster does not know such a job"],
  [404, "Not Found", undefined, `there is no Ray dashboard at this address (${AT}). ${API}.`],
  [405, "", undefined, "the Ray cluster takes the request for a browser's"],
  [418, "the secret, secret", "secret", `it answered 418: the ***, *** (${AT})`],
])("the refusal %i %j with the token %s says what to do", async (status, body, token, says) => {
  const { error, text } = await call([[status, body]], {}, { token });
  expect(text).toContain(`Cannot list the jobs: ${says}`);
  expect(error).toMatchObject({ status, retryable: status >= 500 });
});

test.each<[what: string, cause: unknown, says: string]>([
  ["of the deepest cause", new Error("a", { cause: new Error("b", { cause: new Error("c") }) }), "c"],
  ["without a cause that is an error", new Error("a", { cause: "b" }), "a"],
  ["of a code alone", Object.assign(new Error(""), { code: "ECONNRESET" }), "ECONNRESET"],
  ["of nothing else", new TypeError(""), "TypeError"],
  ["without the token", new Error("bad secret"), "bad ***"],
])("the reason %s", async (_, cause, says) => {
  const { text } = await call([cause as Error], { repeats: false }, { token: "secret" });
  expect(text).toContain(`does not answer (${says}). Check`);
});

test.each(["a", "sum-1", "a.b_c", "..a", "-"])("%j is an id of a job", (id) => {
  expect(checkId(id)).toBe(id);
});
test.each(["", ".", "..", "a/b", "/a", "a/", "a b", " a", "a ", "a?", "ü"])("%j is no id of a job", (id) => {
  expect(messageOf(() => checkId(id))).toContain(
    `Cannot use ${JSON.stringify(id)} as the id of a Ray job: it holds other characters`,
  );
});

describe("an address", () => {
  test.each([
    ["HTTP://head:8265", "http://head:8265"],
    ["https://ray.example.org", "https://ray.example.org"],
    ["http://head/a//b//", "http://head/a//b"],
    ["http://head/?", "http://head"],
  ])("%s is %s", (given, base) => {
    expect(rayAddress(given)).toBe(base);
  });

  const usual = (host: string) => `Give the address of the cluster's dashboard, usually http://${host}:8265.`;
  test.each([
    ["ray://my-head.example.org", `Ray's Python client (ray://my-head.example.org). ${usual("my-head.example.org")}`],
    ["RAY://head:10001/", `Ray's Python client (RAY://head:10001/). ${usual("head")}`],
    ["ray://[fd00::1]:10001", usual("[fd00::1]")],
    ["ray://10.0.0.7", usual("10.0.0.7")],
    ["a ray://head", `it does not begin with http:// or https:// (a ray://head). ${usual("HOST")}`],
    ["auto", `only a process on the cluster finds it by itself (auto). ${usual("HOST")}`],
    ["head", `it does not begin with http:// or https:// (head). ${usual("head")}`],
    ["[::1]:6379", usual("[::1]")],
    ["head:", usual("HOST")],
    ["(head)", usual("HOST")],
    ["head:63x", usual("HOST")],
    ["ftp://head", `http:// or https:// (ftp://head). ${usual("HOST")}`],
    ["my http://head", `it does not begin with http:// or https:// (my http://head). ${usual("HOST")}`],
    ["http://", `it is no URL (http://). ${usual("HOST")}`],
    ["http://head/#top", "it ends in a query or a fragment (http://head/#top). Leave that out."],
    ["http://me@head:8265/", "it holds a password (http://...@head:8265/). Give it as a header"],
    ["http://:secret@head/", "it holds a password (http://...@head/)"],
  ])("%s is refused", (given, says) => {
    expect(messageOf(() => rayAddress(given))).toContain(says);
  });
});
