import { describe, expect, test } from "vitest";
import { type BodyLimits, BodyRefusal, readBody } from "../../../src/leaves/http/body.ts";
import { ByteBudget } from "../../../src/leaves/http/budget.ts";
import { checkJson, checkJsonInTurns } from "../../../src/leaves/http/json.ts";
import { Fingerprint } from "../../../src/leaves/http/print.ts";
import { uniform } from "../../fixtures/numbers.ts";

const LIMITS = { type: "application/json", bytes: 1000, idleMs: 50 };
type Content = string | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>;
const JSON_TYPE = { "content-type": "application/json" };

function read(body: Content | undefined, of: { headers?: Record<string, string>; limits?: Partial<BodyLimits> } = {}) {
  const headers = of.headers ?? JSON_TYPE;
  const request = new Request("http://localhost/", {
    method: "POST",
    headers,
    body,
    duplex: "half",
  } as RequestInit);
  return readBody(request, { ...LIMITS, budget: new ByteBudget(10_000), ...of.limits });
}

const bytes = (length: number) => new Uint8Array(length).fill(32);
const streamOf = (pieces: readonly Uint8Array[], { ends = true } = {}) =>
  new ReadableStream<Uint8Array>({
    start(controller) {
      for (const piece of pieces) controller.enqueue(piece);
      if (ends) controller.close();
    },
  });

describe("a body is refused", () => {
  test.each<[string, Content, Record<string, string>, number]>([
    ["as text, which any page's form can send", "{}", { "content-type": "text/plain" }, 415],
    ["as a form", "{}", { "content-type": "application/x-www-form-urlencoded" }, 415],
    ["without a type", bytes(3), {}, 415],
    ["in an unknown encoding", "{}", { ...JSON_TYPE, "content-encoding": "gzip" }, 415],
    ["in two encodings", "{}", { ...JSON_TYPE, "content-encoding": "zstd, zstd" }, 415],
    ["one byte too large", bytes(1001), JSON_TYPE, 413],
    ["too large in pieces", streamOf([bytes(600), bytes(600)]), JSON_TYPE, 413],
    ["that stops arriving", streamOf([bytes(6)], { ends: false }), JSON_TYPE, 408],
    ["without room for it", bytes(900), { ...JSON_TYPE, "content-length": "900", room: "100" }, 429],
  ])("%s", async (_, body, { room, ...headers }, status) => {
    const budget = new ByteBudget(Number(room ?? 10_000));
    const error = await read(body, { headers, limits: { budget } }).then(undefined, (reason) => reason);
    expect(error).toBeInstanceOf(BodyRefusal);
    expect([error.status, budget.used]).toEqual([status, 0]);
    if (status === 413) expect(error.head.length).toBeGreaterThan(599);
    if (status === 429) expect(error.retryAfter).toBe(1);
  });
});

test("a body is read whole, also with a charset in its type, and empty without a type", async () => {
  const body = await read('{"a":1}', { headers: { "content-type": "Application/JSON; charset=utf-8" } });
  expect([body.text(), body.bytes.length]).toEqual(['{"a":1}', 7]);
  expect((await read(undefined, { headers: {} })).bytes.length).toBe(0);
  expect((await read(bytes(1000))).bytes.length).toBe(1000);
});

test.each([
  ["gzip", "gzip"],
  ["X".repeat(60), "x".repeat(50)],
])("the refusal of the encoding %j names %j", async (encoding, named) => {
  await expect(read("{}", { headers: { ...JSON_TYPE, "content-encoding": encoding } })).rejects.toMatchObject({
    status: 415,
    message: `Cannot read a body in the encoding ${named}: send it plain or as zstd.`,
  });
});

