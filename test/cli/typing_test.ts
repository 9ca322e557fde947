import { getEventListeners } from "node:events";
import { expect, test } from "vitest";
import { openTyping } from "../../src/cli/process/typing.ts";

test("piped input listens once to the signal that ends it, however many lines are read", async () => {
  const ending = new AbortController();
  const typing = openTyping({ history: [], signal: ending.signal });
  const lines = Array.from({ length: 12 }, () => typing.next("> "));
  expect(getEventListeners(ending.signal, "abort")).toHaveLength(1);
  ending.abort();
  expect(await Promise.all(lines)).toEqual(lines.map(() => ({ kind: "end" })));
  expect(await typing.next("> ")).toEqual({ kind: "end" });
  typing.close();
});
