/** Copies of another server's checkpoints: only from that server, whole, and within limits. */
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { Checkpoints } from "../../../src/serve/tinker/checkpoint/checkpoints.ts";
import { parsePath } from "../../../src/serve/tinker/checkpoint_path.ts";
import { TinkerService } from "../../../src/serve/tinker/service.ts";
import { openServer, type TestServer } from "./tinker_client.ts";

const PEER = "http://first:8000/prefix";
const KEY = "tml-secret";

interface Sent {
  readonly url: string;
  readonly key: string | null;
  readonly redirect: RequestInit["redirect"];
}

/** A server with a checkpoint, and one that copies it through `answer`, which may change what the first one answers. */
async function openTwo(answer: (url: string, real: () => Promise<Response>) => Response | Promise<Response>) {
  const first = await openServer({ apiKey: KEY });
  const path = await saved(first);
  const sent: Sent[] = [];
  const root = await mkdtemp(join(tmpdir(), "grpu-copy-"));
  const second = new TinkerService({
    models: first.service.models.all,
    checkpoints: await Checkpoints.open(root),
    peers: {
      urls: [PEER],
      apiKey: KEY,
      stillMs: 100,
      fetch: async (url, init) => {
        const key = new Headers(init.headers).get("x-api-key");
        sent.push({ url, key, redirect: init.redirect });
        const real = async () => first.app.fetch(new Request(url.replace(PEER, "http://localhost:8000"), init));
        return answer(url, real);
      },
    },
  });
  onTestFinished(async () => {
    second.checkpoints.close();
    await rm(root, { recursive: true });
  });
  return { first, second, path, sent };
}

async function saved({ service, engine }: TestServer, name = "a"): Promise<string> {
  const run = "0-a:train:0";
  const now = new Date().toISOString();
  const config = { rank: 4, trainUnembed: true, trainMlp: true, trainAttn: true, seed: 1 };
  const { fingerprint } = engine;
  await service.checkpoints.putRun({
    ...{ id: run, session: "0-a", baseModel: "toy", fingerprint, config },
    ...{ created: now, lastRequest: now },
  });
  await overwrite(service.checkpoints, `tinker://${run}/sampler_weights/${name}`, "first");
  return `tinker://${run}/sampler_weights/${name}`;
}

async function overwrite(checkpoints: Checkpoints, path: string, content: string): Promise<void> {
  const write = async (dir: string) => {
    for (const name of ["a.json", "b.json", "base.json"]) await writeFile(join(dir, name), `${content} ${name}`);
  };
  await checkpoints.save(parsePath(path), { step: 1, overwrite: true, write });
}

const offered = (changes: object) => async (url: string, real: () => Promise<Response>) =>
  url.endsWith("/copy") ? Response.json({ ...((await (await real()).json()) as object), ...changes }) : real();

test("a copy asks the peer alone, follows no redirect, and sends the key only to its routes", async () => {
  const { second, path, sent } = await openTwo((_, real) => real());
  await second.peers.bring(path);
  const { dir } = second.checkpoints.find(parsePath(path));
  expect((await readdir(dir)).sort()).toEqual(["a.json", "b.json", "checkpoint.json"]);
  expect(sent.map(({ url }) => url.replace(/archives\/[0-9a-f-]{36}/, "archives/TOKEN"))).toEqual([
    `${PEER}/api/v1/training_runs/0-a%3Atrain%3A0/checkpoints/sampler_weights/a/copy`,
    `${PEER}/archives/TOKEN/a.json`,
    `${PEER}/archives/TOKEN/b.json`,
  ]);
  expect(sent.map(({ key }) => key)).toEqual([KEY, null, null]);
  expect(sent.map(({ redirect }) => redirect)).toEqual(["error", "error", "error"]);
});

test.each<[string, object]>([
  ["an address with two slashes", { files: { "a.json": "http://x//169.254.169.254/latest/meta-data" } }],
  ["a token with slashes", { archive: "/169.254.169.254/latest" }],
  ["a token of dots", { archive: ".." }],
  ["this server's record", { files: { "checkpoint.json": 1 } }],
  ["the mark of the base model", { files: { "base.json": 1 } }],
  ["an optimiser", { files: { "optimizer.safetensors": 1 } }],
])("an offer with %s is refused before anything is asked for", async (_, changes) => {
  const { second, path, sent } = await openTwo(offered(changes));
  await expect(second.peers.bring(path)).rejects.toThrow(/cannot be asked/);
  expect(sent).toHaveLength(1);
  expect(second.checkpoints.list()).toEqual([]);
});

test.each<[string, number, RegExp]>([
  ["more", 5, /it sends more bytes in place of 5/],
  ["fewer", 5000, /it sends 12 bytes in place of 5000/],
])("a file of %s bytes than offered is not taken", async (_, bytes, message) => {
  const { second, path } = await openTwo(offered({ files: { "a.json": bytes } }));
  await expect(second.peers.bring(path)).rejects.toThrow(message);
  expect(second.checkpoints.list()).toEqual([]);
});

/** An answer that sends some bytes and then nothing. */
const still = () =>
  new Response(new ReadableStream({ start: (controller) => controller.enqueue(new TextEncoder().encode("firs")) }));

test.each<[string, object, RegExp]>([
  [
    "another key",
    { apiKey: "tml-other", allowedHosts: ["first"] },
    /answers 401 \(.*key is missing or wrong.*\)\. Start both .*--api-key-file\)\.$/,
  ],
  ["a host name that it lacks", { host: "0.0.0.0" }, /answers 403 \(.*"first:8000".*\)\. .*--allow-host first\.$/],
])("a peer with %s is a final failure that says what to do", async (_, changes, message) => {
  const strict = await openServer({ apiKey: KEY, ...changes });
  const { second, path } = await openTwo((url) =>
    strict.app.fetch(new Request(url.replace("/prefix", ""), { headers: { "x-api-key": KEY, host: "first:8000" } })),
  );
  const failure = await second.peers.bring(path).catch((error: unknown) => error);
  expect(failure).toMatchObject({ status: 400, message: expect.stringMatching(message) });
});

test("a copy of which nothing arrives ends", async () => {
  const { second, path } = await openTwo((url, real) => (url.endsWith("/a.json") ? still() : real()));
  await expect(second.peers.bring(path)).rejects.toThrow(
    /^Cannot copy a\.json from http:\/\/first:8000\/prefix: nothing arrives for 0\.1 s\. Try again later\.$/,
  );
  expect(second.checkpoints.list()).toEqual([]);
});

test("a copy ends when the server stops", async () => {
  const { second, path } = await openTwo((url, real) => {
    if (!url.endsWith("/a.json")) return real();
    void second.stop();
    return still();
  });
  await expect(second.peers.bring(path)).rejects.toThrow("the server is stopping");
});

test("a checkpoint that is overwritten while it is copied is not mixed with the new one", async () => {
  const { first, second, path } = await openTwo(async (url, real) => {
    if (url.endsWith("/b.json")) await overwrite(first.service.checkpoints, path, "other");
    return real();
  });
  await expect(second.peers.bring(path)).rejects.toThrow(/Cannot copy b\.json from .*: it answers 410/);
  expect(second.checkpoints.list()).toEqual([]);
});
