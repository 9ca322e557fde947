import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { findHubPackage } from "../../../src/cli/hub/access.ts";
import { globPattern } from "../../../src/cli/hub/listing.ts";
import { grpu } from "../../fixtures/cli.ts";
import { digest, FakeHub, type Fault, json, send } from "../../fixtures/fake_hub.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const hub = new FakeHub();
const dir = temporaryFolder("pull");
const TOKEN = "hf_secret";
const WEIGHTS = Buffer.from(Array.from({ length: 5000 }, (_, i) => i % 251));
const FILES = { "config.json": "{}", "model.safetensors": WEIGHTS, "onnx/model.onnx": "x", empty: "" };

beforeAll(() => hub.start());
afterAll(() => hub.stop());
beforeEach(() => {
  hub.put("me/model", FILES);
  hub.requests.length = 0;
  hub.fault = () => false;
});

let pages = 0;
const bomb = () => gzipSync(Buffer.alloc(2 ** 30, " "));

/** Sends as long as it is read. */
function endless(reply: ServerResponse, each: string): void {
  const piece = each.repeat(2 ** 20);
  const more = () => {
    while (!reply.destroyed && reply.write(piece));
  };
  reply.on("drain", more);
  more();
}

let count = 0;
const newOut = () => join(dir, `out${count++}`);
const pull = (out: string, args: string[] = [], env: Record<string, string> = { HF_TOKEN: TOKEN }) =>
  grpu(["pull", "me/model", "--out", out, ...args], { env: { HF_ENDPOINT: hub.url, ...env } });
const namesIn = (out: string) =>
  readdirSync(out, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => entry.name)
    .sort();
/** The file that an unfinished pull appends to. */
const partOf = (out: string, content: Buffer) => join(`${out}.partial`, "parts", digest("sha256", content));
const isWeights = (path: string) => path.startsWith("/objects/");

