/** `grpu compute advantages`: the engine's estimators on a file of rollouts. */

import type { Command, Input, Io } from "../command.ts";
import { DEVICE, IMPORT } from "../options.ts";
import { FIELDS, INPUT_OPTION, JSON_OUTPUT, onRollouts, SET, settingsOf } from "./compute_options.ts";
import { groupTable, listsByRow, metricLines, printJson } from "./compute_output.ts";

export const advantagesCommand: Command = {
  path: "compute advantages",
  summary: "estimate the advantages of rollouts",
  options: [
    INPUT_OPTION,
    {
      flag: "--estimator",
      value: "NAME",
      describe: "estimator; verl's bare names, rllm.NAME, trl.NAME",
      required: true,
    },
    SET,
    DEVICE,
    IMPORT,
    JSON_OUTPUT,
  ],
  examples: [
    "grpu compute advantages --input rollouts.jsonl --estimator grpo",
    "grpu compute advantages --input - --estimator gae --set gamma=0.99 --set lam=0.95 --json",
  ],
  notes: FIELDS,
  run: runAdvantages,
};

async function runAdvantages(input: Input, io: Io): Promise<void> {
  const { advantageBatch } = await import("../../engine/algorithm/rollout_batches.ts");
  const { computeAdvantages } = await import("../../engine/algorithm/run.ts");
  const { advantageMetrics, summarizeGroups } = await import("../../engine/algorithm/advantage/metrics.ts");
  await onRollouts(input, io, async (rollouts, { device, where }) => {
    const batch = advantageBatch(rollouts);
    const estimator = String(input.options.estimator);
    const settings = settingsOf(input) as Record<string, number | boolean>;
    const result = await computeAdvantages(batch, estimator, { device, settings });
    const metrics = advantageMetrics(batch, result);
    if (!input.options.json) {
      io.err(`${estimator} on ${where}\n`);
      io.err(groupTable(rollouts.groupNames, summarizeGroups(batch, result.advantages)));
      io.err(metricLines(metrics));
      return;
    }
    const { advantages, returns } = await listsByRow(rollouts, {
      advantages: result.advantages,
      returns: result.returns,
    });
    printJson(io, { estimator, device: where, advantages, returns, metrics });
  });
}
