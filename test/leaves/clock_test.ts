/** The system's clock. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { SYSTEM_CLOCK } from "../../src/leaves/clock.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("a signal ends a sleep and its timer; a sleep that ends forgets the signal", async () => {
  const stop = new AbortController();
  const paused = SYSTEM_CLOCK.sleep(1_000, stop.signal).catch((error: Error) => error.message);
  stop.abort(new Error("enough"));
  expect([await paused, vi.getTimerCount()]).toEqual(["enough", 0]);
  await expect(SYSTEM_CLOCK.sleep(1_000, stop.signal)).rejects.toThrow("enough");
  expect(vi.getTimerCount()).toBe(0);
  const going = new AbortController();
  const forgets = vi.spyOn(going.signal, "removeEventListener");
  for (const signal of [going.signal, undefined]) {
    let isOver = false;
    void SYSTEM_CLOCK.sleep(1_000, signal).then(() => {
      isOver = true;
    });
    await vi.advanceTimersByTimeAsync(999);
    expect(isOver).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    expect(isOver).toBe(true);
  }
  expect(forgets).toHaveBeenCalledOnce();
});
