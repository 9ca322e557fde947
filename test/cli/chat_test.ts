/** `grpu chat`: what is typed, the commands, and what goes where. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { Talk } from "../../src/chat/talk.ts";
import { chatLoop } from "../../src/cli/chat/chat_loop.ts";
import { readHistory, writeHistory } from "../../src/cli/chat/history.ts";
import type { Typed, Typing } from "../../src/cli/command.ts";
import { servedEngine } from "../../src/serve/openai/engine.ts";
import { Serving } from "../../src/serve/openai/serving.ts";
import { captured, grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { writeChatModel } from "../fixtures/served_models.ts";
import { TextEngine, type TextEngineOptions } from "../fixtures/text_engine.ts";

const root = temporaryFolder("chat");

/** Types these one after another, then ends. `onReply` is called while a reply runs, with what Ctrl-C does. */
function scripted(
  inputs: readonly (string | Typed)[],
  { isTerminal = true, onReply = () => {} }: { isTerminal?: boolean; onReply?: (interrupt: () => void) => void } = {},
): Typing {
  const rest = [...inputs];
  return {
    isTerminal,
    history: [],
    async next() {
      const next = rest.shift();
      if (next === undefined) return { kind: "end" };
      return typeof next === "string" ? { kind: "text", text: next } : next;
    },
    during(work, interrupt) {
      onReply(interrupt);
      return work();
    },
    close() {},
  };
}

async function chat(
  inputs: readonly (string | Typed)[],
  { engine: engineOptions, ...typingOptions }: { engine?: TextEngineOptions } & Parameters<typeof scripted>[1] = {},
) {
  const engine = new TextEngine(engineOptions);
  const serving = new Serving({
    engine,
    tokenizer: engine.tokenizer,
    models: { letters: { weightVersion: 4 } },
    defaults: { max_tokens: 64, temperature: 1, top_p: 1, top_k: 0 },
  });
  onTestFinished(async () => {
    await serving.stop({ graceMs: 0 });
    serving.close();
  });
  const talk = new Talk(servedEngine(serving, { model: serving.model()!, owner: "chat" }), { settings: { seed: 5 } });
  const { io, written } = captured({ isTerminal: true, color: true, columns: 80 });
  const hasFailed = await chatLoop({ talk, typing: scripted(inputs, typingOptions), io });
  return { talk, hasFailed, ...written };
}

const spoken = (talk: Talk) => talk.messages.filter(({ role }) => role !== "assistant").map(({ content }) => content);

describe("messages", () => {
  test("are answered in turn, and the replies are all that standard output gets", async () => {
    const { talk, out } = await chat(["hello", "", "and again"]);
    expect(talk.messages.map(({ role }) => role)).toEqual(["user", "assistant", "user", "assistant"]);
    expect(out).toBe(`${talk.messages[1]!.content}\n${talk.messages[3]!.content}\n`);
    expect(talk.messages[1]!.content).toMatch(/^[a-z]+$/);
  });

  test.each([
    [["one\\", "two"], "one\ntwo"],
    [['"""', "one", "", "two", '"""'], "one\n\ntwo"],
    [['"""one', 'two"""'], "one\ntwo"],
    [['"""one"""'], "one"],
    [["pasted\nat once"], "pasted\nat once"],
    [[" /etc/passwd"], "/etc/passwd"],
  ])("of several lines: %j", async (lines, message) => {
    expect(spoken((await chat(lines)).talk)).toEqual([message]);
  });

  test("beyond the context are refused, and leave the conversation as it was", async () => {
    const { talk, err, hasFailed } = await chat(["hi", "x".repeat(300)], { engine: { contextLength: 100 } });
    expect(spoken(talk)).toEqual(["hi"]);
    expect(talk.messages).toHaveLength(2);
    expect(err).toMatch(/context holds 100/);
    expect(hasFailed).toBe(true);
  });
});

