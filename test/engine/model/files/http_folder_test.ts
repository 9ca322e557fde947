/** Model folders over HTTP, from servers with and without range requests, and from failing ones. */
import { readFileSync } from "node:fs";
import { createServer, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { openModelFolder } from "../../../../src/engine/model/files/folder.ts";
import { httpFolder } from "../../../../src/engine/model/files/http_folder.ts";
import { hasShared, sharedPath } from "../../../fixtures/shared.ts";

let server: Server | undefined;
afterEach(() => server?.close());

async function serve(listener: RequestListener): Promise<string> {
  server = createServer(listener);
  await new Promise<void>((listening) => server!.listen(0, "127.0.0.1", listening));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/models/m`;
}

type Files = Readonly<Record<string, Uint8Array>>;

const BIG = Uint8Array.from({ length: 200_000 }, (_, i) => (i * 7919) % 251);
const FILES: Files = {
  "config.json": new TextEncoder().encode("{}"),
  "big.bin": BIG,
  empty: new Uint8Array(),
};

/** Answers range requests as nginx does, and records them. */
function rangeServer(files: Files, seen: string[] = []): RequestListener {
  return (request, response) => {
    const name = request.url!.slice("/models/m/".length);
    const bytes = files[name];
    seen.push(`${name} ${request.headers.range}`);
    if (!bytes) return response.writeHead(404).end();
    const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range!)!.map(Number);
    if (from! >= bytes.length) return response.writeHead(416).end();
    const part = bytes.subarray(from, to! + 1);
    response.writeHead(206, { "content-range": `bytes ${from}-${from! + part.length - 1}/${bytes.length}` });
    response.end(part);
  };
}

describe("httpFolder()", () => {
  test("reads ranges, and a small file in one request", async () => {
    const seen: string[] = [];
    const folder = httpFolder(await serve(rangeServer(FILES, seen)));
    const big = (await folder.open("big.bin"))!;
    expect(big.size).toBe(BIG.length);
    expect(await big.read(150_000, 1000)).toEqual(BIG.slice(150_000, 151_000));
    expect(await big.read(65_000, 2000)).toEqual(BIG.slice(65_000, 67_000));
    expect(await big.read(10, 5)).toEqual(BIG.slice(10, 15));
    const config = (await folder.open("config.json"))!;
    expect(new TextDecoder().decode(await config.read(0, config.size))).toBe("{}");
    expect(seen).toEqual([
      "big.bin bytes=0-65535",
      "big.bin bytes=150000-150999",
      "big.bin bytes=65000-66999",
      "config.json bytes=0-65535",
    ]);
    expect((await folder.open("empty"))?.size).toBe(0);
    expect(await folder.open("absent")).toBeUndefined();
  });

  test("holds a file in memory where the server ignores ranges", async () => {
    const folder = httpFolder(await serve((_, response) => response.end(BIG)));
    const big = (await folder.open("big.bin"))!;
    expect(big.size).toBe(BIG.length);
    expect(await big.read(199_000, 1000)).toEqual(BIG.slice(199_000));
  });

  test("treats the page that a development server sends for a missing file as a missing file", async () => {
    const page: RequestListener = (_, response) =>
      response.writeHead(200, { "content-type": "text/html; charset=utf-8" }).end("<!doctype html>");
    expect(await httpFolder(await serve(page)).open("config.json")).toBeUndefined();
  });

  const failing: [name: string, listener: RequestListener, message: RegExp, retryable: boolean][] = [
    ["500", (_, response) => response.writeHead(500).end(), /m\/x: .*status 500/, true],
    ["403", (_, response) => response.writeHead(403).end(), /m\/x: .*status 403/, false],
    ["no content-range", (_, response) => response.writeHead(206).end("ab"), /m\/x: .*content-range/, false],
    [
      "a content-range without a size",
      (_, response) => response.writeHead(206, { "content-range": "bytes 0-1/2?" }).end("ab"),
      /m\/x: .*content-range/,
      false,
    ],
    ["a connection that breaks", (_, response) => response.destroy(), /m\/x: .*cannot be reached/, true],
    [
      "a body that breaks",
      (_, response) => {
        response.writeHead(200, { "content-length": "10" }).write("abc");
        setImmediate(() => response.destroy());
      },
      /m\/x: the connection ended/,
      true,
    ],
  ];
  test.each(failing)("names the address on %s", async (_, listener, message, retryable) => {
    const opening = httpFolder(await serve(listener)).open("x");
    await expect(opening).rejects.toThrow(message);
    await expect(opening).rejects.toMatchObject({ name: "RemoteError", retryable });
  });

  test("refuses a short range", async () => {
    const cut: RequestListener = (request, response) => {
      const isFirst = request.headers.range === "bytes=0-65535";
      response.writeHead(206, { "content-range": "bytes 0-65535/200000" });
      response.end(isFirst ? BIG.subarray(0, 65_536) : BIG.subarray(0, 3));
    };
    const file = (await httpFolder(await serve(cut)).open("big.bin"))!;
    await expect(file.read(100_000, 10)).rejects.toThrow(/bytes 100000 to 100010 are not available \(status 206\)/);
  });

  test("sends headers, and stops with its signal", async () => {
    const abort = new AbortController();
    const url = await serve((request, response) => response.end(request.headers.authorization));
    const folder = httpFolder(`${url}/`, { headers: { authorization: "Bearer x" }, signal: abort.signal });
    const file = (await folder.open("a"))!;
    expect(new TextDecoder().decode(await file.read(0, file.size))).toBe("Bearer x");
    abort.abort(new Error("enough"));
    await expect(folder.open("a")).rejects.toThrow("enough");
  });

  test.each(["models/m", "file:///models/m"])("refuses the address %s", (url) => {
    expect(() => httpFolder(url)).toThrow(/must start with http:\/\/ or https:\/\//);
  });

  test.skipIf(!hasShared)("opens a model, and reads the weights of the folder on disk", async () => {
    const path = sharedPath("models/stories260k");
    const names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    const files = Object.fromEntries(
      [...names, "model.safetensors"].flatMap((name) => {
        try {
          return [[name, readFileSync(`${path}/${name}`)]];
        } catch {
          return [];
        }
      }),
    );
    const local = await openModelFolder(path);
    const remote = await openModelFolder(httpFolder(await serve(rangeServer(files))));
    expect(remote.config).toEqual(local.config);
    expect(remote.tokenizer?.encode("Once")).toEqual(local.tokenizer?.encode("Once"));
    for (const name of local.tensors.keys()) expect(await remote.read(name)).toEqual(await local.read(name));
  });
});