test.each<[encoding: string, content: Uint8Array<ArrayBuffer>]>([
  ["ZSTD", Uint8Array.from(Buffer.from("28b52ffd200529000068656c6c6f", "hex"))],
  ["zstd", Uint8Array.from(Buffer.from("28b52ffd200529000068656c6c6f", "hex"))],
  ["Identity", Uint8Array.from(Buffer.from("hello"))],
])("a body in the encoding %s is read, and only its content holds memory", async (encoding, content) => {
  const budget = new ByteBudget(10_000);
  const headers = { ...JSON_TYPE, "content-encoding": encoding };
  const body = await read(content, { headers, limits: { budget } });
  expect(body.text()).toBe("hello");
  expect([budget.used, body.lease.bytes]).toEqual([1000, 1000]);
});

test("a body that declares more than the limit is read up to it, whatever room there is", async () => {
  const headers = { ...JSON_TYPE, "content-length": "20000" };
  const refusal = read(bytes(1001), { headers, limits: { budget: new ByteBudget(2000) } });
  await expect(refusal).rejects.toMatchObject({ status: 413, head: bytes(1000) });
});

test("the memory of a body doubles as it arrives, up to the limit", async () => {
  const held = async (limit: number) => {
    const budget = new ByteBudget(100_000);
    await read(streamOf(Array.from({ length: 5 }, () => bytes(4096))), { limits: { budget, bytes: limit } });
    return budget.used;
  };
  expect(await held(50_000)).toBe(32_768);
  expect(await held(30_000)).toBe(30_000);
});

test("a thousand pieces of one byte hold no more memory than a thousand bytes", async () => {
  const budget = new ByteBudget(10_000);
  const body = await read(streamOf(Array.from({ length: 1000 }, () => bytes(1))), { limits: { budget } });
  expect(body.bytes.length).toBe(1000);
  expect(budget.used).toBeLessThanOrEqual(1000);
  body.lease.answered();
  expect(budget.used).toBe(0);
});

describe("the budget", () => {
  test("is shared: another request gets the bytes of one only after its answer", async () => {
    const budget = new ByteBudget(1500);
    const first = await read(bytes(1000), { limits: { budget } });
    await expect(read(bytes(1000), { limits: { budget } })).rejects.toMatchObject({ status: 429 });
    first.lease.answered();
    await read(bytes(1000), { limits: { budget } });
  });

  test("may be used up to its last byte", () => {
    const budget = new ByteBudget(100);
    const lease = budget.lease();
    lease.take(100);
    expect(() => budget.check(1)).toThrow(
      "Cannot accept the request: other requests hold 100 of 100 bytes. Try again in a moment.",
    );
    budget.check(0);
    lease.give(150);
    expect([budget.used, lease.bytes]).toEqual([0, 0]);
  });

  test("the first waiting request may hold more than the share, and others fill it exactly", () => {
    const waits = (...sizes: number[]) => {
      const budget = new ByteBudget(1000);
      for (const size of sizes) {
        const lease = budget.lease();
        lease.take(size);
        lease.wait({ waitForIt: false });
      }
      return budget.waiting;
    };
    expect(waits(900)).toBe(900);
    expect(waits(700, 50)).toBe(750);
    expect(() => waits(700, 51)).toThrow(/other requests hold 700 of 1000 bytes/);
  });

  test("waiting work keeps at most three quarters, unless others wait for it", () => {
    const budget = new ByteBudget(1000);
    const [a, b, c] = [budget.lease(), budget.lease(), budget.lease()];
    for (const [lease, size] of [
      [a, 700],
      [b, 100],
      [c, 100],
    ] as const)
      lease.take(size);
    a.wait({ waitForIt: false });
    a.answered();
    expect(() => b.wait({ waitForIt: false })).toThrow(/Try again/);
    c.wait({ waitForIt: true });
    b.answered();
    expect([budget.used, budget.waiting]).toEqual([800, 800]);
    for (const lease of [a, c, c]) lease.release();
    expect([budget.used, budget.waiting]).toEqual([0, 0]);
  });
});

