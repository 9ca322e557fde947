/** What tokens are in OpenAI's log-probs. */
import { expect, test } from "vitest";
import { tokenLogprobs } from "../../src/chat/apis/logprobs.ts";
import { CHATML, chatTokenizer } from "../fixtures/chat.ts";

const tokenizer = chatTokenizer(CHATML);
const bytesOf = (text: string) => [...new TextEncoder().encode(text)];

test("bytes of tokens, joined, are the text, where a character lies in several tokens", () => {
  const text = "the é€ 12";
  const tokens = tokenizer.encode(text);
  const entries = tokenLogprobs({ tokens, logprobs: tokens.map(() => -1) }, tokenizer);
  expect(entries.flatMap(({ bytes }) => bytes)).toEqual(bytesOf(text));
  expect(entries.filter(({ token }) => token === "\uFFFD").map(({ bytes }) => bytes.length)).toEqual([1, 1, 1, 1, 1]);
});

test("bytes of a special token, of the most probable ones, and of a tokenizer that knows none are those of the token", () => {
  const [end, the] = [tokenizer.eosTokenIds[0]!, tokenizer.encode("the")[0]!];
  const sampled = { tokens: [end], logprobs: [-1], top_logprobs: [[{ token: the, logprob: -0.5 }]] };
  const [entry] = tokenLogprobs(sampled, tokenizer);
  expect(entry).toEqual({
    token: "<|im_end|>",
    logprob: -1,
    bytes: bytesOf("<|im_end|>"),
    top_logprobs: [{ token: "the", logprob: -0.5, bytes: bytesOf("the") }],
  });
  const { decode } = tokenizer;
  const without = { decode: (...given: Parameters<typeof decode>) => tokenizer.decode(...given) };
  expect(tokenLogprobs({ tokens: [the], logprobs: [-1] }, without)[0]!.bytes).toEqual(bytesOf("the"));
});
