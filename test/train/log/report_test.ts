import { appendFileSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { GroupsFile } from "../../../src/train/log/loggers/jsonl.ts";
import { Curve, Sampled } from "../../../src/train/log/page/curve.ts";
import { FollowedFile } from "../../../src/train/log/page/followed_file.ts";
import type { PageData } from "../../../src/train/log/page/page_data.ts";
import { renderPage } from "../../../src/train/log/page/render.ts";
import { RunFolder } from "../../../src/train/log/page/run_folder.ts";
import { serveRuns } from "../../../src/train/log/page/view_server.ts";
import { grpu } from "../../fixtures/cli.ts";
import { someMetrics, writeRun } from "../../fixtures/run_folder.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "grpu-report-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const settingsOf = () => ({});

function dataOf(folder: string) {
  const run = new RunFolder(folder, { settingsOf });
  run.poll();
  return run.data();
}

test("a run folder gives curves, totals, the first and last samples, groups and facts", () => {
  const sample = (step: number) => ({
    step,
    task: "t",
    prompt: "1+1=",
    response: "2",
    reward: 1,
    is_correct: true,
  });
  const group = { task: "t", name: "adder", rewards: [0, 1], solved: 1 };
  const run = dataOf(
    writeRun(join(dir, "run"), {
      metrics: someMetrics(40),
      samples: [sample(0), sample(20), sample(20), sample(40)],
      groups: Array.from({ length: 100 }, (_, i) => ({ step: i + 1, groups: [group] })),
      facts: { title: "Sums", subtitle: "adding", total_steps: 50, started: "2026-01-01T00:00:00Z" },
    }),
  );
  expect(run).toMatchObject({
    name: "run",
    title: "Sums",
    subtitle: "adding",
    totalSteps: 50,
    status: "open",
  });
  expect(run.curves.train.reward).toMatchObject({ count: 40, first: 1 / 40, last: 1, max: 1 });
  expect(run.curves.train.reward!.x).toEqual(Array.from({ length: 40 }, (_, i) => i + 1));
  expect(run.curves.train["batch/groups_dropped_uniform"]!.sum).toBe(120);
  expect(run.curves.val["val/sums/pass@1"]!.y).toEqual([0.25, 0.75]);
  expect(run.curves.warmup["warmup/loss"]!.last).toBe(2.5);
  expect(run.samples.map(({ step }) => step)).toEqual([0, 40]);
  expect(run.groups.length).toBeLessThanOrEqual(25);
  expect([run.groups[0]!.step, run.groups.at(-1)?.step]).toEqual([1, 100]);
});

test.each([
  [{ ended: "x", complete: true }, "complete"],
  [{ ended: "x", complete: false }, "stopped"],
  [{}, "open"],
])("a run whose facts are %j is %s", (facts, status) => {
  expect(dataOf(writeRun(join(dir, "run"), { facts })).status).toBe(status);
});

test("a folder that only an older version wrote, or that a kill left with half a line, is read all the same", () => {
  const folder = writeRun(join(dir, "old"), { metrics: someMetrics(2) });
  appendFileSync(join(folder, "metrics.jsonl"), '{"phase":"train","step":3,"reward/ad');
  const run = dataOf(folder);
  expect(run).toMatchObject({ title: "old", totalSteps: null, config: "" });
  expect(run.curves.train.reward!.count).toBe(2);
});

test("damaged lines are left out and counted, whatever they hold; a damaged run.json says nothing", () => {
  const folder = writeRun(join(dir, "run"), { metrics: someMetrics(2) });
  const whole = dataOf(folder);
  const bad = [
    ...["null", "1", '"x"', "[]", "{}", "{", "\u0000", '{"phase":"__proto__","step":1}', '{"phase":"train"}'],
    ...['{"phase":"constructor","step":1}', '{"phase":"train","step":null}', '{"phase":"train","step":1e999}'],
  ];
  appendFileSync(join(folder, "metrics.jsonl"), `${bad.join("\n")}\n`);
  const badSamples = ["null", '{"step":1}', '{"step":1,"task":{},"prompt":"","response":"","reward":1}'];
  appendFileSync(join(folder, "samples.jsonl"), `${badSamples.join("\n")}\n`);
  const badGroups = ["null", '{"step":1,"groups":[null]}', '{"step":1,"groups":[{"task":"t","rewards":["x"]}]}'];
  appendFileSync(join(folder, "groups.jsonl"), `${badGroups.join("\n")}\n`);
  writeFileSync(join(folder, "run.json"), '{"title":{"replace":1},"subtitle":7,"total_steps":"x"}');
  const read = dataOf(folder);
  expect(read).toEqual({ ...whole, updated: expect.any(Number), badLines: 18 });
  expect(renderPage([dataOf(folder)])).toContain("<title>run · grpu</title>");
});

test("FollowedFile leaves out a line that is longer than any run writes, in bounded memory, and goes on", () => {
  const file = join(dir, "long.jsonl");
  writeFileSync(file, `a\n${"x".repeat(20 * 2 ** 20)}`);
  const followed = new FollowedFile(file);
  const lines: string[] = [];
  const poll = () =>
    followed.poll(
      (line) => lines.push(line),
      () => {},
    );
  poll();
  appendFileSync(file, "yyy\nb\n");
  poll();
  expect([lines, followed.tooLong]).toEqual([["a", "b"], 1]);
});

test("a curve of a million points stays small, keeps its shape, its end and its totals", () => {
  const curve = new Curve();
  for (let x = 1; x <= 1e6; x++) curve.add(x, Math.sin(x / 1e5));
  curve.add(1e6 + 1, Number.NaN);
  const { x, y, count, last, max } = curve.data();
  expect(x.length).toBeGreaterThanOrEqual(200);
  expect(x.length).toBeLessThanOrEqual(400);
  expect([x.at(-1), count]).toEqual([1e6, 1e6]);
  expect(last).toBe(Math.sin(10));
  expect(max).toBeCloseTo(1, 6);
  // The last point is the mean of up to 1e6 / 200 values, drawn at the last of them.
  for (const [i, at] of x.entries())
    expect(Math.abs(y[i]! - Math.sin(at / 1e5))).toBeLessThan(i === x.length - 1 ? 0.025 : 1e-3);
});

test("a short curve is drawn as it is", () => {
  const curve = new Curve();
  for (const [x, y] of [
    [1, 5],
    [3, 7],
  ])
    curve.add(x!, y!);
  expect(curve.data()).toMatchObject({ x: [1, 3], y: [5, 7], first: 5, last: 7, sum: 12 });
});

test("Sampled keeps few items, the first and the last among them", () => {
  const sampled = new Sampled<number>(8);
  for (let i = 0; i < 1000; i++) sampled.add(i);
  const items = sampled.items();
  expect(items.length).toBeLessThanOrEqual(9);
  expect([items[0], items.at(-1)]).toEqual([0, 999]);
});

test("FollowedFile gives each line once, waits for whole ones, and starts over when the file was cut back", () => {
  const file = join(dir, "lines");
  const followed = new FollowedFile(file);
  const poll = () => {
    const seen: string[] = [];
    followed.poll(
      (line) => void seen.push(line),
      () => void seen.push("RESET"),
    );
    return seen;
  };
  expect(poll()).toEqual([]);
  writeFileSync(file, "one\ntw");
  expect(poll()).toEqual(["one"]);
  appendFileSync(file, "ö\n\nthree\n");
  expect(poll()).toEqual(["twö", "three"]);
  expect(poll()).toEqual([]);
  truncateSync(file, 4);
  expect(poll()).toEqual(["RESET", "one"]);
  // Cut back and grown again between two looks.
  writeFileSync(file, "ONE\nTWO\nTHREE\nFOUR\n");
  expect(poll()).toEqual(["RESET", "ONE", "TWO", "THREE", "FOUR"]);
});

test("GroupsFile writes the rewards and solve counts of every group, filtered or not", () => {
  const file = join(dir, "groups.jsonl");
  const episode = (task: number, reward: number) => ({
    id: `${task}`,
    task: { id: `t${task}`, instruction: "?", metadata: {} },
    task_index: task,
    rollout_index: 0,
    termination_reason: "env_done" as const,
    is_correct: reward === 1,
    metrics: {},
    metadata: {},
    trajectories: [{ uid: "u", name: "adder", reward, steps: [] }],
  });
  const episodes = [episode(0, 1), episode(0, 0.123456), episode(1, 0)];
  new GroupsFile(file).log({ phase: "train", step: 3, totalSteps: 9, metrics: {}, episodes });
  new GroupsFile(file).log({ phase: "val", step: 3, totalSteps: 9, metrics: {}, episodes });
  expect(JSON.parse(readFileSync(file, "utf8"))).toEqual({
    step: 3,
    groups: [
      { task: "t0", name: "adder", rewards: [1, 0.1235], solved: 1 },
      { task: "t1", name: "adder", rewards: [0], solved: 0 },
    ],
  });
});

test("the page holds everything it needs, and text stays text", () => {
  const evil = "</script><script>alert(1)</script>";
  const folder = writeRun(join(dir, "run"), {
    samples: [{ step: 0, task: "t", prompt: evil, response: evil, reward: 0, is_correct: false }],
    facts: { title: `a & b ${evil}` },
  });
  const page = renderPage([dataOf(folder)]);
  expect(page).not.toMatch(/<(script|link|img)[^>]*(src|href)="(?!data:,)/);
  expect(page).not.toMatch(/@import|url\(|import\(/);
  expect(page).not.toContain("<script>alert");
  expect(page).toContain("<title>a &amp; b &lt;/script&gt;");
  expect(page.match(/<\/script>/g)).toHaveLength(2);
});

test("grpu report writes one run's page beside it, and several runs' where it is told", async () => {
  const a = writeRun(join(dir, "a"), { metrics: someMetrics(5), config: "x: 1\n" });
  const b = writeRun(join(dir, "b"), { metrics: [], config: "x: 2\n" });
  const one = await grpu(["report", a]);
  expect(one).toMatchObject({ code: 0, out: `${join(a, "report.html")}\n` });
  const output = join(dir, "both.html");
  expect((await grpu(["report", a, b, "--output", output])).code).toBe(0);
  const text = /<script id="data"[^>]*>(.*?)<\/script>/s.exec(readFileSync(output, "utf8"))?.[1] ?? "";
  const { runs, live } = JSON.parse(text);
  expect(live).toBe(false);
  expect(runs.map((run: { name: string; settings: object }) => [run.name, run.settings])).toEqual([
    ["a", { x: "1" }],
    ["b", { x: "2" }],
  ]);
});

test.each([
  [["report"], /none is named/, 2],
  [["report", "nowhere"], /no metrics\.jsonl and no config\.yaml \(nowhere\)/, 4],
  [["view", "nowhere"], /no metrics\.jsonl/, 4],
  [["view", ".", "--port", "x"], /no metrics\.jsonl/, 4],
])("grpu %j is refused", async (args, message, status) => {
  const { code, err } = await grpu(args);
  expect(err).toMatch(message);
  expect(code).toBe(status);
});

/** With the host that a page of another site would have. */
function statusFor(url: string, host: string): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    request(url, { headers: { host } }, (reply) => resolve(reply.resume().statusCode))
      .on("error", reject)
      .end();
  });
}

test("the server shows what is new, tells its pages, answers only for this machine, and ends", async () => {
  const folder = writeRun(join(dir, "run"), { metrics: someMetrics(2) });
  const server = await serveRuns([new RunFolder(folder, { settingsOf })], { host: "127.0.0.1", port: 0 });
  try {
    const steps = async () =>
      ((await (await fetch(`${server.url}data.json`)).json()) as PageData).runs[0]!.curves.train.reward!.count;
    expect(await (await fetch(server.url)).text()).toContain('"live":true');
    expect(await steps()).toBe(2);
    const events = (await fetch(`${server.url}events`)).body!.getReader();
    const next = async () => new TextDecoder().decode((await events.read()).value);
    expect(await next()).toBe("data: 0\n\n");
    appendFileSync(join(folder, "metrics.jsonl"), '{"phase":"train","step":3,"reward/adder/mean":1}\n');
    let told = await next();
    while (told.startsWith(":")) told = await next();
    expect(told).toMatch(/^data: \d+\n\n$/);
    expect(await steps()).toBe(3);
    expect((await fetch(`${server.url}../etc/passwd`)).status).toBe(404);
    expect((await fetch(server.url, { method: "POST" })).status).toBe(405);
    expect(await statusFor(server.url, "evil.example")).toBe(403);
    expect(await statusFor(server.url, "localhost:1")).toBe(200);
    const { port } = new URL(server.url);
    await expect(serveRuns([], { host: "127.0.0.1", port: Number(port) })).rejects.toThrow(
      /another program uses the port/,
    );
  } finally {
    await server.close();
  }
  await expect(fetch(server.url)).rejects.toThrow();
});

test("grpu view ends on Ctrl-C", async () => {
  const folder = writeRun(join(dir, "run"), { metrics: someMetrics(2) });
  const interrupt = new AbortController();
  const ended = grpu(["view", folder, "--port", "0"], {
    signal: interrupt.signal,
    err: () => interrupt.abort(),
  });
  expect(await ended).toMatchObject({
    code: 0,
    out: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+\/\n$/),
  });
});
