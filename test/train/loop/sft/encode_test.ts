/** Which tokens of a conversation, a response and a text are trained on, and what they count. */
import { describe, expect, test } from "vitest";
import type { ChatMessage, Tokenizer } from "../../../../src/engine/contract/text.ts";
import type { SupervisedExample } from "../../../../src/train/data/supervised.ts";
import { supervisedBatch, totalWeight } from "../../../../src/train/loop/sft/batch.ts";
import { type EncodedRow, encodeRows, type FitOptions } from "../../../../src/train/loop/sft/encode.ts";
import { CHATML, chatTokenizer, HEADERS, THINKING } from "../../../fixtures/chat.ts";

const GENERATION =
  "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}" +
  "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}";

const TOOLS = [{ type: "function", function: { name: "on", parameters: { type: "object" } } }];
const CALL = { role: "assistant", content: "", tool_calls: [{ function: { name: "on", arguments: { a: 12 } } }] };
const TURNS: ChatMessage[] = [
  { role: "user", content: "and?" },
  CALL,
  { role: "tool", content: "12" },
  { role: "assistant", content: "on 12" },
];

function encode(examples: readonly SupervisedExample[], template: string, more: Partial<FitOptions> = {}) {
  const tokenizer = chatTokenizer(template);
  const placed = examples.map((example, i) => ({ example, file: "rows.jsonl", line: i + 1 }));
  const eos = tokenizer.eosTokenIds[0];
  const encoded = encodeRows(placed, { tokenizer, eos, maxLength: 512, truncation: "error", ...more });
  return { ...encoded, tokenizer };
}

/** The text of every run of trained tokens, with what its tokens count. */
function trained(tokenizer: Tokenizer, { ids, mask, weights = mask }: EncodedRow): [string, number][] {
  const runs: { ids: number[]; weight: number }[] = [];
  ids.forEach((id, t) => {
    expect(mask[t]).toBe(Number(weights[t]! > 0));
    if (weights[t] === 0) return;
    if (weights[t - 1] !== weights[t]) runs.push({ ids: [], weight: weights[t]! });
    runs.at(-1)!.ids.push(id);
  });
  return runs.map((run) => [tokenizer.decode(run.ids, { skipSpecialTokens: false }), run.weight]);
}

describe("a conversation with tools", () => {
  test.each<[name: string, template: string, call: string]>([
    ["ChatML", CHATML, '<tool_call>\n{"name": "on", "arguments": {"a": 12}}\n</tool_call><|im_end|>'],
    ["headers", HEADERS, '{"name": "on", "parameters": {"a": 12}}<|im_end|>'],
  ])("trains on calls and replies alone, and reads the tools: %s", (_, template, call) => {
    const { rows, tokenizer } = encode([{ messages: TURNS, tools: TOOLS }], template);
    expect(trained(tokenizer, rows[0]!)).toEqual([
      [call, 1],
      ["on 12<|im_end|>", 1],
    ]);
    const text = tokenizer.formatChat!(TURNS, { tools: TOOLS, addGenerationPrompt: false });
    expect(tokenizer.decode([...rows[0]!.ids], { skipSpecialTokens: false })).toBe(text);
    expect(text).toContain('"function"');
  });

  test("trains on the last turn alone where asked", () => {
    const { rows, tokenizer } = encode([{ messages: TURNS }], CHATML, { trainOn: "last_assistant_message" });
    expect(trained(tokenizer, rows[0]!)).toEqual([["on 12<|im_end|>", 1]]);
  });
});

