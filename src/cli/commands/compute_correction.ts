import { ConfigError } from "../../leaves/errors.ts";
import type { Command, Input, Io } from "../command.ts";
import { INPUT_OPTION, JSON_OUTPUT, readRollouts, SET, settingsOf } from "./compute_options.ts";
import { listsByRow, metricLines, printJson } from "./compute_output.ts";

export const correctionCommand: Command = {
  path: "compute rollout-correction",
  summary: "weight and reject tokens where the sampler's policy differs from the trainer's",
  options: [INPUT_OPTION, SET, JSON_OUTPUT],
  examples: [
    "grpu compute rollout-correction --input rollouts.jsonl --set rollout_is=token --json",
    "grpu compute rollout-correction --input rollouts.jsonl --set preset=decoupled_geo_rs",
  ],
  notes:
    "Settings: preset, rollout_is, rollout_is_threshold, rollout_is_batch_normalize, rollout_rs, rollout_rs_threshold. Compares old_logprobs with rollout_logprobs, in float64.",
  run: runCorrection,
};

async function runCorrection(input: Input, io: Io): Promise<void> {
  const [{ rolloutCorrection }, { correctionPreset }, { correctionBatch }] = await Promise.all([
    import("../../engine/algorithm/correction/host.ts"),
    import("../../engine/algorithm/correction/config.ts"),
    import("../../engine/algorithm/rollout_batches.ts"),
  ]);
  const rollouts = await readRollouts(input, io, undefined);
  const { preset, ...settings } = settingsOf(input);
  refuseUnknown(settings, CORRECTION_SETTINGS);
  const config = { ...(preset === undefined ? {} : correctionPreset(String(preset))), ...settings };
  const result = rolloutCorrection(correctionBatch(rollouts), config);
  if (!input.options.json) {
    io.err(metricLines(result.metrics));
    return;
  }
  const { mask: kept } = await listsByRow(rollouts, { mask: result.mask });
  const weights = result.weights && (await listsByRow(rollouts, { weights: result.weights })).weights;
  printJson(io, { weights: weights ?? null, mask: kept, metrics: result.metrics });
}

const CORRECTION_SETTINGS = [
  "rollout_is",
  "rollout_is_threshold",
  "rollout_is_batch_normalize",
  "rollout_rs",
  "rollout_rs_threshold",
];

function refuseUnknown(settings: Readonly<Record<string, unknown>>, accepted: readonly string[]): void {
  for (const key of Object.keys(settings))
    if (!accepted.includes(key))
      throw new ConfigError(
        `Cannot set ${key}: rollout correction has no such setting. Known: preset, ${accepted.join(", ")}.`,
        { path: key },
      );
}
