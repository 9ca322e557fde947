/** `grpu traces`: a store that a person lists, reads, moves, rewards and clears. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { openTraceStore } from "../../src/train/trace/mod.ts";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { makeTrace } from "../train/trace/make_trace.ts";

const dir = temporaryFolder("traces");
const at = (name: string) => join(dir, name);
const store = at("traces.db");
const question = { role: "user", content: "What is 2+2?" };
const reply = { role: "assistant", content: "Four." };

beforeAll(async () => {
  const opened = await openTraceStore(store, { now: () => 1700000000 });
  const common = { session_id: "sum:0", weight_version: 3, metadata: {} };
  await opened.putTrace(makeTrace({ ...common, trace_id: "one", messages: [question], response_message: reply }));
  await opened.putTrace(
    makeTrace({
      ...{ ...common, trace_id: "two", timestamp: 1001, prompt_origin: "continued" },
      constrained: { masked_tokens: 2, is_relaxed: true },
      messages: [question, reply, { role: "user", content: "And 3+3?\x1b[2J" }],
      response_message: {
        ...{ role: "assistant", content: "", reasoning_content: "simple" },
        tool_calls: [{ id: "c", type: "function", function: { name: "add", arguments: '{"a":3}' } }],
      },
    }),
  );
  const outcome = { reward: 0.5, is_correct: true, termination_reason: "env_done", ended_at: 1700000002 };
  await opened.putSession({ session_id: "sum:0", metadata: { task_id: "sum" }, created_at: 1700000000, outcome });
  await opened.putTrace(makeTrace({ trace_id: "three", session_id: "open", logprobs: null }));
  await opened.close();
});

const run = (...args: string[]) => grpu(["traces", ...args, "--store", store]);
const json = async (...args: string[]) => JSON.parse((await run(...args, "--json")).out);

test("list", async () => {
  expect((await run("list")).out).toBe(
    [
      "session  calls  reward  task  last call",
      "open     1      -       open  2023-11-14 22:13:20",
      "sum:0    2      0.5     sum   2023-11-14 22:13:20",
      "",
    ].join("\n"),
  );
  expect((await json("list", "--limit", "1")).map((each: { session_id: string }) => each.session_id)).toEqual(["open"]);
  expect(await run("list", "--since", "7d")).toEqual({ code: 0, out: "", err: "no sessions\n" });
  expect(await json("list", "--since", "2023-11-14T22:00Z")).toHaveLength(2);
});

test("show prints each message once, reasoning and tool calls apart, and the figures of every call", async () => {
  expect((await run("show", "sum:0")).out).toBe(
    [
      "sum:0  2 calls, reward 0.5, correct, env_done, 2023-11-14 22:13:20",
      "task_id=sum",
      "",
      "call 1  one, 3 + 2 tokens, log-prob mean -0.375, least -0.500, weights 3, stop, 13 ms",
      "  user       What is 2+2?",
      "  assistant  Four.",
      "",
      "call 2  two, 3 + 2 tokens, log-prob mean -0.375, least -0.500, weights 3, stop, continued, 2 tokens masked, constraint given up, 13 ms",
      "  ...        2 earlier messages",
      "  user       And 3+3?\x1b[2J",
      "  reasoning  simple",
      '  tool call  add({"a":3})',
      "",
    ].join("\n"),
  );
  expect((await run("show", "one", "--tokens")).out).toMatch(/prompt {5}1 2 3\n {2}sampled {4}4:-0\.500 5:-0\.250\n$/);
  expect((await run("show", "open")).out).toMatch(/no outcome yet[\s\S]*no log-probs/);
  const { session, traces } = await json("show", "sum:0");
  expect([session.outcome.reward, traces.length]).toEqual([0.5, 2]);
  const narrow = await grpu(["traces", "show", "sum:0", "--store", store], { isTerminal: true, columns: 24 });
  expect(narrow.out).toContain("  user       And\n             3+3?");
});

test.each(["a.jsonl", "a.parquet", "a.otlp.json"])("export to %s and import of it", async (name) => {
  const file = at(name);
  expect(await run("export", "--output", file)).toEqual({ code: 0, out: "", err: `wrote 3 traces to ${file}\n` });
  const other = at(`${name}.db`);
  const imported = await grpu(["traces", "import", file, "--store", other]);
  expect(imported).toEqual({
    code: 0,
    out: "",
    err: "imported 1 session, 3 traces\n1 without token ids or log-probs: they are kept, and cannot be trained on\n",
  });
  const copied = await grpu(["traces", "import", other, "--store", at(`${name}.copy.db`), "--json"]);
  expect(JSON.parse(copied.out)).toEqual({ sessions: 1, traces: 3, untrainable: 1 });
  const shown = await grpu(["traces", "show", "sum:0", "--json", "--store", at(`${name}.copy.db`)]);
  const { session, traces } = await json("show", "sum:0");
  const again = JSON.parse(shown.out);
  expect(again.session.outcome).toEqual(session.outcome);
  expect(again.traces.map((trace: { trace_id: string }) => trace.trace_id)).toEqual(["one", "two"]);
  expect(again.traces[1].prompt_token_ids).toEqual(traces[1].prompt_token_ids);
});

test("export of one session to standard output", async () => {
  const { out } = await run("export", "open");
  expect(
    out
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line).trace_id),
  ).toEqual(["three"]);
});

test("reward, delete and prune", async () => {
  const copy = at("copy.db");
  const on = (...args: string[]) => grpu(["traces", ...args, "--store", copy]);
  await on("import", store);
  writeFileSync(at("rewards.jsonl"), '{"session_id": "open", "reward": 2, "is_correct": true}\n\n');
  expect((await on("reward", at("rewards.jsonl"))).err).toBe("rewarded 1 session\n");
  const { session } = JSON.parse((await on("show", "open", "--json")).out);
  expect(session.outcome).toMatchObject({ reward: 2, is_correct: true });

  writeFileSync(at("wrong.jsonl"), '{"session_id": "open", "reward": 7}\n{"session_id": "none", "reward": 1}\n');
  const refused = await on("reward", at("wrong.jsonl"));
  expect(refused.code).not.toBe(0);
  expect(refused.err).toContain("Cannot set rewards: 1 of 2 sessions are not in the store (the first is none).");
  expect(JSON.parse((await on("show", "open", "--json")).out).session.outcome.reward).toBe(2);

  expect((await on("delete", "open", "none")).err).toContain("Cannot delete the session none");
  expect((await on("delete", "open", "--json")).out).toBe('{"sessions":1,"traces":1}\n');
  expect((await on("prune", "--max-age", "7d", "--max-traces", "0")).err).toBe("deleted 1 session, 2 traces\n");
});

describe("errors", () => {
  const cases: [string[], RegExp][] = [
    [["show", "none"], /Cannot show none: the store has no session and no trace of that id/],
    [["list", "--since", "soon"], /Cannot read --since: it is no time \(soon\)/],
    [["list", "--limit", "-1"], /Cannot read --limit: it takes a whole number from 0 \(-1\)/],
    [["prune"], /Cannot prune: no limit is given/],
    [["prune", "--max-age", "old"], /Cannot read --max-age: it is no span of time \(old\)/],
    [["prune", "--max-size", "big"], /Cannot read --max-size: it is no size \(big\)/],
    [["export", "none"], /Cannot export the session none/],
    [["export", "--output", "a.txt"], /Cannot tell the format of a\.txt/],
    [["export", "--format", "parquet"], /Cannot export as Parquet to standard output: it is binary/],
    [["import", at("missing.jsonl")], /Cannot read the traces: there is no such file/],
  ];
  test.each(cases)("%j", async (args, message) => {
    const { code, out, err } = await run(...args);
    expect(err).toMatch(message);
    expect([code === 0, out]).toEqual([false, ""]);
  });

  test("of a store that does not exist leave none behind", async () => {
    const { err } = await grpu(["traces", "list", "--store", at("no.db")]);
    expect(err).toMatch(/Cannot open the trace store: there is no such file/);
    expect(existsSync(at("no.db"))).toBe(false);
    expect((await grpu(["traces", "list", "--store", "memory"])).err).toMatch(/memory ends with its process/);
  });

  test("of an import change nothing, and of an export leave the earlier file", async () => {
    writeFileSync(at("half.jsonl"), `${JSON.stringify(makeTrace({ trace_id: "new" }))}\n{"trace_id": 1}\n`);
    expect((await run("import", at("half.jsonl"))).err).toMatch(/half\.jsonl:2/);
    expect((await run("show", "new")).code).not.toBe(0);
    writeFileSync(at("kept.jsonl"), "kept");
    await run("export", "none", "--output", at("kept.jsonl"));
    expect(readFileSync(at("kept.jsonl"), "utf8")).toBe("kept");
  });
});
