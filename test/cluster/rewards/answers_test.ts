/** Answers to requests that are sent again. */
import { expect, test } from "vitest";
import { Answers } from "../../../src/cluster/rewards/answers.ts";
import { Refusal } from "../../../src/leaves/http/refusal.ts";

const settled = () => new Promise((resolve) => setTimeout(resolve));
/** What an answer without text counts. */
const ENTRY = 300;

async function filled(bytes: number, keys: readonly string[]): Promise<Answers> {
  const answers = new Answers({ bytes, keepMs: 60_000 });
  for (const key of keys) await answers.add(key, { print: key, make: async () => "x".repeat(100) });
  await settled();
  return answers;
}

const known = (answers: Answers, keys: readonly string[]) => keys.filter((key) => answers.find(key, key) !== undefined);

test("a pending answer is shared, a ready one is kept", async () => {
  const answers = new Answers({ bytes: 1e6, keepMs: 60_000 });
  let release = (_: string) => {};
  const pending = new Promise<string>((resolve) => {
    release = resolve;
  });
  const first = answers.add("a", { print: "p", make: () => pending });
  const second = answers.find("a", "p");
  expect([answers.bytes, answers.repeats]).toEqual([0, 1]);
  release("text");
  expect(await Promise.all([first, second])).toEqual(["text", "text"]);
  await settled();
  expect(await answers.find("a", "p")).toBe("text");
  expect(answers.bytes).toBe(ENTRY + 4);
  expect(() => answers.find("a", "q")).toThrow(Refusal);
  expect(answers.find("b", "p")).toBeUndefined();
});

test("an answer that failed is made again", async () => {
  const answers = new Answers({ bytes: 1e6, keepMs: 60_000 });
  const make = () => Promise.reject(new Error("no"));
  await expect(answers.add("a", { print: "p", make })).rejects.toThrow("no");
  await settled();
  expect(answers.find("a", "p")).toBeUndefined();
  expect(answers.bytes).toBe(0);
});

test("the oldest go beyond the size; the newest stays, however large", async () => {
  const keys = ["a", "b", "c"];
  expect(known(await filled(3 * (ENTRY + 100), keys), keys)).toEqual(keys);
  expect(known(await filled(3 * (ENTRY + 100) - 1, keys), keys)).toEqual(["b", "c"]);
  expect(known(await filled(1, keys), keys)).toEqual(["c"]);
  const answers = await filled(1e6, keys);
  answers.forget("b");
  answers.forget("b");
  expect([known(answers, keys), answers.bytes]).toEqual([["a", "c"], 2 * (ENTRY + 100)]);
});

test("those that are too old go; pending ones stay", async () => {
  const answers = new Answers({ bytes: 1e6, keepMs: 20 });
  await answers.add("old", { print: "old", make: async () => "x" });
  void answers.add("pending", { print: "pending", make: () => new Promise(() => {}) });
  await new Promise((resolve) => setTimeout(resolve, 40));
  await answers.add("new", { print: "new", make: async () => "x" });
  await settled();
  answers.expire();
  expect(known(answers, ["old", "pending", "new"])).toEqual(["pending", "new"]);
  expect(answers.bytes).toBe(ENTRY + 1);
});
