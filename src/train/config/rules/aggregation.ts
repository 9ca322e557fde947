/** Losses that bring their own aggregation of tokens, so that no other `loss_agg_mode` acts on them. */
import { ownAggregation } from "../../../engine/algorithm/loss/losses.ts";
import type { Finding, Rule } from "./rules.ts";

type Read = Parameters<Rule["check"]>[0];

/** Returns the reason why a mode cannot be set with a loss. */
export function aggregationConflict(loss: string, mode: string | null | undefined): string | undefined {
  const lossMode = ownAggregation(loss);
  if (lossMode === undefined || mode === null || mode === undefined || mode === lossMode) return undefined;
  return `the loss ${loss} brings its own aggregation, ${lossMode}, and ignores every other`;
}

const PATH = "rllm.algorithm.loss_agg_mode";

/** A mode that the loss of the run would ignore. */
export function aggregationFinding(read: Read): Finding | undefined {
  const [loss, mode] = [read("rllm.algorithm.loss_fn"), read(PATH)];
  if (typeof loss !== "string" || typeof mode !== "string") return undefined;
  const conflict = aggregationConflict(loss, mode);
  if (conflict === undefined) return undefined;
  const message = `Cannot set ${PATH}=${mode}: ${conflict}. Set it to ${ownAggregation(loss)} or null, or choose another loss.`;
  return { severity: "error", path: PATH, message };
}

export const AGGREGATION_RULES: readonly Rule[] = [{ backends: ["local", "tinker"], check: aggregationFinding }];
