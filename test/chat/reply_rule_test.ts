/** Calls that a model makes of its own accord keep their tools' schemas from their mark on; all other text is free. */
import { Ajv2020 } from "ajv/dist/2020.js";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { demandsOf } from "../../src/chat/constraint.ts";
import { accepts } from "../../src/chat/grammar/collections.ts";
import { parseReply } from "../../src/chat/reply.ts";
import type { ToolFormat } from "../../src/chat/reply_reader.ts";
import { type Demand, freeReplyRules } from "../../src/chat/reply_rule.ts";
import type { ChatRequest } from "../../src/chat/request.ts";
import type { ConstraintState } from "../../src/engine/contract/backend.ts";
import { CHATML, chatTokenizer, HEADERS, THINKING } from "../fixtures/chat.ts";
import { dice } from "../fixtures/random_schemas.ts";

const POINT = z.toJSONSchema(z.strictObject({ x: z.int().min(0).max(99), kind: z.enum(["in", "out"]) }));
const ODD = { type: "object", if: {}, properties: { a: { type: "string" } } };
const tool = (name: string, parameters?: object, strict?: boolean) => ({
  type: "function",
  function: { name, parameters, ...(strict !== undefined && { strict }) },
});
const TOOLS = [tool("move", POINT), tool("stop"), tool("odd", ODD)];
const SHORT = [tool("move", POINT), tool("stop", { type: "object", maxProperties: 0 })];

describe("freeReplyRules()", () => {
  const hermes = (body: string) => `<tool_call>\n${body}\n</tool_call>`;
  const MOVE = '{"name": "move", "arguments": {"x": 5, "kind": "in"}}';

  test.each<[format: ToolFormat, reasoning: "open" | "none" | "possible", accepted: string[], refused: string[]]>([
    [
      "hermes",
      "none",
      [
        "",
        "hello <b>, a < b, <tool_ <tool_cal",
        hermes(MOVE),
        `<tool_call>${MOVE}</tool_call>`,
        hermes('{"name":"stop","arguments":{}}'),
        hermes('{"name": "odd", "arguments": {"b": [1]}}'),
        `I look. ${hermes(MOVE)}\n${hermes(MOVE)} done <tool`,
        `<think>a <tool_call> I will make</think>\n\nnow ${hermes(MOVE)}`,
        '{"name": "move"}',
      ],
      [
        "<tool_call>",
        hermes("soon"),
        hermes('{"name": "run", "arguments": {}}'),
        hermes('{"name": "move", "arguments": {"x": 100, "kind": "in"}}'),
        hermes('{"name": "move", "arguments": {}}'),
        `a <tool_call> I will make</think>\n${hermes(MOVE)}`,
        `<think>so</think>${hermes("soon")}`,
      ],
    ],
    [
      "hermes",
      "open",
      ["I may <tool_call> you", `so <tool_call> it is</think>\n${hermes(MOVE)}`],
      [`so</think>${hermes("soon")}`],
    ],
    [
      "llama3",
      "none",
      [
        "",
        "hello { and }",
        '{"answer": 5}',
        '{"name": "Ada"}',
        '{"name": "run", "parameters": 5}',
        '\n{"name": "move", "parameters": {"x": 5, "kind": "in"}}',
        '{"name":"move","parameters":{"x":5,"kind":"in"}}',
        '{"name": "stop", "parameters": {}}; {"name": "move", "parameters": {"x": 5, "kind": "in"}}',
        'text {"name": "move", "parameters": {}}',
      ],
      [
        '{"name": "move", "parameters": {}}',
        '{"name": "move", "parameters": {"x": 5, "kind": "in"}} and',
        '{"name":"move","parameters":{"x":5',
        '{"name": "stop", "parameters": {}}; text',
      ],
    ],
  ])("%s, reasoning %s", (format, reasoning, accepted, refused) => {
    const rule = freeReplyRules({ tools: TOOLS }, format)(reasoning);
    expect(accepted.filter((text) => !accepts(rule, text))).toEqual([]);
    expect(refused.filter((text) => accepts(rule, text))).toEqual([]);
  });

  test("a strict tool whose schema cannot be kept is refused; one that says no is free", () => {
    const rule = (strict: boolean) => freeReplyRules({ tools: [tool("odd", ODD, strict)] }, "hermes")("none");
    expect(() => rule(true)).toThrow(expect.objectContaining({ path: "tools.odd.parameters.if" }));
    expect(accepts(rule(false), hermes('{"name": "odd", "arguments": {"a": 1}}'))).toBe(true);
    const loose = freeReplyRules({ tools: [tool("move", POINT, false)] }, "hermes")("none");
    expect(accepts(loose, hermes('{"name": "move", "arguments": {"x": 100}}'))).toBe(true);
  });
});

