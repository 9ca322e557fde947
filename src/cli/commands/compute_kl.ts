/** `grpu compute kl`: KL estimates between two lists of log-probabilities. */

import type { Command, Input, Io } from "../command.ts";
import { DEVICE } from "../options.ts";
import { AGGREGATION, INPUT_OPTION, JSON_OUTPUT, onRollouts, SET, settingsOf } from "./compute_options.ts";
import { listsByRow, metricLines, printJson } from "./compute_output.ts";

export const klCommand: Command = {
  path: "compute kl",
  summary: "estimate the KL divergence of logprobs to ref_logprobs",
  options: [
    INPUT_OPTION,
    {
      flag: "--kl",
      value: "NAME",
      describe: "kl, k1, abs, mse, k2, low_var_kl, k3; NAME+ has the slope of k2",
      default: "low_var_kl",
    },
    AGGREGATION,
    SET,
    DEVICE,
    JSON_OUTPUT,
  ],
  examples: ["grpu compute kl --input rollouts.jsonl --kl k3 --agg token-mean --json"],
  run: runKl,
};

async function runKl(input: Input, io: Io): Promise<void> {
  const { klBatch } = await import("../../engine/algorithm/rollout_batches.ts");
  const { computeKl } = await import("../../engine/algorithm/run.ts");
  await onRollouts(input, io, async (rollouts, { device, where }) => {
    const kl = String(input.options.kl);
    const spec = { ...settingsOf(input), kl, loss_agg_mode: String(input.options.agg) };
    const { values, loss, dlogprobs } = await computeKl(klBatch(rollouts), spec, { device });
    if (input.options.json)
      printJson(io, { loss, ...(await listsByRow(rollouts, { values, dlogprobs })), device: where });
    else io.err(`${kl} (${spec.loss_agg_mode}) on ${where}\n${metricLines({ loss })}`);
  });
}
