/** What one caller may take, by the clock. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { CallLimits, GATEWAY_LIMITS } from "../../../src/serve/gateway/limits.ts";

let now = 0;
beforeEach(() => {
  now = 1000;
  vi.spyOn(performance, "now").mockImplementation(() => now);
});
afterEach(() => vi.restoreAllMocks());

const SECOND = 1000;
const limitsOf = (more: object) => new CallLimits({ ...GATEWAY_LIMITS, ...more });

/** Calls that may start now, of at most 100. Each ends at once. */
function burst(limits: CallLimits, caller: string): number {
  for (let calls = 0; calls < 100; calls++) {
    try {
      limits.enter(caller as never)();
    } catch (error) {
      expect(error).toMatchObject({ status: 429 });
      return calls;
    }
  }
  return 100;
}

test("a minute's calls come back with time, and never more than those of one minute", () => {
  const limits = limitsOf({ perMinute: 6 });
  expect(burst(limits, "a")).toBe(6);
  expect(burst(limits, "a")).toBe(0);
  now += 10 * SECOND - 1;
  expect(burst(limits, "a")).toBe(0);
  now += 1;
  expect(burst(limits, "a")).toBe(1);
  now += 30 * SECOND;
  expect(burst(limits, "a")).toBe(3);
  now += 3600 * SECOND;
  expect(burst(limits, "a")).toBe(6);
  expect(burst(limits, "b")).toBe(6);
});

test("calls that run count until they end, once", () => {
  const limits = limitsOf({ concurrency: 2 });
  const [first, second] = [limits.enter("a" as never), limits.enter("a" as never)];
  expect(() => limits.enter("a" as never)).toThrow(/2 calls of this key run already/);
  first();
  first();
  const third = limits.enter("a" as never);
  expect(() => limits.enter("a" as never)).toThrow(/2 calls/);
  second();
  third();
  expect(burst(limits, "a")).toBe(100);
});

test("callers beyond the most that are kept are forgotten once they are as good as new, the longest unused first", () => {
  const limits = limitsOf({ perMinute: 2, sessions: 1 });
  const held = limits.enter("held" as never);
  expect(burst(limits, "a")).toBe(2);
  now += 59 * SECOND;
  // Still known: one of its two calls came back.
  expect(burst(limits, "b")).toBe(2);
  expect(burst(limits, "a")).toBe(1);
  now += 61 * SECOND;
  expect(burst(limits, "c")).toBe(2);
  expect(burst(limits, "a")).toBe(2);
  held();
});