test("the tools of a request share one budget of states", () => {
  const long = { type: "object", properties: { a: { type: "string", pattern: "a", maxLength: 80 } } };
  const tools = (strict: boolean) => Array.from({ length: 12 }, (_, i) => tool(`t${i}`, long, strict || undefined));
  const rule = (strict: boolean) => freeReplyRules({ tools: tools(strict) }, "hermes")("none");
  expect(() => rule(true)).toThrow(/more than 10000 states/);
  const call = (name: string) => `<tool_call>{"name": "${name}", "arguments": {"a": "x"}}</tool_call>`;
  expect(["t0", "t11"].map((name) => accepts(rule(false), call(name)))).toEqual([false, true]);
});

/** What an engine asks of a sampler for the request. */
function allowedFor(template: string, demand: Demand, constrainsFreeCalls = true) {
  const tokenizer = chatTokenizer(template);
  const sampling = { params: {}, stop: [], n: 1, logprobs: false, stream: false, includeUsage: false };
  const request: Partial<ChatRequest> = { ...sampling, returnTokenIds: false, ...demand };
  const demands = demandsOf(request as ChatRequest, { tokenizer, isConstrainable: true, constrainsFreeCalls });
  return { tokenizer, allowed: demands.drawOf("go").allowed };
}

test.each([
  ["a request without tools", {}, true],
  ["a model in training", { tools: TOOLS }, false],
  ["tool_choice none, which leaves no tools", { toolChoice: "none" as const }, true],
])("%s is not constrained", (_, demand, constrains) => {
  expect(allowedFor(CHATML, demand, constrains).allowed).toBeUndefined();
});

test("32 sets of tools keep their constraints, whatever reasoning their prompts leave", () => {
  const tokenizer = chatTokenizer(THINKING);
  const sampling = { params: {}, stop: [], n: 1, logprobs: false, stream: false, includeUsage: false };
  const ofSet = (i: number) =>
    demandsOf({ ...sampling, returnTokenIds: false, tools: [tool(`t${i}`, POINT)] } as never, {
      tokenizer,
      isConstrainable: true,
      constrainsFreeCalls: true,
    });
  const both = (i: number) => ["go", "go<think>\n"].map((prompt) => ofSet(i).drawOf(prompt).allowed);
  const sets = Array.from({ length: 32 }, (_, i) => i);
  const first = sets.map(both);
  for (const [none, open] of first) expect(none).not.toBe(open);
  for (const i of sets) for (const [j, allowed] of both(i).entries()) expect(allowed).toBe(first[i]![j]);
});

