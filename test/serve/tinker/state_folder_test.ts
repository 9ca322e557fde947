/** The state folder: damage is kept and reported, failures are tried again, and neither stops the server. */
import { chmod, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { ConfigError } from "../../../src/leaves/errors.ts";
import { Checkpoints } from "../../../src/serve/tinker/checkpoint/checkpoints.ts";
import { parsePath } from "../../../src/serve/tinker/checkpoint_path.ts";
import { Refusal } from "../../../src/serve/tinker/protocol/outcome.ts";
import { openServer } from "./tinker_client.ts";

/** Calls of these functions fail for matching paths. */
const refused = vi.hoisted(() => ({ calls: [] as string[], path: /^$/, code: "EROFS" }));
vi.mock("node:fs/promises", async (original) => {
  const real = await original<typeof import("node:fs/promises")>();
  const guarded = (name: "rm" | "rename" | "mkdir") =>
    (async (path: string, ...rest: unknown[]) => {
      if (refused.calls.includes(name) && refused.path.test(path))
        throw Object.assign(new Error(`${refused.code}: ${name} '${path}'`), { code: refused.code });
      return (real[name] as (...all: unknown[]) => unknown)(path, ...rest);
    }) as never;
  return { ...real, rm: guarded("rm"), rename: guarded("rename"), mkdir: guarded("mkdir") };
});
function refuse(calls: string[], of: { path: RegExp; code?: string }): void {
  Object.assign(refused, { code: "EROFS", calls, ...of });
  onTestFinished(() => void Object.assign(refused, { calls: [] }));
}

const SESSION = "11111111-2222-3333-4444-555555555555";
const RUN = `${SESSION}:train:0`;
const config = { rank: 4, trainUnembed: true, trainMlp: true, trainAttn: true, seed: 0 };
const now = () => new Date().toISOString();
const run = { id: RUN, session: SESSION, baseModel: "toy", config, created: now(), lastRequest: now() };
const pathOf = (name: string) => parsePath(`tinker://${RUN}/weights/${name}`);

async function folder(): Promise<string> {
  const root = await mkdtemp(join(tmpdir(), "grpu-state-"));
  onTestFinished(() => rm(root, { recursive: true, force: true }));
  return root;
}

async function saved(root: string, names: readonly string[], ttlSeconds?: number) {
  const log: string[] = [];
  const store = await Checkpoints.open(root, { log: (line) => log.push(line) });
  await store.putRun(run);
  for (const name of names) await store.save(pathOf(name), { ...content(name), ttlSeconds });
  const dir = (name: string) => join(root, SESSION, "train-0", "weights", name);
  onTestFinished(() => store.close());
  return { store, log, dir };
}

const content = (text: string) => ({
  step: 1,
  overwrite: true,
  write: (dir: string) => writeFile(join(dir, "adapter_model.safetensors"), text),
});
const weights = (dir: string) => readFile(join(dir, "adapter_model.safetensors"), "utf8");

/** The state that the next server finds. */
async function reopened(root: string, before: Checkpoints) {
  before.close();
  const log: string[] = [];
  const store = await Checkpoints.open(root, { log: (line) => log.push(line) });
  onTestFinished(() => store.close());
  return { store, log };
}

describe("an unreadable record", () => {
  test.each<[string, (text: string) => string]>([
    ["one changed byte", (text) => text.replace("{", "[")],
    ["another run's", (text) => text.replaceAll(RUN, "../../x")],
    ["another checkpoint's", (text) => text.replace('"name": "a"', '"name": "b"')],
    ["an invalid time", (text) => text.replace(/"time": "[^"]*"/, '"time": 7')],
    ["metadata of 10,000 levels", (text) => text.replace(/}\s*$/, `, "userMetadata": ${deep(10_000)}}`)],
    ["an empty file", () => ""],
  ])("%s: the weights stay, the log names it, the rest is there", async (_, damage) => {
    const root = await folder();
    const { dir, store: first } = await saved(root, ["a", "c"]);
    const record = join(dir("a"), "checkpoint.json");
    await writeFile(record, damage(await readFile(record, "utf8")));
    const { store, log } = await reopened(root, first);
    expect(await weights(dir("a"))).toBe("a");
    expect(store.list().map(({ name }) => name)).toEqual(["c"]);
    expect(log).toEqual([expect.stringContaining(join(SESSION, "train-0", "weights", "a"))]);
    await expect(store.sweep()).resolves.toBeUndefined();
    // A save under its name sets the damaged folder aside.
    await store.save(pathOf("a"), content("new"));
    expect(await weights(dir("a"))).toBe("new");
    expect(await weights(dir("a~unreadable"))).toBe("a");
    expect((await reopened(root, store)).log).toEqual([expect.stringContaining("a~unreadable")]);
    expect(await weights(dir("a~unreadable"))).toBe("a");
  });

  test("of a run: its checkpoints are listed, the pages answer, the run is listed as corrupted", async () => {
    const root = await folder();
    (await saved(root, ["a"])).store.close();
    await writeFile(join(root, SESSION, "train-0", "run.json"), "{");
    const server = await openServer({ root });
    const { json } = await server.get("training_runs");
    expect(json.training_runs).toEqual([expect.objectContaining({ training_run_id: RUN, corrupted: true })]);
    expect((await server.get("checkpoints")).json.checkpoints).toHaveLength(1);
    const page = new TextDecoder().decode((await server.get("/")).bytes);
    expect(page).toContain("train-0/run.json");
    const told = await server.post("weights_info", { tinker_path: `tinker://${RUN}/weights/a` });
    expect(told).toMatchObject({ status: 404, json: { detail: expect.stringContaining("run.json") } });
  });
});

const deep = (levels: number) => `${'{"a":'.repeat(levels)}1${"}".repeat(levels)}`;

describe("an interrupted save", () => {
  test.each<[string, (dir: (name: string) => string) => Promise<void>, string | undefined]>([
    ["while writing", (dir) => mkdir(dir(".partial-x")), "old"],
    [
      "before the old one stood aside",
      async (dir) => {
        await mkdir(dir(".partial-x"));
        await writeFile(join(dir(".partial-x"), "checkpoint.json"), await recordOf(dir("a")));
      },
      "old",
    ],
    ["after the old one was renamed", (dir) => rename(dir("a"), dir(".partial-x.old")), "old"],
    [
      "between the two renames",
      async (dir) => {
        await rename(dir("a"), dir(".partial-x.old"));
        await rename(dir("b"), dir(".partial-x"));
        const record = (await recordOf(dir(".partial-x"))).replace('"name": "b"', '"name": "a"');
        await writeFile(join(dir(".partial-x"), "checkpoint.json"), record);
      },
      "b",
    ],
  ])("%s: the checkpoint is there", async (_, cut, expected) => {
    const root = await folder();
    const { store, dir } = await saved(root, ["a", "b"]);
    await store.save(pathOf("a"), content("old"));
    await cut(dir);
    const { store: next, log } = await reopened(root, store);
    expect(await weights(next.find(pathOf("a")).dir)).toBe(expected);
    expect(log).toEqual([]);
    expect((await readdir(dir(""))).filter((name) => name.startsWith("."))).toEqual([]);
  });
});

const recordOf = (dir: string) => readFile(join(dir, "checkpoint.json"), "utf8");

describe("a disk error", () => {
  test("in the sweep: other checkpoints are deleted, one line is logged, and the next sweep tries again", async () => {
    const root = await folder();
    const { store, log, dir } = await saved(root, ["a", "b"], 0.001);
    await new Promise((resolve) => setTimeout(resolve, 5));
    refuse(["rename"], { path: /weights\/a$/ });
    for (let i = 0; i < 3; i++) await store.sweep();
    expect(await readdir(dir(""))).toEqual(["a"]);
    expect(log).toEqual([expect.stringMatching(/Cannot delete tinker:.*weights\/a: the disk is read-only/)]);
    refused.calls = [];
    await store.sweep();
    expect(await readdir(dir(""))).toEqual([]);
  });

  test("in a client's deletion: the checkpoint stays listed, and the client gets the reason", async () => {
    const root = await folder();
    (await saved(root, ["a"])).store.close();
    const server = await openServer({ root });
    const route = `http://localhost/api/v1/training_runs/${RUN}/checkpoints/weights/a`;
    refuse(["rename"], { path: /weights\/a$/ });
    const { status, json } = await server.send(new Request(route, { method: "DELETE" }));
    expect({ status, detail: json.detail }).toEqual({
      status: 500,
      detail: expect.stringContaining("the disk is read-only"),
    });
    expect((await server.get("checkpoints")).json.checkpoints).toHaveLength(1);
  });

  test("halfway through a deletion: the checkpoint is gone for clients and deleted later", async () => {
    const root = await folder();
    const { store, dir } = await saved(root, ["a"]);
    refuse(["rm"], { path: /\.deleted-/ });
    await store.remove(pathOf("a"));
    expect(store.list()).toEqual([]);
    expect(await readdir(dir(""))).toEqual([expect.stringMatching(/^\.deleted-a-/)]);
    refused.calls = [];
    await store.sweep();
    expect(await readdir(dir(""))).toEqual([]);
  });

  test("in a save: the old checkpoint stays under its name", async () => {
    const root = await folder();
    const { store, dir } = await saved(root, ["a"]);
    refuse(["rename"], { path: /\.partial-[^.]*$/ });
    await expect(store.save(pathOf("a"), content("new"))).rejects.toThrow(/Cannot save .*read-only/);
    expect(await weights(dir("a"))).toBe("a");
    expect(await readdir(dir(""))).toEqual(["a"]);
  });

  test("when the state folder is made: the error names it and the reason", async () => {
    const file = join(await folder(), "file");
    await writeFile(file, "");
    const nowhere = ["/proc/grpu-nowhere/x", join(file, "x")];
    for (const root of nowhere)
      await expect(Checkpoints.open(root)).rejects.toThrow(/^Cannot keep checkpoints: .*\(.*\)\.$/);
  });
});

test("a run without a written record is not listed", async () => {
  const { store } = await saved(await folder(), []);
  const id = `${SESSION}:train:1`;
  // biome-ignore lint/suspicious/noExplicitAny: a record that is not valid JSON
  const cyclic: any = {};
  cyclic.self = cyclic;
  await expect(store.putRun({ ...run, id, userMetadata: cyclic })).rejects.toThrow();
  expect(store.allRuns().map((it) => it.id)).toEqual([RUN]);
});

test("other users can read neither the state folder nor its content", async () => {
  const root = join(await folder(), "state");
  await mkdir(join(root, SESSION), { recursive: true });
  await chmod(root, 0o755);
  const { dir, store } = await saved(root, ["a"]);
  await reopened(root, store);
  const modes = [];
  for (const path of [root, join(root, SESSION), join(root, SESSION, "train-0"), dir(""), dir("a")])
    modes.push(((await stat(path)).mode & 0o777).toString(8));
  expect(modes).toEqual(["700", "700", "700", "700", "700"]);
  const files = [join(dir("a"), "adapter_model.safetensors"), join(dir("a"), "checkpoint.json")];
  for (const file of [...files, join(root, SESSION, "train-0", "run.json")])
    expect(((await stat(file)).mode & 0o777).toString(8), file).toBe("600");
});

test("what goes wrong while weights are read names the checkpoint; one that is deleted meanwhile is not found", async () => {
  const root = await folder();
  const { store } = await saved(root, ["a", "b", "c"]);
  const path = `tinker://${RUN}/weights/`;
  expect(await store.read(pathOf("a"), weights)).toBe("a");
  const damaged = (dir: string) => Promise.reject(new ConfigError("Cannot read the weights: no", { file: dir }));
  await expect(store.read(pathOf("a"), damaged)).rejects.toThrow(`Cannot read the weights: no (${path}a)`);
  const gone = async (dir: string) => {
    await rm(dir, { recursive: true });
    return weights(dir);
  };
  await expect(store.read(pathOf("b"), gone)).rejects.toThrow(
    new Refusal(404, `Cannot read the checkpoint ${path}b: its files were deleted.`),
  );
  const removed = async (dir: string) => {
    await store.remove(pathOf("c"));
    return weights(dir);
  };
  await expect(store.read(pathOf("c"), removed)).rejects.toThrow(
    /^Cannot find the checkpoint .* does not exist or has/,
  );
});

test("a folder with other content keeps its mode", async () => {
  const root = await folder();
  await chmod(root, 0o755);
  await writeFile(join(root, "notes.txt"), "");
  // The second time, the folder also holds the server's own.
  for (const name of ["a", "b"]) {
    const { store } = await saved(root, [name]);
    store.close();
    expect(((await stat(root)).mode & 0o777).toString(8)).toBe("755");
  }
  expect(((await stat(join(root, SESSION))).mode & 0o777).toString(8)).toBe("700");
});

test("an expired checkpoint cannot be found even before the sweep", async () => {
  vi.useFakeTimers({ toFake: ["Date"] });
  onTestFinished(() => void vi.useRealTimers());
  const { store } = await saved(await folder(), ["a"], 60);
  expect(store.find(pathOf("a")).record.name).toBe("a");
  vi.setSystemTime(Date.now() + 60_000);
  expect(() => store.find(pathOf("a"))).toThrow(/it does not exist or has expired/);
  expect(store.list()).toEqual([]);
  expect(store.has(pathOf("a"))).toBe(false);
});

test("a second server cannot open the folder while the first one uses it", async () => {
  const root = await folder();
  const { store } = await saved(root, ["a"]);
  const second = Checkpoints.open(root);
  await expect(second).rejects.toThrow(/in use by .*Stop that server, or give this one another folder/);
  expect((await reopened(root, store)).store.list()).toHaveLength(1);
});
