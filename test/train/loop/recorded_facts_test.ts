/** What recorded sessions have in common, as a run checks it before it trains on them. */
import { beforeEach, describe, expect, test } from "vitest";
import type { TraceRecord, TraceStore } from "../../../src/engine/contract/trace.ts";
import { scanSessions } from "../../../src/train/loop/recorded/scan.ts";
import { openTraceStore } from "../../../src/train/trace/mod.ts";
import { makeTrace } from "../trace/make_trace.ts";

let store: TraceStore;
beforeEach(async () => {
  store = await openTraceStore("memory");
});

/** A session with a reward and these calls. */
async function put(session_id: string, calls: readonly Partial<TraceRecord>[], created_at = 1): Promise<void> {
  const metadata = { task_id: session_id };
  for (const [i, call] of calls.entries())
    await store.putTrace(
      makeTrace({ trace_id: `${session_id}-${i}`, session_id, metadata, timestamp: created_at + i, ...call }),
    );
  await store.putSession({ session_id, metadata, created_at, outcome: { reward: 1, ended_at: created_at + 9 } });
}

async function factsOf() {
  const listed = await store.sessions({ limit: 100 });
  const ordered = listed.toSorted((a, b) => a.created_at - b.created_at);
  const { facts } = await scanSessions(ordered, { store, keys: { group: null, name: null } });
  return facts;
}

describe("facts", () => {
  test("of no session", async () => {
    const facts = await factsOf();
    expect(facts).toMatchObject({ calls: 0, diverged: 0, masked: 0, weightVersions: undefined, skipped: {} });
    expect([facts.largestId.value, facts.longest.value]).toEqual([-1, -1]);
    expect([facts.models.size, facts.samplings, facts.replies]).toEqual([0, [], []]);
  });

  test("name the first session with the largest token and the longest call", async () => {
    await put("small", [{ prompt_token_ids: [0], completion_token_ids: [0], logprobs: [0] }], 1);
    expect((await factsOf()).largestId).toEqual({ value: 0, session_id: "small" });
    await put("large", [{ prompt_token_ids: [9, 1], completion_token_ids: [2], logprobs: [0] }], 2);
    await put("reply", [{ prompt_token_ids: [1], completion_token_ids: [9, 9], logprobs: [0, 0] }], 3);
    await put("short", [{ prompt_token_ids: [3], completion_token_ids: [4], logprobs: [0] }], 4);
    const { largestId, longest } = await factsOf();
    expect(largestId).toEqual({ value: 9, session_id: "large" });
    expect(longest).toEqual({ value: 3, session_id: "large" });
  });

  test("count calls, those whose prompt was rendered from text, and those with a mask", async () => {
    await put("a", [{ prompt_origin: "diverged" }, {}, { prompt_origin: "diverged" }]);
    await put("b", [{ constrained: { masked_tokens: 2 } }, { constrained: { masked_tokens: 0 } }]);
    expect(await factsOf()).toMatchObject({ calls: 5, diverged: 2, masked: 1 });
  });

  test("have the least and the greatest weight version of the calls that have one", async () => {
    await put("none", [{ weight_version: null }]);
    expect((await factsOf()).weightVersions).toBeUndefined();
    await put("some", [{ weight_version: 3 }, { weight_version: 7 }, { weight_version: 5 }, { weight_version: null }]);
    expect((await factsOf()).weightVersions).toEqual({ least: 3, greatest: 7 });
  });

  test("have each model and each way of sampling once", async () => {
    const sampling_params = { temperature: 1, top_p: 1, top_k: -1 };
    await put("a", [
      { model: "x", sampling_params },
      { model: "y", sampling_params: { ...sampling_params, top_k: 5 } },
    ]);
    await put("b", [
      { model: "x", sampling_params },
      { model: "x", sampling_params: { temperature: 1 } },
    ]);
    const { models, samplings } = await factsOf();
    expect([...models].sort()).toEqual(["x", "y"]);
    expect(samplings).toEqual([sampling_params, { ...sampling_params, top_k: 5 }]);
  });

  test("have twenty replies of text at most, without blank ones and calls of tools", async () => {
    const reply = (content: string) => ({ response_message: { role: "assistant", content } }) as Partial<TraceRecord>;
    await put("blank", [reply("  \n"), reply(" yes ")], 1);
    await put(
      "many",
      Array.from({ length: 25 }, (_, i) => reply(`reply ${i}`)),
      2,
    );
    const { replies } = await factsOf();
    expect(replies).toHaveLength(20);
    expect(replies[0]).toEqual({ ids: [4, 5], text: "yes" });
    expect(replies.at(-1)!.text).toBe("reply 18");
  });
});