describe.skipIf(findHubPackage() === undefined)("grpu pull", () => {
  test("writes the files of one commit, and shows the token to the hub alone", async () => {
    const out = newOut();
    const ran = await pull(out, ["--json"]);
    expect(ran).toMatchObject({ code: 0 });
    expect(JSON.parse(ran.out)).toEqual({ repo: "me/model", sha: "sha-main", out, files: Object.keys(FILES) });
    for (const [path, content] of Object.entries(FILES))
      expect(readFileSync(join(out, path)), path).toEqual(Buffer.from(content));
    expect(namesIn(out)).toHaveLength(4);
    expect(existsSync(`${out}.partial`)).toBe(false);
    const atTheHub = hub.requests.filter(({ path }) => !isWeights(path));
    expect(new Set(atTheHub.map(({ authorization }) => authorization))).toEqual(new Set([`Bearer ${TOKEN}`]));
    expect(hub.requests.filter(({ path }) => isWeights(path)).map(({ authorization }) => authorization)).toEqual([
      undefined,
    ]);
  });

  test("keeps the token from another server on which the hub's list goes on", async () => {
    hub.fault = ({ path }, reply) => {
      if (path === "/elsewhere") json(reply, []);
      else reply.setHeader("link", `<http://localhost:${hub.port}/elsewhere>; rel="next"`);
      return path === "/elsewhere";
    };
    expect(await pull(newOut())).toMatchObject({ code: 0 });
    const there = hub.requests.filter(({ path }) => path === "/elsewhere");
    expect(there.map(({ authorization }) => authorization)).toEqual([undefined]);
  });

  test.each<[name: string, path: RegExp, says: string, reply: (reply: ServerResponse) => void]>([
    ["an error without end", /./, "answered 404", (reply) => endless(reply.writeHead(404), "x")],
    ["JSON without end", /^\/api\/models\/me\/model/, "more than 67108864 bytes", (reply) => endless(reply, " ")],
    [
      "JSON that unpacks to a gigabyte",
      /^\/api\/models\/me\/model/,
      "more than 67108864 bytes",
      (reply) => reply.writeHead(200, { "content-encoding": "gzip" }).end(bomb()),
    ],
    [
      "pages of folders without end",
      /\/tree\//,
      "pages",
      (reply) => {
        reply.setHeader("link", `<${hub.url}/api/models/me/model/tree/x?${pages++}>; rel="next"`);
        json(reply, [{ type: "directory", path: "a", oid: "0", size: 0 }]);
      },
    ],
  ])("%s ends with an error, in little memory", async (_, path, says, answer) => {
    hub.fault = (request, reply) => {
      if (!path.test(request.path)) return false;
      answer(reply);
      return true;
    };
    const before = process.memoryUsage.rss();
    const { code, err } = await pull(newOut());
    expect([code === 0, err]).toEqual([false, expect.stringContaining(says)]);
    expect(process.memoryUsage.rss() - before).toBeLessThan(500 * 2 ** 20);
  });

  test.each([
    [["--include", "*.safetensors"], ["model.safetensors"]],
    [
      ["--exclude", "onnx/*", "--exclude", "e*"],
      ["config.json", "model.safetensors"],
    ],
    [["--include", "*.json", "--include", "*onnx", "--exclude", "c*"], ["model.onnx"]],
  ])("takes the files that %j choose", async (args, names) => {
    const out = newOut();
    expect(await pull(out, args)).toMatchObject({ code: 0 });
    expect(namesIn(out)).toEqual(names);
  });

  test("continues a connection that breaks, from the bytes that came", async () => {
    const out = newOut();
    let isFirst = true;
    hub.fault = ({ path }, reply) => {
      if (!isWeights(path) || !isFirst) return false;
      isFirst = false;
      breakAfter(2000)({ method: "GET", path, range: undefined, authorization: undefined }, reply);
      return true;
    };
    expect(await pull(out)).toMatchObject({ code: 0 });
    expect(hub.requests.filter(({ path }) => isWeights(path)).map(({ range }) => range)).toEqual([
      undefined,
      "bytes=2000-",
    ]);
    expect(readFileSync(join(out, "model.safetensors"))).toEqual(WEIGHTS);
  });

  test("continues in the next command, without the files that are whole", async () => {
    const out = newOut();
    hub.fault = (request, reply) => {
      if (!isWeights(request.path)) return false;
      if (request.range === undefined) return breakAfter(2000)(request, reply);
      reply.writeHead(206).end();
      return true;
    };
    const broken = await pull(out);
    expect(broken.err).toContain("it stops after 2000 of 5000 bytes (model.safetensors). Run the command again");
    expect(broken.code).not.toBe(0);
    expect(existsSync(out)).toBe(false);
    hub.fault = () => false;
    hub.requests.length = 0;
    expect(await pull(out)).toMatchObject({ code: 0 });
    expect(hub.requests.some(({ path }) => path.endsWith("config.json"))).toBe(false);
    expect(hub.requests.filter(({ path }) => isWeights(path)).map(({ range }) => range)).toEqual(["bytes=2000-"]);
    expect(readFileSync(join(out, "model.safetensors"))).toEqual(WEIGHTS);
  });

  test("starts again where the server sends no ranges, and leaves no file of another pull", async () => {
    const out = newOut();
    mkdirSync(join(`${out}.partial`, "files", "old"), { recursive: true });
    mkdirSync(join(`${out}.partial`, "parts"));
    writeFileSync(partOf(out, WEIGHTS), "garbage");
    writeFileSync(join(`${out}.partial`, "files", "old", "old.bin"), "old");
    hub.fault = ({ path }, reply) => {
      if (!isWeights(path)) return false;
      send(reply, WEIGHTS);
      return true;
    };
    expect(await pull(out)).toMatchObject({ code: 0 });
    expect(readFileSync(join(out, "model.safetensors"))).toEqual(WEIGHTS);
    expect(readdirSync(out).sort()).toEqual(["config.json", "empty", "model.safetensors", "onnx"]);
  });

  test("starts again where the part is longer than the server's file", async () => {
    const out = newOut();
    mkdirSync(join(`${out}.partial`, "parts"), { recursive: true });
    writeFileSync(partOf(out, WEIGHTS), WEIGHTS.subarray(1, 3000));
    hub.fault = ({ path, range }, reply) => {
      if (!isWeights(path) || range === undefined) return false;
      reply.writeHead(416).end("InvalidRange");
      return true;
    };
    expect(await pull(out)).toMatchObject({ code: 0 });
    expect(readFileSync(join(out, "model.safetensors"))).toEqual(WEIGHTS);
  });

  test("writes through no link that lies in the folder of an unfinished pull", async () => {
    const out = newOut();
    const outside = newOut();
    mkdirSync(join(`${out}.partial`, "files"), { recursive: true });
    mkdirSync(join(`${out}.partial`, "parts"));
    mkdirSync(outside);
    writeFileSync(join(outside, "mine"), "mine");
    symlinkSync(outside, join(`${out}.partial`, "files", "onnx"));
    symlinkSync(join(outside, "mine"), partOf(out, WEIGHTS));
    expect(await pull(out)).toMatchObject({ code: 0 });
    expect(readdirSync(outside)).toEqual(["mine"]);
    expect(readFileSync(join(outside, "mine"), "utf8")).toBe("mine");
  });

  test("leaves a folder with the temporary name alone that no pull made", async () => {
    const out = newOut();
    mkdirSync(`${out}.partial`);
    writeFileSync(join(`${out}.partial`, "mine"), "mine");
    const { code, err } = await pull(out);
    expect(err).toContain("Cannot pull: the folder holds files that no pull wrote");
    expect(code).not.toBe(0);
    expect(readdirSync(`${out}.partial`)).toEqual(["mine"]);
  });

  test("keeps files apart that are named like the temporary ones", async () => {
    const out = newOut();
    const files = { ".owner.json": "a", "config.json.part": "b", "config.json": "c", "parts/x": "d" };
    hub.put("me/model", files);
    expect(await pull(out)).toMatchObject({ code: 0 });
    for (const [path, content] of Object.entries(files)) expect(readFileSync(join(out, path), "utf8")).toBe(content);
  });

  test.each<[string, string, Fault]>([
    ["the hub's answer is not understood", "", (_, reply) => !!reply.end("<html>Sign in</html>")],
    ["the hub lists a file without its size or its digest (config.json, undefined, undefined)", "/tree/", bareList],
  ])("%s", async (message, path, fault) => {
    hub.fault = (request, reply) => request.path.includes(path) && fault(request, reply);
    const { code, err } = await pull(newOut());
    expect(err).toContain(message);
    expect(code).not.toBe(0);
  });

  test.each([
    ["model.safetensors", "sha256", (path: string) => isWeights(path), WEIGHTS.length],
    ["config.json", "sha1", (path: string) => path.endsWith("resolve/sha-main/config.json"), 2],
  ])("refuses damaged content of %s by its %s, and keeps none of it", async (name, kind, isIt, size) => {
    const out = newOut();
    hub.fault = ({ path }, reply) => {
      if (!isIt(path)) return false;
      send(reply, Buffer.alloc(size));
      return true;
    };
    const { code, err } = await pull(out);
    expect(err).toContain(`Cannot pull the file: its ${kind} is `);
    expect(code).not.toBe(0);
    expect(existsSync(join(`${out}.partial`, "files", name))).toBe(false);
    expect(readdirSync(join(`${out}.partial`, "parts"))).toEqual([]);
    expect(existsSync(out)).toBe(false);
  });

  test.each([
    [401, "HF_TOKEN is not valid"],
    [403, "ask for access on the repository's page"],
    [404, "Check the repository's name and --revision"],
    [429, "Run the command again later"],
    [500, "Run the command again later"],
  ])("explains %i in one line without the token", async (status, advice) => {
    hub.fault = (_, reply) => {
      reply.setHeader("retry-after", "0");
      json(reply, { error: `no: ${TOKEN}` }, status);
      return true;
    };
    const { code, err } = await pull(newOut());
    expect(err).toContain(`the hub answered ${status}, "no: ***"`);
    expect(err).toContain(advice);
    expect(err).not.toContain(TOKEN);
    expect(code).not.toBe(0);
    expect(hub.requests).toHaveLength(status === 429 || status === 500 ? 5 : 1);
  });

  test("waits as long as Retry-After says, and goes on", async () => {
    let refusals = 2;
    hub.fault = (_, reply) => {
      if (refusals-- <= 0) return false;
      reply.setHeader("retry-after", "0");
      json(reply, {}, 429);
      return true;
    };
    const { code, err } = await pull(newOut());
    expect(code).toBe(0);
    expect(err.match(/the hub answered 429; trying again in 0\.0 s/g)).toHaveLength(2);
  });

  test("explains a hub that asks for too long a wait at once", async () => {
    hub.fault = (_, reply) => {
      reply.setHeader("retry-after", "3600");
      json(reply, {}, 429);
      return true;
    };
    expect((await pull(newOut())).err).toContain("the hub answered 429");
    expect(hub.requests).toHaveLength(1);
  });

  test("ends on Ctrl-C, and the next command continues", async () => {
    const out = newOut();
    const stop = new AbortController();
    hub.fault = ({ path }, reply) => {
      if (!isWeights(path)) return false;
      reply.writeHead(200, { "content-length": WEIGHTS.length }).write(WEIGHTS.subarray(0, 2000));
      setTimeout(() => stop.abort(), 50);
      return true;
    };
    const env = { HF_ENDPOINT: hub.url };
    const ran = await grpu(["pull", "me/model", "--out", out], { env, signal: stop.signal });
    expect(ran.code).not.toBe(0);
    hub.fault = () => false;
    expect(await pull(out)).toMatchObject({ code: 0 });
    expect(hub.requests.at(-1)?.path).toBeDefined();
    expect(hub.requests.filter(({ path }) => isWeights(path)).at(-1)?.range).toBe("bytes=2000-");
  });

  test.each([
    ["names a file outside of its folder", { "a/../../evil": "evil" }],
    ["two files of the repository can have the same place on a disk (a.json, A.json)", { "a.json": "", "A.json": "" }],
  ])("refuses a repository that %s", async (message, files) => {
    hub.put("me/model", files);
    const out = newOut();
    const { code, err } = await pull(out);
    expect(err).toContain(message);
    expect(code).not.toBe(0);
    expect(existsSync(`${out}.partial`)).toBe(false);
  });

  test.each<[string, string[], Record<string, string>]>([
    ["Cannot pull: the folder is not empty", [], {}],
    ["Cannot use HF_TOKEN: a token starts with hf_", ["--out", "fresh"], { HF_TOKEN: "secret" }],
    ["Cannot use HF_ENDPOINT: it is no plain http or https address (hub)", ["--out", "fresh"], { HF_ENDPOINT: "hub" }],
    [
      "Cannot use HF_ENDPOINT: it contains a password (https://hub)",
      ["--out", "fresh"],
      { HF_ENDPOINT: "https://a:b@hub" },
    ],
    ["a range in the glob is reversed ([z-a])", ["--out", "fresh", "--include", "[z-a]"], {}],
    ["none of the repository's 4 files fits --include and --exclude", ["--out", "fresh", "--include", "no"], {}],
  ])("%s", async (message, args, env) => {
    const out = newOut();
    mkdirSync(out);
    writeFileSync(join(out, "mine"), "mine");
    const { code, err } = await pull(out, args, env);
    expect(err).toContain(message);
    expect(code).not.toBe(0);
    expect(readFileSync(join(out, "mine"), "utf8")).toBe("mine");
  });
});

/** A list without sizes and digests. */
function bareList(_: unknown, reply: Parameters<Fault>[1]): boolean {
  json(reply, [{ type: "file", path: "config.json" }]);
  return true;
}

/** Announces the whole file and closes the connection after some bytes. */
function breakAfter(bytes: number): Fault {
  return (_, reply) => {
    reply.writeHead(200, { "content-length": WEIGHTS.length });
    reply.write(WEIGHTS.subarray(0, bytes));
    setTimeout(() => reply.destroy(), 50);
    return true;
  };
}

test.each([
  ["*.json", "a/b.json", true],
  ["*.json", "a.jsonl", false],
  ["a?c", "abc", true],
  ["[ab].txt", "b.txt", true],
  ["[!ab].txt", "b.txt", false],
  ["a.b", "axb", false],
  ["onnx/", "onnx/a/b.json", true],
])("the glob %s on %s: %s", (glob, path, fits) => {
  expect(globPattern(glob).test(path)).toBe(fits);
});

test.each(["one", "a/b/c", "../x", "a/..b"])("the repository name %s is refused", async (name) => {
  expect((await grpu(["pull", name, "--out", "x"])).err).toContain(
    `Cannot pull: a repository is named owner/name (${name})`,
  );
});
