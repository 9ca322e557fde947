import { expect, test } from "vitest";
import { runLoad } from "../../fixtures/load.ts";

test("10,000 tasks, 256 at once, one in a hundred failing and one hanging: exact counts, flat memory", async () => {
  const steps = 6;
  const { outcome, records, mostAtOnce, begun, aborted, heap } = await runLoad({
    tasks: 10_000,
    parallel: 256,
    steps,
    oneIn: 100,
    // Longer than the first stack trace takes, because tests read source maps for it.
    timeoutSeconds: 1,
  });
  expect(outcome).toMatchObject({ isComplete: true, state: { step: steps } });
  expect([begun, aborted, mostAtOnce]).toEqual([10_000 * steps, 100 * steps, 256]);
  for (const { metrics } of records) {
    expect(metrics["batch/termination_reason/error"]).toBeCloseTo(0.01, 10);
    expect(metrics["batch/termination_reason/timeout"]).toBeCloseTo(0.01, 10);
    expect(metrics["batch/termination_reason/env_done"]).toBeCloseTo(0.98, 10);
    // A hanging attempt sampled before it hung: its steps count, without a reward.
    expect(metrics["groups/num_trajs_after_filter"]).toBe(9_900);
  }
  const growth = heap.slice(2).map((bytes, i) => bytes - heap[i + 1]!);
  expect(Math.max(...growth)).toBeLessThan(2 ** 19);
}, 120_000);