describe("weights of messages", () => {
  const turns = (flags: object, last: object = {}): ChatMessage[] => [
    { role: "user", content: "the" },
    { role: "assistant", content: "and", ...flags },
    { role: "user", content: "in" },
    { role: "assistant", content: "on", ...last },
  ];

  test.each<[flags: object, last: object, expected: [string, number][]]>([
    [{ weight: 0 }, {}, [["on<|im_end|>", 1]]],
    [{ train: false }, {}, [["on<|im_end|>", 1]]],
    [{ trainable: false, weight: null }, {}, [["on<|im_end|>", 1]]],
    [
      { weight: 0.5 },
      {},
      [
        ["and<|im_end|>", 0.5],
        ["on<|im_end|>", 1],
      ],
    ],
    [{ train: true }, { weight: 0 }, [["and<|im_end|>", 1]]],
  ])("%j then %j", (flags, last, expected) => {
    for (const template of [CHATML, GENERATION]) {
      const { rows, tokenizer } = encode([{ messages: turns(flags, last) }], template);
      expect(trained(tokenizer, rows[0]!)).toEqual(expected);
    }
  });

  test("hold for turns before the last one, too, where the last one alone is trained on by default", () => {
    const options = { trainOn: "last_assistant_message" } as const;
    const { rows, tokenizer } = encode([{ messages: turns({ weight: 0.5 }) }], CHATML, options);
    expect(trained(tokenizer, rows[0]!)).toEqual([
      ["and<|im_end|>", 0.5],
      ["on<|im_end|>", 1],
    ]);
  });

  test("a turn that counts nothing may be written differently later, as with dropped reasoning", () => {
    const messages = turns({ reasoning_content: "a" }, { reasoning_content: "12" });
    expect(() => encode([{ messages }], THINKING)).toThrow(/writes message 1 differently.*\(rows\.jsonl:1\)/);
    const { rows, tokenizer } = encode([{ messages }], THINKING, { trainOn: "last_assistant_message" });
    expect(trained(tokenizer, rows[0]!)).toEqual([["<think>\n12\n</think>\n\non<|im_end|>", 1]]);
  });

  test.each([
    [turns({ weight: -1 }), /weight of message 1 must be 0, or a number from 1e-6 to 1e6 \(-1\)/],
    // f32 holds neither: the first becomes 0, the second infinity.
    [turns({ weight: 1e-50 }), /weight of message 1 must be 0, or a number from 1e-6 to 1e6 \(1e-50\)/],
    [turns({}, { weight: 1e39 }), /weight of message 3 must be 0, or a number from 1e-6 to 1e6 \(1e\+39\)/],
    [turns({ train: "yes" }), /train of message 1 must be true or false \("yes"\)/],
    [turns({ weight: 1, train: false }), /weight, train, trainable of message 1 contradict each other/],
    [turns({ weight: 0 }, { weight: 0 }), /no turn of the assistant is trained on, because each has weight 0/],
    [
      [{ role: "user", content: "the", train: true }, ...turns({}).slice(1)],
      /message 0 is to be trained on, and its role is user/,
    ],
    [[{ role: "user", content: "the" }], /the assistant writes nothing in it/],
  ])("are refused where they cannot be: %#", (messages, message) => {
    expect(() => encode([{ messages }], CHATML)).toThrow(message);
    expect(() => encode([{ messages }], CHATML)).toThrow(/\(rows\.jsonl:1\)/);
  });
});

