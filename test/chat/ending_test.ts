import { expect, test } from "vitest";
import { SharedAbort } from "../../src/chat/ending.ts";

test("calls end with their caller and with each other, each by a signal of its own", () => {
  const caller = new AbortController();
  const ending = new SharedAbort(caller.signal);
  const signals = Array.from({ length: 100 }, () => ending.signal());
  expect(new Set(signals).size).toBe(100);
  caller.abort("gone");
  ending.abort("later");
  expect(new Set(signals.map(({ reason }) => reason))).toEqual(new Set(["gone"]));
  expect([ending.isEnded, ending.signal().reason]).toEqual([true, "gone"]);
});

test("an ending that was left no longer hears its caller", () => {
  const caller = new AbortController();
  const ending = new SharedAbort(caller.signal);
  const signal = ending.signal();
  ending.leave();
  caller.abort("gone");
  expect([signal.aborted, ending.isEnded]).toEqual([false, false]);
});

test("one whose caller left before begins ended", () => {
  expect(new SharedAbort(AbortSignal.abort("gone")).signal().reason).toBe("gone");
});
