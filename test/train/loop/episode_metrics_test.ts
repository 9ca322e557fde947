import { expect, test } from "vitest";
import type { Episode } from "../../../src/train/data/types.ts";
import { episodeMetrics } from "../../../src/train/loop/rollout/episode_metrics.ts";

const episode = (metrics: Record<string, unknown>, termination_reason: Episode["termination_reason"]) =>
  ({ id: "t:0", metrics, termination_reason, trajectories: [] }) as unknown as Episode;

test("episodeMetrics() averages a metric over the episodes that report it as a number, and counts endings", () => {
  const metrics = episodeMetrics([
    episode({ turns: 2, judged: 1 }, "env_done"),
    episode({ turns: 5 }, "error"),
    episode({ turns: "many" }, "timeout"),
    episode({}, "timeout"),
  ]);
  expect(metrics).toMatchObject({
    "batch/turns": 3.5,
    "batch/judged": 1,
    "batch/rollouts_failed": 1,
    "batch/termination_reason/env_done": 0.25,
    "batch/termination_reason/error": 0.25,
    "batch/termination_reason/timeout": 0.5,
    "batch/termination_reason/unknown": 0,
  });
});

test("episodeMetrics() of no episodes has shares of 0", () => {
  const metrics = episodeMetrics([]);
  expect(metrics["batch/rollouts_failed"]).toBe(0);
  expect(Object.values(metrics).every((value) => value === 0)).toBe(true);
});

test("episodeMetrics() counts prompts that could not continue on the sampled tokens, and names none without one", () => {
  const steps = ["rendered", "continued", "spliced", "diverged", "diverged"].map((prompt_origin) => ({
    prompt_origin,
  }));
  const own = { ...episode({}, "env_done"), trajectories: [{ steps }] } as unknown as Episode;
  expect(episodeMetrics([own, own])).toMatchObject({ "batch/prompts_spliced": 2, "batch/prompts_diverged": 4 });
  const keys = Object.keys(episodeMetrics([episode({}, "env_done")]));
  expect(keys.filter((key) => key.includes("prompts"))).toEqual([]);
});