describe("other rows", () => {
  test("a prompt with its response trains on the response and the end; a text on everything", () => {
    const { rows, tokenizer } = encode([{ prompt: "the", response: "12 on" }, { text: "the 12" }], CHATML);
    expect(trained(tokenizer, rows[0]!)).toEqual([["12 on<|im_end|>", 1]]);
    expect(trained(tokenizer, rows[1]!)).toEqual([["the 12<|im_end|>", 1]]);
  });

  test("a prompt of messages is rendered with its tools and the variables of the template", () => {
    const template = `{{ mood }}{{ tools is defined and tools is not none }}${CHATML}`;
    const prompt = [{ role: "user", content: "the" }];
    const textOf = (more: object) => {
      const { rows, tokenizer } = encode([{ prompt, response: "on", ...more }], template);
      expect(trained(tokenizer, rows[0]!)).toEqual([["on<|im_end|>", 1]]);
      return tokenizer.decode([...rows[0]!.ids], { skipSpecialTokens: false });
    };
    const rendered = textOf({ tools: TOOLS, variables: { mood: "and" } });
    const { tokenizer } = encode([], template);
    const options = { tools: TOOLS, variables: { mood: "and" }, addGenerationPrompt: true };
    expect(rendered).toBe(`${tokenizer.formatChat!(prompt, options)}on<|im_end|>`);
    expect(rendered).not.toBe(textOf({}));
  });

  test("a text that ends with the end token has it once", () => {
    const { rows, tokenizer } = encode([{ text: "the 12<|im_end|>" }, { text: "the 12" }], CHATML);
    expect(rows[0]!.ids).toEqual(rows[1]!.ids);
    expect(rows[0]!.ids.filter((id) => id === tokenizer.eosTokenIds[0])).toHaveLength(1);
  });

  test("a batch counts no first token, in the mask and in the weights, and knows how much its tokens weigh", () => {
    const { rows } = encode([{ text: "the 12" }, { prompt: "the", response: "on" }, { text: "12" }], CHATML);
    const { offsets, tokens, mask, weights } = supervisedBatch([{ ids: [], mask: [] }, ...rows]);
    expect([...tokens]).toEqual(rows.flatMap(({ ids }) => ids));
    const expected = rows.flatMap((row) => row.mask.map((bit, t) => (t === 0 ? 0 : bit)));
    expect([...mask]).toEqual(expected);
    expect([...weights]).toEqual(expected);
    expect([...offsets].at(-1)).toBe(expected.length);
    expect(totalWeight({ weights } as never)).toBe(expected.reduce((sum, bit) => sum + bit, 0));
  });

  const long = [{ prompt: "aaaa", response: "12bb" }, { text: "bb" }];
  // Tokens: a a a a 12 b b end, and b b end.
  test.each<[FitOptions["truncation"], number, lengths: number[], counts: object]>([
    ["right", 6, [6, 3], { truncated: 1, skipped: 0, emptied: 0 }],
    ["right", 4, [3], { truncated: 0, skipped: 0, emptied: 1 }],
    ["left", 4, [4, 3], { truncated: 1, skipped: 0, emptied: 0 }],
    ["skip", 7, [3], { truncated: 0, skipped: 1, emptied: 0 }],
    ["skip", 8, [8, 3], { truncated: 0, skipped: 0, emptied: 0 }],
  ])("longer than the limit: %s at %i tokens", (truncation, maxLength, lengths, counts) => {
    const { rows, tokenizer: _, ...rest } = encode(long, CHATML, { truncation, maxLength });
    expect(rows.map(({ ids }) => ids.length)).toEqual(lengths);
    expect(rest).toEqual({ ...counts, unanswered: 0 });
  });

  test.each(["left", "right"] as const)("cut from the %s, keep the weights of the tokens that stay", (truncation) => {
    const messages = [0.25, 0.5, 2].flatMap((weight) => [
      { role: "user", content: "the" },
      { role: "assistant", content: "on", weight },
    ]);
    const { rows } = encode([{ messages }], CHATML);
    const { ids, mask, weights } = rows[0]!;
    expect(new Set(weights)).toEqual(new Set([0, 0.25, 0.5, 2]));
    for (const maxLength of [ids.length - 1, ids.length - 4, Math.floor(ids.length / 2)]) {
      const cut = encode([{ messages }], CHATML, { truncation, maxLength }).rows[0]!;
      const range = truncation === "left" ? [-maxLength] : [0, maxLength];
      expect(cut).toMatchObject({
        ids: ids.slice(...range),
        mask: mask.slice(...range),
        weights: weights!.slice(...range),
      });
    }
  });

  test("with an empty reply are counted: they train on its end alone", () => {
    const user = { role: "user", content: "the" };
    const empty = { role: "assistant", content: "" };
    const { rows, unanswered, tokenizer } = encode(
      [
        { prompt: "the", response: "" },
        { messages: [user, empty] },
        { messages: [user, { ...empty, weight: 0 }, user, { role: "assistant", content: "on" }] },
        { messages: TURNS },
      ],
      CHATML,
    );
    expect(unanswered).toBe(2);
    for (const row of rows.slice(0, 2)) expect(trained(tokenizer, row)).toEqual([["<|im_end|>", 1]]);
  });

  test("longer than the limit, are left out or refused before their turns are looked for", () => {
    const turns = Array.from({ length: 12 }, (_, i) => ({ role: i % 2 ? "assistant" : "user", content: "on" }));
    const tokenizer = chatTokenizer(CHATML);
    let renders = 0;
    const counting: Tokenizer = {
      ...tokenizer,
      renderChat: (...given) => {
        renders++;
        return tokenizer.renderChat!(...given);
      },
    };
    const placed = [{ example: { messages: turns }, file: "rows.jsonl", line: 1 }];
    const options = { tokenizer: counting, eos: undefined, maxLength: 20 };
    expect(encodeRows(placed, { ...options, truncation: "skip" })).toMatchObject({ rows: [], skipped: 1 });
    expect(renders).toBe(1);
    expect(() => encodeRows(placed, { ...options, truncation: "error" })).toThrow(/a row may have 20/);
    expect(renders).toBe(2);
    // What is cut still trains.
    expect(encodeRows(placed, { ...options, truncation: "right" }).rows[0]!.mask).toContain(1);
  });

  test("longer than the limit, are refused by refused by default, with their place", () => {
    expect(() => encode(long, CHATML, { maxLength: 7 })).toThrow(
      /it has 8 tokens, and a row may have 7 \(data\.max_length.*\(rows\.jsonl:1\)/,
    );
  });

  test("without a token to train on are refused", () => {
    const bare = { ...chatTokenizer(CHATML), encode: () => [5] };
    const options = { tokenizer: bare, eos: undefined, maxLength: 9, truncation: "error" } as const;
    const placed = [{ example: { text: "a" }, file: "rows.jsonl", line: 4 }];
    expect(() => encodeRows(placed, options)).toThrow(/it has no token to train on\..*\(rows\.jsonl:4\)/);
  });
});