describe("commands", () => {
  test("/reset forgets, /system sets the prompt of a new conversation and removes it", async () => {
    expect((await chat(["hi", "/reset"])).talk.messages).toEqual([]);
    const { talk } = await chat(["hi", "/system Be brief.", "hello"]);
    expect(spoken(talk)).toEqual(["Be brief.", "hello"]);
    expect(spoken((await chat(["/system Be brief.", "/system", "hello"])).talk)).toEqual(["hello"]);
  });

  test("/set changes settings, all or none, and names what it does not know", async () => {
    const { talk, err } = await chat([
      "/set temperature=0.5, max_tokens=3",
      "hello",
      "/set top_p=0.9 temperature=-1",
      "/set tempersture=1",
      "/set seed=default",
    ]);
    expect(talk.settings).toEqual({ temperature: 0.5, max_tokens: 3 });
    expect(talk.messages[1]!.content).toHaveLength(3);
    expect(err).toMatch(/cut at max_tokens/);
    expect(err).toMatch(/Cannot set temperature: it takes a number from 0 \(-1\)/);
    expect(err).toMatch(/Cannot set tempersture: there is no such setting/);
  });

  test("/retry samples the last reply again", async () => {
    const { talk, out } = await chat(["one", "two", "/set seed=6", "/retry"]);
    expect(spoken(talk)).toEqual(["one", "two"]);
    const replies = out.trim().split("\n");
    expect(replies).toHaveLength(3);
    expect(replies[2]).not.toBe(replies[1]);
    expect(talk.messages.at(-1)!.content).toBe(replies[2]);
    expect((await chat(["/retry"])).err).toMatch(/nothing was said yet/);
  });

  test("/save writes the conversation; /help and unknown names answer; /exit leaves", async () => {
    const file = join(root, "talk.json");
    const { talk, err } = await chat(["hello", `/save ${file}`, "/save", "/help", "/sav", "/exit", "never"]);
    expect(JSON.parse(readFileSync(file, "utf8"))).toEqual({ model: "letters", messages: talk.messages, seed: 5 });
    for (const text of ["no file is named", "/retry", "no command /sav"]) expect(err).toContain(text);
    expect(spoken(talk)).toEqual(["hello"]);
    expect((await chat([`/save ${join(root, "nowhere", "talk.json")}`])).err).toMatch(/Cannot write/);
  });
});

describe("Ctrl-C", () => {
  test("stops one reply, which stays as far as it came", async () => {
    let count = 0;
    const { talk, err } = await chat(["tell", "go on"], {
      engine: { mostTokens: 400, chunkMs: 5 },
      onReply: (interrupt) => void (count++ === 0 && setTimeout(interrupt, 12)),
    });
    expect(err).toMatch(/stopped/);
    expect(talk.messages).toHaveLength(4);
    expect(talk.messages[3]!.content.length).toBeGreaterThan(0);
  });

  test("at the prompt leaves with the second one alone", async () => {
    const interrupt = { kind: "interrupt" } as const;
    expect(spoken((await chat([interrupt, "one", interrupt, "two", interrupt, interrupt, "three"])).talk)).toEqual([
      "one",
      "two",
    ]);
  });
});

test("the history is kept for this user, the latest first", () => {
  const file = join(root, "history");
  expect(readHistory(file)).toEqual([]);
  writeHistory(file, ["second", "first"]);
  expect(readFileSync(file, "utf8")).toBe("first\nsecond\n");
  expect(readHistory(file)).toEqual(["second", "first"]);
});

describe("the command", () => {
  const model = join(root, "model");
  beforeAll(() => writeChatModel(model));
  const run = (args: readonly string[], inputs: readonly string[]) =>
    grpu(["chat", "--model", model, "--device", "cpu", ...args], {
      typing: () => scripted(inputs, { isTerminal: false }),
    });

  test("talks to a model without a terminal: replies alone on standard output, the same for the same seed", async () => {
    const once = await run(["--seed", "3", "--max-tokens", "8"], ["hello", "again"]);
    expect(once.code, once.err).toBe(0);
    expect(once.out.length).toBeGreaterThan(0);
    expect((await run(["--seed", "3", "--max-tokens", "8"], ["hello", "again"])).out).toBe(once.out);
  });

  test("a message that cannot be answered is its exit status", async () => {
    const { code, err } = await run([], ["x".repeat(1000)]);
    expect(code).toBe(1);
    expect(err).toMatch(/context holds 256/);
  });
});
