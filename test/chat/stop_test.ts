import { expect, test } from "vitest";
import { cutAtStop } from "../../src/chat/stop.ts";
import { chatTokenizer } from "../fixtures/chat.ts";

test("a cut at a stop string keeps one entry of each list for each token", () => {
  const tokenizer = chatTokenizer();
  const tokens = tokenizer.encode("one STOP two", { addSpecialTokens: false });
  const logprobs = tokens.map((_, i) => -i);
  const top_logprobs = tokens.map((token, i) => [{ token, logprob: -i }]);
  const sequence = { tokens, logprobs, top_logprobs, finish_reason: "length" as const, weight_version: 1 };
  const { sequence: cut, text } = cutAtStop(sequence, { stop: ["STOP"], tokenizer });
  const { length } = cut.tokens;
  expect(text).toBe("one ");
  expect(length).toBeLessThan(tokens.length);
  expect(cut).toEqual({
    tokens: tokens.slice(0, length),
    logprobs: logprobs.slice(0, length),
    top_logprobs: top_logprobs.slice(0, length),
    finish_reason: "stop",
    weight_version: 1,
  });
});
