import { mkdirSync, mkdtempSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { findHubPackage } from "../../../src/cli/hub/access.ts";
import { modelCard } from "../../../src/cli/hub/card.ts";
import { toYaml } from "../../../src/train/config/show.ts";
import { openRuns } from "../../../src/train/run/place/runs.ts";
import { grpu } from "../../fixtures/cli.ts";
import { digest, FakeHub, json } from "../../fixtures/fake_hub.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { someMetrics, writeRun } from "../../fixtures/run_folder.ts";
import { hasShared, sharedPath } from "../../fixtures/shared.ts";
import { compose, readConfig } from "../../train/config/disk.ts";

const hub = new FakeHub();
const root = temporaryFolder("to-push");
const TOKEN = "hf_secret";
const WEIGHTS = Buffer.from(Array.from({ length: 5000 }, (_, i) => i % 251));

beforeAll(() => hub.start());
afterAll(() => hub.stop());
beforeEach(() => {
  hub.repos.clear();
  hub.private.clear();
  hub.requests.length = 0;
  hub.fault = () => false;
});

const push = (dir: string, args: string[] = [], env: Record<string, string> = { HF_TOKEN: TOKEN }) =>
  grpu(["push", dir, "--to", "me/model", ...args], { env: { HF_ENDPOINT: hub.url, ...env } });
const filesAt = (branch = "main") => hub.repos.get("me/model")!.get(branch)!;

function newFolder(): string {
  const dir = mkdtempSync(join(root, "dir-"));
  mkdirSync(join(dir, "sub"));
  mkdirSync(join(dir, ".git"));
  for (const name of ["config.json", "sub/text.txt", ".env", ".git/config"]) writeFileSync(join(dir, name), name);
  writeFileSync(join(root, "blob"), WEIGHTS);
  symlinkSync(join(root, "blob"), join(dir, "model.safetensors"));
  return dir;
}

describe.skipIf(findHubPackage() === undefined)("grpu push", () => {
  test("uploads a folder as it is, without hidden files, to a new repository", async () => {
    const { code, out, err } = await push(newFolder(), ["--private"]);
    expect(err).toContain("made the repository me/model");
    expect(code).toBe(0);
    expect(out).toBe(`${hub.url}/me/model/commit/c0ffee\n`);
    expect([...filesAt().keys()].sort()).toEqual(["README.md", "config.json", "model.safetensors", "sub/text.txt"]);
    expect(digest("sha256", filesAt().get("model.safetensors")!)).toBe(digest("sha256", WEIGHTS));
    expect(filesAt().get("sub/text.txt")!.toString()).toBe("sub/text.txt");
    expect(hub.private.has("me/model")).toBe(true);
    expect(out + err).not.toContain(TOKEN);
    const elsewhere = hub.requests.filter(({ path }) => path.startsWith("/objects/"));
    expect(elsewhere.map(({ authorization }) => authorization)).toEqual([undefined]);
  });

  test("keeps a card that the folder or the repository has", async () => {
    hub.put("me/model", { "README.md": "theirs" });
    const dir = newFolder();
    const { err } = await push(dir, ["--private"]);
    expect(err).toContain("me/model exists: --private changes nothing");
    expect(filesAt().get("README.md")!.toString()).toBe("theirs");
    writeFileSync(join(dir, "README.md"), "mine");
    await push(dir);
    expect(filesAt().get("README.md")!.toString()).toBe("mine");
  });

  test("asks to make no repository that exists, which its token might not be allowed to", async () => {
    hub.put("me/model", {});
    expect(await push(newFolder())).toMatchObject({ code: 0 });
    expect(hub.requests.map(({ path }) => path)).not.toContain("/api/repos/create");
  });

  test("refuses a link to nothing by its name, and looks at no hidden one", async () => {
    const dir = newFolder();
    symlinkSync(join(root, "gone"), join(dir, ".hidden"));
    expect((await push(dir)).code).toBe(0);
    hub.requests.length = 0;
    symlinkSync(join(root, "gone"), join(dir, "sub", "tokenizer.json"));
    const { code, err } = await push(dir);
    expect(code).not.toBe(0);
    expect(err).toMatch(/Cannot push: the link points to no file.*sub\/tokenizer\.json/s);
    expect(hub.requests).toEqual([]);
  });

  test("refuses an adapter whose adapter_config.json cannot be read", async () => {
    const dir = newFolder();
    writeFileSync(join(dir, "adapter_config.json"), "{");
    const { code, err } = await push(dir);
    expect(err).toContain("Cannot push: adapter_config.json is no JSON object. Export the adapter again");
    expect(code).not.toBe(0);
    expect(hub.requests).toEqual([]);
  });

  test("makes the branch, and does not send a large file twice", async () => {
    const dir = newFolder();
    writeFileSync(join(root, "blob"), Buffer.from(WEIGHTS).reverse());
    for (const _ of [1, 2]) expect(await push(dir, ["--revision", "v2", "--json"])).toMatchObject({ code: 0 });
    expect(filesAt("v2").size).toBe(4);
    expect(filesAt("main").size).toBe(0);
    expect(hub.requests.filter(({ method }) => method === "PUT")).toHaveLength(1);
  });

  test.each([
    [401, 1],
    [403, 1],
    [500, 5],
  ])("explains %i after %i requests, without the token", async (status, count) => {
    hub.fault = (_, reply) => {
      reply.setHeader("retry-after", "0");
      json(reply, { error: `no: ${TOKEN}` }, status);
      return true;
    };
    const { code, err } = await push(newFolder());
    expect(err).toContain(`the hub answered ${status}, "no: ***"`);
    expect(code).not.toBe(0);
    expect(hub.requests).toHaveLength(count);
  });

  test("retries an upload that the storage refuses once", async () => {
    let refusals = 1;
    hub.fault = ({ method }, reply) => {
      if (method !== "PUT" || refusals-- <= 0) return false;
      reply.setHeader("retry-after", "0");
      json(reply, {}, 503);
      return true;
    };
    const dir = newFolder();
    writeFileSync(join(root, "blob"), Buffer.alloc(3000, 7));
    expect(await push(dir)).toMatchObject({ code: 0 });
    expect(filesAt().get("model.safetensors")).toEqual(Buffer.alloc(3000, 7));
  });

  test.each([
    ["Cannot push: HF_TOKEN is not set", root, {}],
    ["Cannot push: there is no such folder (nowhere)", "nowhere", { HF_TOKEN: TOKEN }],
  ])("%s", async (message, dir, env) => {
    const { code, err } = await push(dir, [], env);
    expect(err).toContain(message);
    expect(code).not.toBe(0);
    expect(hub.requests).toEqual([]);
  });

  test.skipIf(!hasShared)("uploads what an export writes of a run's latest step, with its metrics", async () => {
    const run = join(root, "run");
    writeRun(run, { metrics: someMetrics(3), config: "rllm:\n  rollout:\n    n: 8\n" });
    const step = join(run, "global_step_3");
    const model = sharedPath("models/stories260k");
    const exported = await grpu(["export", model, "--out", step]);
    expect(exported).toMatchObject({ code: 0 });
    writeFileSync(join(step, "optimizer.bin"), "state");
    expect(await push(step)).toMatchObject({ code: 0 });
    expect([...filesAt().keys()]).toContain("model.safetensors");
    expect([...filesAt().keys()]).not.toContain("optimizer.bin");
    expect(filesAt().get("README.md")!.toString()).toContain("| val/sums/pass@1 | 0.75 |");
    expect(filesAt().get("README.md")!.toString()).toContain("| rllm.rollout.n | 8 |");
    expect(readdirSync(tmpdir()).filter((name) => name.startsWith("grpu-push-"))).toEqual([]);
  });
});

test.each<[string, string, RegExp, RegExp]>([
  [
    "train",
    toYaml(compose(["model.name=m"]).config),
    /^- reinforcement-learning$/m,
    /^A language model trained by reinforc/m,
  ],
  ["sft", readConfig("sft.yaml")!, /^- sft$/m, /^A language model fine-tuned on examples, uploaded/m],
  ["dpo", readConfig("dpo.yaml")!, /^- dpo$/m, /^A language model trained on preferences, uploaded/m],
  ["reward-model", readConfig("reward-model.yaml")!, /^- reward-model$/m, /^A reward model, uploaded/m],
])("the model card of a run of grpu %s says what trained it, by which settings", (_, config, tag, what) => {
  const run = writeRun(mkdtempSync(join(root, "kind-")), { metrics: someMetrics(1), config });
  const [reader] = openRuns([run]);
  reader!.poll();
  const card = modelCard(run, { name: "model", run: reader!.data() });
  expect(card).toMatch(tag);
  expect(card).toMatch(what);
  expect(card.match(/^- /gm)).toHaveLength(2);
  expect(card).toMatch(/^\| \S*(optim\.lr|training\.learning_rate) \| \S+ \|$/m);
});

test("the model card of a folder that no run trained claims no training", () => {
  expect(modelCard(newFolder(), { name: "model" })).toBe(
    "---\nlibrary_name: transformers\ntags:\n- grpu\n---\n\n# model\n\nA language model, uploaded with grpu.\n",
  );
});

test.each([
  ["Qwen/Qwen3-0.6B", true],
  ["/home/me/Qwen3-0.6B", false],
])("a model card names the base %s: %s", (base, isNamed) => {
  const dir = mkdtempSync(join(root, "card-"));
  writeFileSync(join(dir, "adapter_config.json"), JSON.stringify({ base_model_name_or_path: base }));
  const card = modelCard(dir, { name: "model" });
  expect(card).toMatch(/^---\nlibrary_name: peft\n/);
  expect(card.includes(base)).toBe(isNamed);
});