describe("a schema that leads to too many states while a reply is drawn", () => {
  const values = Array.from({ length: 25_000 }, (_, i) => i);
  const big = (strict?: boolean) =>
    tool("big", { type: "object", properties: { a: { enum: values } }, required: ["a"] }, strict);
  const move = (strict?: boolean) => tool("move", POINT, strict);
  const BIG = '<tool_call>{"name": "big", "arguments": {"a": ';

  function begun(tools: readonly object[]) {
    const { tokenizer, allowed } = allowedFor(CHATML, { tools });
    const state = allowed!.start();
    const words = new Uint32Array(Math.ceil(tokenizer.vocabSize / 32));
    const draw = (text: string) => {
      for (const token of tokenizer.encode(text, { addSpecialTokens: false })) {
        state.fill(words);
        expect((words[token >> 5]! >>> (token & 31)) & 1, text).toBe(1);
        state.advance(token);
      }
    };
    const count = () => words.reduce((sum, word) => sum + word.toString(2).replaceAll("0", "").length, 0);
    return { state, draw, words, count, tokenizer };
  }

  test("frees the reply where no tool is strict, and says so", () => {
    const { state, draw, words, count, tokenizer } = begun([big(), move()]);
    draw('<tool_call>{"name": "big", "arguments": {');
    expect([state.isFree, state.isRelaxed]).toEqual([false, false]);
    draw('"a": what I like');
    expect([state.isFree, state.isRelaxed]).toEqual([true, true]);
    state.fill(words);
    expect(count()).toBe(tokenizer.vocabSize);
  });

  test("keeps strict tools, and lets the others take any object", () => {
    const { state, draw } = begun([big(), move(true)]);
    draw(`${BIG}"any"}}</tool_call>`);
    expect([state.isFree, state.isRelaxed]).toEqual([true, true]);
    draw('<tool_call>{"name": "move", "arguments": {"x": 9');
    expect(() => draw("99")).toThrow();
  });

  test("fails in a strict tool", () => {
    const { draw } = begun([big(true), move()]);
    expect(() => draw(`${BIG}5`)).toThrow(/can be read in too many ways/);
  });
});

describe.each([
  ["hermes", CHATML, "I go there <tool_call>"],
  ["hermes, thinking", THINKING, "<think>a <tool_call></think>I go\n<tool_call>"],
  ["llama3", HEADERS, '{"name": "move", "parameters":'],
])("a call in %s", (format, template, start) => {
  const { tokenizer, allowed } = allowedFor(template, { tools: SHORT });
  const ids = Array.from({ length: tokenizer.vocabSize }, (_, id) => id);
  const mask = new Uint32Array(Math.ceil(tokenizer.vocabSize / 32));
  const isAllowed = (id: number) => ((mask[id >> 5]! >>> (id & 31)) & 1) === 1;

  function begin(state: ConstraintState): number[] {
    const free: boolean[] = [];
    const tokens = tokenizer.encode(start, { addSpecialTokens: false });
    for (const token of tokens) {
      free.push(state.isFree === true);
      state.advance(token);
    }
    // Every token before the mark ends may be drawn without a mask.
    expect(free.slice(0, -1)).not.toContain(false);
    expect(state.isFree).toBe(false);
    return [...tokens];
  }

  test("is valid by its tool's schema, whatever is drawn", () => {
    const isValid = new Ajv2020({ strict: false }).compile(POINT);
    for (let seed = 0; seed < 15; seed++) {
      const state = allowed!.start();
      const tokens = begin(state);
      const roll = dice(seed);
      for (let i = 0; i < 300; i++) {
        state.fill(mask);
        const choices = ids.filter(isAllowed);
        if (choices.some((id) => tokenizer.eosTokenIds.includes(id))) break;
        const token = choices[roll(choices.length)]!;
        tokens.push(token);
        state.advance(token);
      }
      const parse = {
        format: format.startsWith("llama") ? ("llama3" as const) : ("hermes" as const),
        id: "c",
        isReasoning: false,
      };
      const { tool_calls } = parseReply(tokenizer.decode(tokens), parse);
      const [{ function: called }] = tool_calls as [{ function: { name: string; arguments: string } }];
      const given = JSON.parse(called.arguments);
      expect(["move", "stop"]).toContain(called.name);
      if (called.name === "move") expect(isValid(given), called.arguments).toBe(true);
    }
  });

  test("tokens that are no text may come before it, and not within it", () => {
    const [silent] = tokenizer.encode("<|im_start|>", { addSpecialTokens: false });
    const state = allowed!.start();
    state.advance(silent!);
    expect(state.isFree).toBe(true);
    begin(state);
    expect(() => state.advance(silent!)).toThrow(/forbids/);
  });
});
