/** Utilisation of a step by phase, under verl's names where verl has them. */
import type { Backend, Metrics } from "../../engine/contract/backend.ts";
import { acceptance } from "./acceptance.ts";

/**
 * `perf/flops/<phase>` are the model's operations a second while the phase ran, `perf/mfu/<phase>` their share of the peak that was
 * measured on the device, 0 to 1, and `perf/mfu` that of the whole step. Phases: `actor` (the update), `actor_infer` (log-probs),
 * `rollout` (sampling), whose tokens a second are `perf/rollout_throughput`, with the {@link acceptance} of guessed tokens.
 * @param seconds of the step
 */
export async function utilisation({ takeWork }: Pick<Backend, "takeWork">, seconds: number): Promise<Metrics> {
  if (!takeWork) return {};
  const { phases, peakFlops, speculated } = await takeWork();
  const metrics: Metrics = acceptance(speculated);
  let total = 0;
  for (const [phase, { flop, tokens, seconds }] of Object.entries(phases)) {
    if (flop === 0 || seconds === 0) continue;
    total += flop;
    metrics[`perf/flops/${phase}`] = flop / seconds;
    if (peakFlops !== undefined) metrics[`perf/mfu/${phase}`] = flop / seconds / peakFlops;
    if (phase === "rollout") metrics["perf/rollout_throughput"] = tokens / seconds;
  }
  if (peakFlops !== undefined && total > 0) metrics["perf/mfu"] = total / seconds / peakFlops;
  return metrics;
}
