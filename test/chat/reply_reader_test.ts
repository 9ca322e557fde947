/** Reading a reply piece by piece gives what reading it whole gives. */
import { describe, expect, test } from "vitest";
import { TextBeforeStop, TokenText } from "../../src/chat/live/token_text.ts";
import { parseReply } from "../../src/chat/reply.ts";
import { endsInReasoning, heldBack, type ReplyPart, ReplyReader } from "../../src/chat/reply_reader.ts";
import { cutAtStop } from "../../src/chat/stop.ts";
import { uniformAt } from "../../src/leaves/random.ts";
import { chatTokenizer } from "../fixtures/chat.ts";

/** Whole numbers below `below`. */
function dice(seed: number) {
  let rolls = 0;
  return (below: number) => Math.floor(uniformAt(seed, rolls++) * below);
}

const SCRAPS = [
  ..."a {};\n",
  "  \n",
  "<",
  "<think>",
  "</think>",
  "<thin",
  "<tool_call>",
  "</tool_call>",
  "<tool",
  '{"name": "add", "arguments": {"a": 1}}',
  '<tool_call>\n{"name": "b"}\n</tool_call>',
  '{"name": "c", "parameters": {}}',
  "; ",
  "<|python_tag|>",
  "é🙂",
];

function textOf(parts: readonly ReplyPart[], type: "reasoning" | "content"): string {
  return parts.map((part) => (part.type === type ? part.text : "")).join("");
}

describe("ReplyReader", () => {
  test("gives the same parts for any pieces, and keeps what it gave", () => {
    const options = [undefined, "hermes", "llama3"] as const;
    let calls = 0;
    for (let seed = 0; seed < 1500; seed++) {
      const roll = dice(seed);
      const text = Array.from({ length: roll(9) }, () => SCRAPS[roll(SCRAPS.length)]).join("");
      const format = options[seed % 3];
      const isReasoning = [undefined, true, false][roll(3)];
      const whole = parseReply(text, { format, isReasoning, id: "x" });
      const reader = new ReplyReader({ format, isReasoning });
      const parts: ReplyPart[] = [];
      for (let at = 0; at < text.length; ) {
        const end = at + 1 + roll(6);
        parts.push(...reader.push(text.slice(at, end)));
        at = end;
      }
      parts.push(...reader.end());
      const names = parts.flatMap((part) => (part.type === "call" ? [part.name] : []));
      calls += names.length;
      expect(textOf(parts, "content"), text).toBe(whole.content);
      expect(textOf(parts, "reasoning"), text).toBe(whole.reasoning_content ?? "");
      expect(names, text).toEqual((whole.tool_calls ?? []).map((call) => call.function.name));
    }
    expect(calls).toBeGreaterThan(50);
  });

  test.each<[text: string, isReasoning: boolean | undefined, early: string]>([
    ["to be sure, ", true, "to be sure,"],
    ["<think>to be", false, "to be"],
    ["so far ", false, "so far "],
    // The prompt may have opened the reasoning, which only `</think>` would show.
    ["so far", undefined, ""],
    ["<thin", false, ""],
  ])("shows %j early where it is certain (reasoning: %s)", (text, isReasoning, early) => {
    const parts = new ReplyReader({ isReasoning }).push(text);
    expect(textOf(parts, isReasoning || text.startsWith("<think>") ? "reasoning" : "content")).toBe(early);
  });

  test("a call is shown when it is complete, with the text before it", () => {
    const reader = new ReplyReader({ format: "hermes", isReasoning: false });
    expect(reader.push("well \n<tool_")).toEqual([{ type: "content", text: "well" }]);
    expect(reader.push('call>{"name": "a", "arguments": {"x": "</tool')).toEqual([]);
    expect(reader.push('"}}</tool_call> then')).toEqual([
      { type: "call", name: "a", arguments: { x: "</tool" } },
      { type: "content", text: " \n then" },
    ]);
    expect(reader.push("<tool_call>{bad</tool_call>")).toEqual([
      { type: "content", text: "<tool_call>{bad</tool_call>" },
    ]);
    expect(reader.end()).toEqual([]);
  });

  test("a reply that is cut inside the prompt's reasoning has no content", () => {
    expect(parseReply("still thinking", { id: "x", isReasoning: true })).toEqual({
      role: "assistant",
      content: "",
      reasoning_content: "still thinking",
    });
    expect(parseReply("a </think> b", { id: "x", isReasoning: false }).content).toBe("a </think> b");
  });

  test("endsInReasoning() and heldBack()", () => {
    expect(["x<think>\n", "<think>\n\n</think>\n\n", "x", "<think> a"].map(endsInReasoning)).toEqual([
      true,
      false,
      false,
      false,
    ]);
    expect(heldBack("abcab", ["abd", "bx"])).toBe(2);
    expect(heldBack("abcb", ["abd", "bx"])).toBe(1);
    // A whole stop string is found, not held.
    expect(heldBack("abd", ["abd"])).toBe(0);
    expect(heldBack("x", [])).toBe(0);
  });
});

test("tokens one by one give the text before the first stop, whatever their borders", () => {
  const tokenizer = chatTokenizer();
  const stops = [[], ["END"], ["\n", "🙂b"], ["ab", "b"]];
  let held = 0;
  for (let seed = 0; seed < 600; seed++) {
    const roll = dice(1000 + seed);
    const letters = [..."abENDé🙂\n the 日本"];
    const text = Array.from({ length: roll(24) }, () => letters[roll(letters.length)]).join("");
    const tokens = tokenizer.encode(text, { addSpecialTokens: false });
    const stop = stops[seed % stops.length]!;
    // As a sampler does that ends at the first stop.
    const sequence = { tokens, logprobs: tokens.map(() => 0), finish_reason: "length" as const, weight_version: 0 };
    const whole = cutAtStop(sequence, { stop, tokenizer });
    const decoded = new TokenText(tokenizer);
    const beforeStop = new TextBeforeStop(stop);
    let shown = "";
    for (const token of whole.sequence.tokens) {
      const piece = beforeStop.push(decoded.push(token));
      held += piece === "" ? 1 : 0;
      shown += piece;
      expect(whole.text.startsWith(shown), JSON.stringify([text, stop, shown])).toBe(true);
    }
    // What may be the start of a stop string waits for the end.
    expect(whole.text.length - shown.length).toBeLessThan(3);
  }
  expect(held).toBeGreaterThan(100);
});
