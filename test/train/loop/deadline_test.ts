import { expect, onTestFinished, test, vi } from "vitest";
import { startDeadline } from "../../../src/train/loop/rollout/deadline.ts";

// A longer delay overflows in Node and in browsers, where the timer then fires at once.
test.each([
  [0.5, [500]],
  [(2 ** 31 - 1) / 1000, [2 ** 31 - 1]],
  [2 ** 31 / 1000, []],
  [Number.POSITIVE_INFINITY, []],
])("a limit of %d s sets the timer %j", (seconds, delays) => {
  const timer = vi.spyOn(globalThis, "setTimeout");
  onTestFinished(() => timer.mockRestore());
  const deadline = startDeadline(seconds, new AbortController().signal);
  deadline.stop();
  expect(timer.mock.calls.map(([, delay]) => delay)).toEqual(delays);
});

test("a deadline has the reason of the outer signal, before and after its start, and none once stopped", async () => {
  const outer = new AbortController();
  const [running, stopped] = [startDeadline(60, outer.signal), startDeadline(60, outer.signal)];
  stopped.stop();
  const reason = new Error("Ctrl-C");
  outer.abort(reason);
  const late = startDeadline(60, outer.signal);
  for (const { signal, passed, stop } of [running, late]) {
    expect(signal.reason).toBe(reason);
    await expect(passed).rejects.toBe(reason);
    stop();
  }
  expect(stopped.signal.aborted).toBe(false);
});

test("a deadline that passes ends with a timeout, and the outer signal goes on", async () => {
  const outer = new AbortController();
  const { signal, passed, stop } = startDeadline(0.001, outer.signal);
  await expect(passed).rejects.toMatchObject({ reason: "timeout" });
  expect([signal.aborted, outer.signal.aborted]).toEqual([true, false]);
  stop();
});

test("a stopped deadline leaves no timer behind", () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const { stop } = startDeadline(60, new AbortController().signal);
  expect(vi.getTimerCount()).toBe(1);
  stop();
  expect(vi.getTimerCount()).toBe(0);
});