describe("JSON is refused before it is parsed", () => {
  const check = (text: string): void => {
    checkJson(new TextEncoder().encode(text), { depth: 4, values: 10 });
  };
  test.each([
    ["[".repeat(5), /4 levels/],
    ['{"a":'.repeat(5), /4 levels/],
    [`[${"1,".repeat(10)}1]`, /10 values/],
    [`[${"[],".repeat(10)}1]`, /10 values/],
    ["[1,2,3,4,5,6,7,8,9,10]", /10 values/],
    [`{"a":-0.${"3".repeat(4301)}}`, /4300 digits in a number/],
  ])("%s", (text, why) => expect(() => check(text)).toThrow(why));

  test.each([
    "[[[[1]]]]",
    `["${"[,".repeat(50)}"]`,
    `["\\"${"[,".repeat(50)}"]`,
    "[1,2,3,4,5,6,7,8]",
    "[1,2,3,4,5,6,7,8,9]",
    "[[[[1]]],[[[2]]]]",
    `["${"3".repeat(4301)}",${"3".repeat(4300)},${"4".repeat(4300)}]`,
    "",
    "]]]][",
  ])("and %s is not", (text) => check(text));

  describe("numbers of named lists are counted apart", () => {
    const numbers = { most: 5, keys: ["prompt"], level: 1 };
    const read = (text: string) => checkJson(new TextEncoder().encode(text), { depth: 4, values: 4, numbers });
    test.each(['{"prompt":[1,2,3,4,-5,6e1]}', '{"prompt": [ 1 , 2 , 3 , 4 ]}', '{"a":1,"prompt":[1,2,3]}'])(
      "%s",
      (text) => {
        expect(() => read(text)).not.toThrow();
      },
    );
    test.each([
      ['{"prompt":[1,2,3,4,5,6,7]}', /5 numbers/],
      ['{"prompt":[[1,2],[3,4]]}', /4 values/],
      ['{"other":[1,2,3,4]}', /4 values/],
      ['{"a":{"prompt":[1,2,3,4]}}', /4 values/],
      ['{"prompt":["1","2","3","4"]}', /4 values/],
      ['{"prompt":[{"a":1,"b":2,"c":3}]}', /4 values/],
      ['{"prompt":[1],"b":[1,2,3]}', /4 values/],
      ['["prompt",[1,2,3,4]]', /4 values/],
    ])("%s", (text, why) => expect(() => read(text)).toThrow(why));

    test("in slices as at once", async () => {
      const ids = `{"prompt":[${"12345,".repeat(400_000)}1],"a":[${"1,".repeat(9)}1]}`;
      const bytes = new TextEncoder().encode(ids);
      const limits = { depth: 4, values: 20, numbers: { ...numbers, most: 400_000 } };
      expect(await checkJsonInTurns(bytes, limits)).toBe(checkJson(bytes, limits));
      await expect(checkJsonInTurns(bytes, { ...limits, values: 10 })).rejects.toThrow(/10 values/);
    });
  });
});

test("the highest bit of a word changes the low bits of both hashes", () => {
  const hashes = (first: number) => {
    const print = new Fingerprint();
    print.add(Uint8Array.of(0, 0, 0, first, 0, 0, 0, 0));
    return print
      .text()
      .split(":")
      .slice(1)
      .map((hash) => Number.parseInt(hash, 36) & 0xffff);
  };
  const [a, b] = [hashes(0), hashes(0x80)];
  expect(a[0]).not.toBe(b[0]);
  expect(a[1]).not.toBe(b[1]);
});

test("a fingerprint does not depend on how the bytes are cut, and changes with every bit", () => {
  const next = uniform(3);
  const whole = Uint8Array.from({ length: 403 }, () => 256 * next());
  const printOf = (pieces: readonly Uint8Array[]) => {
    const print = new Fingerprint();
    for (const piece of pieces) print.add(piece);
    return print.text();
  };
  const expected = printOf([whole]);
  for (let cut = 0; cut <= whole.length; cut++) {
    expect(printOf([whole.subarray(0, cut), whole.subarray(cut)])).toBe(expected);
    const changed = whole.slice();
    if (cut < whole.length) changed[cut]! ^= 1;
    expect(printOf([changed]) === expected).toBe(cut === whole.length);
  }
});
