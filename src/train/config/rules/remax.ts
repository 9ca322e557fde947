/** Rules of ReMax: the reward of a greedy attempt can be the baseline of what a run trains on. */
import type { Finding, Rule } from "./rules.ts";

type Read = Parameters<Rule["check"]>[0];

/** Returns a finding where the greedy attempt of a run cannot be a baseline, whichever role's estimator needs it. */
export function greedyFinding(read: Read): Finding | undefined {
  const [mode, temperature] = ["rllm.stepwise_advantage.mode", "rllm.rollout.train.temperature"];
  if (read("rllm.stepwise_advantage.enable") === true && read(mode) === "per_step")
    return {
      severity: "error",
      path: mode,
      message: `Cannot estimate remax with ${mode}=per_step: a greedy attempt gives one reward a trajectory, and its steps are not those of a rollout. Set ${mode}=broadcast, or choose another estimator.`,
    };
  if (read(temperature) !== 0) return undefined;
  return {
    severity: "error",
    path: temperature,
    message: `Cannot estimate remax at ${temperature}=0: every rollout would be the greedy attempt that it is compared with. Set ${temperature}=1.`,
  };
}

export const REMAX_RULES: readonly Rule[] = [
  {
    backends: ["local", "tinker"],
    check: (read) => (read("rllm.algorithm.adv_estimator") === "remax" ? greedyFinding(read) : undefined),
  },
];
