/** The thread that renders and encodes long prompts: the same texts and tokens, and limits that end one text alone. */
import { afterEach, expect, test } from "vitest";
import type { TextThread } from "../../../../src/chat/text_work.ts";
import { byteTokenizer, withChatTemplate } from "../../../../src/engine/model/files/tokenizer.ts";
import { ConfigError } from "../../../../src/leaves/errors.ts";
import { openTextThread, type TextThreadOptions } from "../../../../src/train/run/serve/text_thread.ts";
import { CHATML, chatTokenizer } from "../../../fixtures/chat.ts";

/** Of the build: Node 20 runs no TypeScript in a thread. */
const script = new URL("../../../../dist/train/run/serve/text_worker.js", import.meta.url);
const tokenizer = chatTokenizer(CHATML);
const messages = [{ role: "user", content: "the and".repeat(2000) }];

let thread: TextThread | undefined;
afterEach(() => thread?.close());
const open = (of = tokenizer, options: TextThreadOptions = {}) => {
  thread = openTextThread(of, { script, ...options });
  return thread;
};

test("renders and encodes as the tokenizer does", async () => {
  const own = open();
  const text = tokenizer.formatChat(messages);
  expect(await own.formatChat({ messages, options: {} })).toBe(text);
  for (const addSpecialTokens of [true, false])
    expect(await own.encode({ text, options: { addSpecialTokens } })).toEqual(
      tokenizer.encode(text, { addSpecialTokens }),
    );
});

test("an error of the template is one of the caller's", async () => {
  const strict = withChatTemplate(tokenizer, "{{ raise_exception('no such turn') }}");
  const failed = open(strict).formatChat({ messages, options: {} });
  await expect(failed).rejects.toThrow(/no such turn/);
  await expect(failed).rejects.toBeInstanceOf(ConfigError);
  const none = open(byteTokenizer()).formatChat({ messages, options: {} });
  await expect(none).rejects.toMatchObject({ name: "UnsupportedError", capability: "chat" });
});

test("a text that takes too long fails alone: the next one has another thread", async () => {
  const own = open(tokenizer, { mostMs: 300 });
  const long = own.encode({ text: "a".repeat(5_000_000), options: {} });
  const next = own.encode({ text: "the", options: {} });
  await expect(long).rejects.toThrow("Cannot read the prompt: it takes more than 0.3 s to render or to encode.");
  expect(await next).toEqual(tokenizer.encode("the"));
});

test("so does one that takes too much memory", async () => {
  const own = open(tokenizer, { mostMib: 64 });
  const large = own.encode({ text: "a".repeat(4_000_000), options: {} });
  await expect(large).rejects.toThrow("it takes more than 64 MiB");
  expect(await own.encode({ text: "the", options: {} })).toEqual(tokenizer.encode("the"));
});

test("a caller that left is not worked for, and what waits ends with the thread", async () => {
  const own = open();
  const left = new AbortController();
  const running = own.encode({ text: "a".repeat(300_000), options: {} });
  const waiting = own.encode({ text: "the", options: {} }, left.signal);
  const last = own.encode({ text: "and", options: {} });
  left.abort("gone");
  await expect(waiting).rejects.toBe("gone");
  expect(await running).toHaveLength(300_000);
  expect(await last).toEqual(tokenizer.encode("and"));
  const ended = own.encode({ text: "a".repeat(300_000), options: {} });
  own.close();
  await expect(ended).rejects.toThrow("the server is closing");
});
