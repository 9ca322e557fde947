/** An agent's requests over OpenAI's API: what reaches the model, and what a refusal leaves behind. */
import { describe, expect, test } from "vitest";
import { ApiError, type SamplingRequest } from "../../../src/chat/request.ts";
import type { SamplingParams } from "../../../src/engine/contract/backend.ts";
import { type ApiContext, apiOf, type CallableAgent } from "../../../src/train/loop/rollout/agent_api.ts";
import { Termination } from "../../../src/train/task/rollout.ts";

const OWN: SamplingParams = { temperature: 0.7, top_p: 0.9, top_k: 40, max_tokens: 64, stop_token_ids: [2] };

function opened(run: CallableAgent["completeText"] = async () => ({}) as never, chatTemplate = "") {
  const asked: unknown[] = [];
  const warned: string[] = [];
  const note = (what: unknown, options: never) => {
    asked.push([what, options]);
    return run(what as string, options);
  };
  const agent = { chatOnce: note, completeText: note } as unknown as CallableAgent;
  const attempt: ApiContext = {
    backend: { model: { name: "m" } } as ApiContext["backend"],
    tokenizer: { chatTemplate } as ApiContext["tokenizer"],
    params: OWN,
    warn: (message) => void warned.push(message),
    refused: undefined,
  };
  return { ...apiOf(agent, attempt), attempt, asked, warned };
}

const request = (params: SamplingRequest["params"] = {}, more: object = {}) =>
  ({ params, stop: ["END"], n: 1, prompt: "p", messages: [{ role: "user", content: "u" }], ...more }) as never;

describe("the run's sampling parameters win", () => {
  test.each<[asked: SamplingRequest["params"], params: object, warned: string[]]>([
    [{}, {}, []],
    [{ temperature: 0.7, top_p: 0.9, top_k: 40 }, {}, []],
    [{ max_tokens: 10 }, { max_tokens: 10 }, []],
    [{ max_tokens: 64 }, { max_tokens: 64 }, []],
    [{ stop_token_ids: [7] }, { stop_token_ids: [2, 7] }, []],
    [{ max_tokens: 1000 }, { max_tokens: 64 }, []],
    [{ temperature: 0 }, {}, ["temperature=0; the run samples with temperature=0.7"]],
    [
      { top_p: 1, top_k: -1, max_tokens: 1 },
      { max_tokens: 1 },
      ["top_p=1; the run samples with top_p=0.9", "top_k=-1; the run samples with top_k=40"],
    ],
  ])("over %j", async (params, expected, warnings) => {
    const { engine, asked, warned } = opened();
    await engine.complete(request(params));
    const demands = expect.objectContaining({ isSingleCall: false });
    expect(asked).toEqual([["p", { params: expected, stop: ["END"], sampling: { signal: undefined }, demands }]]);
    expect(warned).toEqual(warnings.map((text) => `An agent requests ${text} (rllm.rollout).`));
  });
});

test("a request for several choices is as many calls, each with its number", async () => {
  const { engine, asked } = opened();
  const heard: unknown[] = [];
  const call = {
    onStart: (...it: unknown[]) => void heard.push(it),
    onTokens: (...it: unknown[]) => void heard.push(it),
  };
  expect(await engine.chat(request({}, { n: 3 }), call as never)).toHaveLength(3);
  for (const [, { sampling }] of asked as [unknown, { sampling: { onStart: (it: unknown) => void } }][])
    sampling.onStart("s");
  expect(heard).toEqual([
    [0, "s"],
    [1, "s"],
    [2, "s"],
  ]);
  expect(asked[0]).toMatchObject([[{ role: "user", content: "u" }], { stop: ["END"], params: {} }]);
});

test("tools need a template whose calls can be read", async () => {
  const tools = [{ type: "function", function: { name: "add" } }];
  await expect(opened().engine.chat(request({}, { tools }))).rejects.toThrow(/^Cannot use tools/);
  const { engine, asked } = opened(undefined, "<tool_call>");
  await engine.chat(request({}, { tools, variables: { a: 1 } }));
  expect(asked[0]).toMatchObject([{}, { tools, variables: { a: 1 } }]);
});

describe("a call that ends the episode", () => {
  const tooLong = async () => {
    throw new Termination("max_prompt_length_exceeded");
  };

  test.each(["chat", "complete"] as const)("is an API error to %s, and its reason is kept", async (kind) => {
    const { engine, attempt } = opened(tooLong as never);
    const refused = expect(engine[kind](request())).rejects;
    await refused.toBeInstanceOf(ApiError);
    expect(attempt.refused).toBe("max_prompt_length_exceeded");
    await expect(engine[kind](request())).rejects.toMatchObject({ code: "context_length_exceeded", param: "messages" });
  });

  test("over fetch it is a 400", async () => {
    const { fetch, attempt } = opened(tooLong as never);
    const body = JSON.stringify({ model: "m", messages: [{ role: "user", content: "u" }] });
    const response = await fetch("http://grpu.local/v1/chat/completions", { method: "POST", body });
    expect(response.status).toBe(400);
    expect(attempt.refused).toBe("max_prompt_length_exceeded");
  });

  test("another error stays what it is", async () => {
    const broken = new Error("broken");
    const { engine, attempt } = opened(() => Promise.reject(broken));
    await expect(engine.complete(request())).rejects.toBe(broken);
    expect(attempt.refused).toBeUndefined();
  });
});
