/** Prompts become tokens without a long stop for others: in turns, in a thread, and not at all where no context holds them. */
import { describe, expect, test } from "vitest";
import { longestToken, type TextThread, TextWork } from "../../src/chat/text_work.ts";
import { Transcript } from "../../src/chat/transcript.ts";
import { ConfigError } from "../../src/leaves/errors.ts";
import { CHATML, chatTokenizer, THINKING } from "../fixtures/chat.ts";

const tokenizer = chatTokenizer(CHATML);

/** Answers later, as a thread does. */
function slowThread(of = tokenizer): TextThread & { readonly asked: string[] } {
  const asked: string[] = [];
  const later = async <T>(what: string, make: () => T): Promise<T> => {
    asked.push(what);
    await new Promise((resolve) => setTimeout(resolve, 1));
    return make();
  };
  return {
    asked,
    formatChat: ({ messages, options }) => later("format", () => of.formatChat(messages, options)),
    encode: ({ text, options }) => later("encode", () => of.encode(text, options)),
    close: () => {},
  };
}

const long = "the and ".repeat(4000);
const user = (content: string) => ({ role: "user", content });

describe.each([
  ["ChatML", CHATML],
  ["thinking", THINKING],
])("%s", (_, template) => {
  const of = chatTokenizer(template);

  test.each<[name: string, turns: readonly { role: string; content: string }[][]]>([
    ["a short conversation", [[user("hi")]]],
    ["a long message", [[user(long)]]],
    ["many messages", [Array.from({ length: 300 }, (_, i) => ({ role: i % 2 ? "assistant" : "user", content: "a" }))]],
    ["later turns", [[user(long)], [user(long), { role: "assistant", content: "the and" }, user(long)]]],
  ])("%s has the tokens that it has without a thread", async (_, turns) => {
    const texts = new TextWork({ tokenizer: of, thread: slowThread(of) });
    const [here, there] = [new Transcript({ tokenizer: of }), new Transcript({ tokenizer: texts.tokenizer })];
    const responseIds = of.encode("the and<|im_end|>", { addSpecialTokens: false });
    for (const messages of turns) {
      const expected = here.prompt(messages);
      const found = await texts.run(() => there.prompt(messages));
      expect([found.ids, found.origin]).toEqual([expected.ids, expected.origin]);
      const message = { role: "assistant", content: "the and" };
      here.record(expected, { responseIds, message });
      there.record(found, { responseIds, message });
    }
  });
});

test("short texts stay here, long ones go to the thread", async () => {
  const thread = slowThread();
  const texts = new TextWork({ tokenizer, thread });
  await texts.run(() => texts.tokenizer.encode("the and"));
  expect(thread.asked).toEqual([]);
  const ids = await texts.run(() => texts.tokenizer.encode(long));
  expect([thread.asked, ids]).toEqual([["encode"], tokenizer.encode(long)]);
});

test("what the thread refuses is thrown where the caller's code asked", async () => {
  const refused = new ConfigError("Cannot format the conversation: no.");
  const thread = { ...slowThread(), formatChat: () => Promise.reject(refused) };
  const texts = new TextWork({ tokenizer, thread });
  const attempt = () => {
    try {
      return texts.tokenizer.formatChat!([user(long)]);
    } catch (error) {
      return error;
    }
  };
  // A stack of the caller's own catches what is no answer as well, so that it must pass such errors on.
  await expect(texts.run(() => texts.tokenizer.formatChat!([user(long)]))).rejects.toBe(refused);
  expect(attempt()).toBe(tokenizer.formatChat([user(long)]));
});

test("a text that no context holds is refused before it is encoded", async () => {
  const thread = slowThread();
  const most = 16 * longestToken(tokenizer);
  const tooLong = (letters: number, limit: number) => new Error(`${letters} of ${limit}`);
  const texts = new TextWork({ tokenizer, thread, contextLength: 16, tooLong });
  expect(await texts.run(() => texts.tokenizer.encode("a".repeat(most)))).toHaveLength(most);
  await expect(texts.run(() => texts.tokenizer.encode("a".repeat(most + 1)))).rejects.toThrow(`${most + 1} of ${most}`);
  expect(() => texts.check([user("a".repeat(most)), user("a")])).toThrow(`of ${most}`);
  expect(thread.asked).toEqual([]);
});

test("timers fire between many texts", async () => {
  const slow = { ...tokenizer, encode: (text: string) => busy(2) ?? tokenizer.encode(text) };
  const texts = new TextWork({ tokenizer: slow });
  let ticks = 0;
  const timer = setInterval(() => ticks++, 1);
  await Promise.all(Array.from({ length: 50 }, () => texts.run(() => texts.tokenizer.encode("a"))));
  clearInterval(timer);
  expect(ticks).toBeGreaterThan(3);
});

function busy(ms: number): undefined {
  const end = performance.now() + ms;
  while (performance.now() < end);
}
