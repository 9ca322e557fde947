/** Models opened to be served: folders, adapters, and runs whose newest checkpoint they follow. */
import { truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import type { SessionView } from "../../../../src/serve/gateway/page/trace_data.ts";
import type { ServedModel } from "../../../../src/serve/openai/served_model.ts";
import type { Serving } from "../../../../src/serve/openai/serving.ts";
import { RunFolder } from "../../../../src/train/log/page/run_folder.ts";
import { serveRuns } from "../../../../src/train/log/page/view_server.ts";
import { followRun } from "../../../../src/train/run/serve/follow_run.ts";
import { openRunTraces } from "../../../../src/train/run/serve/run_traces.ts";
import { type OpenServingOptions, openServing, weightVersionOf } from "../../../../src/train/run/serve/serving.ts";
import { openTraceStore } from "../../../../src/train/trace/mod.ts";
import { CHATML, chatTokenizer } from "../../../fixtures/chat.ts";
import { temporaryFolder } from "../../../fixtures/folder.ts";
import { writeAdapter, writeChatModel, writeCheckpoint, writeRunFiles } from "../../../fixtures/served_models.ts";
import { makeTrace } from "../../trace/make_trace.ts";

const root = temporaryFolder("serving");
const base = join(root, "letters");
const adapter = join(root, "poems");

beforeAll(async () => {
  await writeChatModel(base);
  await writeAdapter(adapter, { base, step: 5 });
});

async function open(options: Partial<OpenServingOptions> = {}) {
  const lines: string[] = [];
  const opened = await openServing({
    model: base,
    device: { device: "cpu" },
    followMs: 0,
    log: (line) => void lines.push(line),
    ...options,
  });
  onTestFinished(() => opened.close());
  return { ...opened, lines };
}

/** Twelve greedy tokens after a prompt. */
function draw(serving: Serving, model: ServedModel) {
  const prompt_ids = [70, 71, 72, 73];
  const params = serving.paramsFor(prompt_ids, { max_tokens: 12, temperature: 0 });
  return serving.draw(model, { request: { prompt_ids, params, seed: 1 }, call: { owner: "a" } });
}

describe("models by name", () => {
  test("the folder's own name, an adapter beside it, each with its weights", async () => {
    const { serving } = await open({ adapters: { poems: adapter } });
    expect(serving.models.map(({ name, weightVersion }) => [name, weightVersion])).toEqual([
      ["letters", 0],
      ["poems", 5],
    ]);
    const [one, other] = await Promise.all(serving.models.map((model) => draw(serving, model)));
    expect(one!.tokens).not.toEqual(other!.tokens);
    expect([one!.weight_version, other!.weight_version]).toEqual([0, 5]);
    expect((await draw(serving, serving.model("letters")!)).tokens).toEqual(one!.tokens);
  });

  test("an adapter alone draws what it draws beside its base", async () => {
    const both = await open({ adapters: { poems: adapter } });
    const alone = await open({ model: adapter, names: ["one", "two"] });
    const expected = await draw(both.serving, both.serving.model("poems")!);
    for (const name of ["one", "two"])
      expect((await draw(alone.serving, alone.serving.model(name)!)).tokens).toEqual(expected.tokens);
    expect(alone.serving.names).toEqual(["one", "two"]);
    // Names of one model share its weights, which a run of whole models would load once for each.
    expect(alone.serving.model("two")).toBe(alone.serving.model("one"));
  });

  test.each<[string, Partial<OpenServingOptions>, RegExp]>([
    ["a name twice", { adapters: { letters: adapter } }, /two models as letters/],
    [
      "a whole model as an adapter",
      { adapters: { poems: base } },
      /poems as an adapter: the folder holds a whole model/,
    ],
    ["a folder with nothing", { model: root }, /neither config.json/],
    ["a run without a checkpoint", { model: writeRunFiles(join(root, "empty")) }, /no checkpoint yet/],
  ])("%s is refused", async (_, options, message) => {
    await expect(open(options)).rejects.toThrow(message);
  });

  test("defaults: the command's, then the model's", async () => {
    const { serving } = await open({ sampling: { temperature: 0.25 } });
    expect(serving.defaults).toEqual({ max_tokens: 1024, temperature: 0.25, top_p: 1, top_k: 0 });
  });
});

describe("a run", () => {
  test.each(["adapter", "model"] as const)(
    "of %ss is served from its newest checkpoint, and followed",
    async (kind) => {
      const run = writeRunFiles(join(root, `run of ${kind}s`));
      const write = (step: number) =>
        writeCheckpoint(run, step, (dir) =>
          kind === "adapter"
            ? writeAdapter(dir, { base, seed: step, step })
            : writeChatModel(dir, { seed: step, step }),
        );
      await write(1);
      await write(2);
      const { serving, lines } = await open({ model: run, names: ["policy"], followMs: 20 });
      const model = serving.model("policy")!;
      const second = await draw(serving, model);
      expect(second.weight_version).toBe(2);
      await write(3);
      while (model.weightVersion < 3) await new Promise((resolve) => setTimeout(resolve, 10));
      const third = await draw(serving, model);
      expect(third.weight_version).toBe(3);
      expect(third.tokens).not.toEqual(second.tokens);
      expect(lines.join("\n")).toMatch(/policy: new requests use .*global_step_3/);
    },
  );

  test("a damaged checkpoint is named once, and the model keeps its weights until the next", async () => {
    const run = writeRunFiles(join(root, "damaged"));
    const first = await writeCheckpoint(run, 1, (dir) => writeChatModel(dir, { step: 1 }));
    const [lines, used]: [string[], string[]] = [[], []];
    const follower = followRun(run, {
      from: first,
      name: "policy",
      log: (line) => void lines.push(line),
      use: async (dir) => void used.push(dir),
      everyMs: 1e6,
    });
    await follower.look();
    const second = await writeCheckpoint(run, 2, (dir) => writeChatModel(dir, { step: 2 }));
    truncateSync(join(second, "model.safetensors"), 100);
    await follower.look();
    await follower.look();
    expect([used, lines.length]).toEqual([[], 1]);
    expect(lines[0]).toMatch(/policy keeps its weights.*global_step_2.*damaged/);
    const third = await writeCheckpoint(run, 3, (dir) => writeChatModel(dir, { step: 3 }));
    await follower.look();
    expect(used).toEqual([third]);
    await follower.stop();
  });

  test("what POST /admin/reload asks for is used at once, or named", async () => {
    const run = writeRunFiles(join(root, "reloaded"));
    const from = await writeCheckpoint(run, 1, (dir) => writeChatModel(dir, { step: 1 }));
    let isShort = true;
    const use = async () => {
      if (isShort) throw new Error("no memory");
    };
    const follower = followRun(run, { from, name: "policy", log: () => {}, use, everyMs: 0 });
    await follower.reload();
    await writeCheckpoint(run, 2, (dir) => writeChatModel(dir, { step: 2 }));
    await expect(follower.reload()).rejects.toThrow(/policy keeps its weights.*global_step_2.*no memory/);
    isShort = false;
    await follower.reload();
    await follower.stop();
  });
});

test("a checkpoint that could not be used is tried again, and its error is logged once", async () => {
  const run = writeRunFiles(join(root, "retried"));
  const from = await writeCheckpoint(run, 1, (dir) => writeChatModel(dir, { step: 1 }));
  const second = await writeCheckpoint(run, 2, (dir) => writeChatModel(dir, { step: 2 }));
  const lines: string[] = [];
  let tries = 0;
  const use = async () => {
    if (++tries < 3) throw new Error("no memory");
  };
  const follower = followRun(run, { from, name: "policy", log: (line) => void lines.push(line), use, everyMs: 5 });
  await vi.waitFor(() => expect(lines).toHaveLength(2), { timeout: 10_000 });
  await follower.stop();
  expect(tries).toBe(3);
  expect(lines[0]).toMatch(/policy keeps its weights.*no memory/);
  expect(lines[1]).toBe(`policy: new requests use ${second}`);
});

test("the weight version is the optimiser's step, or the step in the folder's name", async () => {
  expect(await weightVersionOf(adapter)).toBe(5);
  expect(await weightVersionOf(base)).toBe(0);
  expect(await weightVersionOf(await writeChatModel(join(root, "global_step_8")))).toBe(8);
});

test("a run's trace store opens with the page of runs, and tokens are shown in its tokenizer's text", async () => {
  const run = writeRunFiles(join(root, "recorded"));
  expect(await openRunTraces([run])).toBeUndefined();
  const path = join(root, "recorded.db");
  writeFileSync(join(run, "config.yaml"), `rllm:\n  sdk:\n    store:\n      path: ${path}\n`);
  expect(await openRunTraces([run])).toBeUndefined();
  await writeCheckpoint(run, 1, (dir) => writeChatModel(dir, { step: 1 }));
  const store = await openTraceStore(path);
  await store.putTrace(makeTrace({ trace_id: "a", session_id: "first", completion_token_ids: [97] }));
  await store.close();
  const traces = await openRunTraces([base, run]);
  onTestFinished(async () => traces?.close());
  const answer = await traces!.handler(new Request("http://localhost/traces/session.json?id=first"));
  const { traces: calls } = (await answer.json()) as SessionView;
  const tokenizer = chatTokenizer(CHATML);
  expect(calls[0]!.completion[0]!.text).toBe(tokenizer.decode([97]));
  const folder = new RunFolder(run, { settingsOf: () => ({}) });
  const server = await serveRuns([folder], { host: "127.0.0.1", port: 0, traces: traces!.handler });
  onTestFinished(() => server.close());
  expect(await (await fetch(server.url)).text()).toContain('"traces":"traces/"');
  expect((await fetch(`${server.url}traces/`)).status).toBe(200);
  expect((await fetch(`${server.url}traces/sessions.json`)).status).toBe(200);
});
