/** `grpu compute loss`: a policy loss over a file of rollouts, with its gradient. */

import { ownAggregation } from "../../engine/algorithm/loss/losses.ts";
import type { PolicyLossSpec } from "../../engine/algorithm/loss/resolve.ts";
import type { Rollouts } from "../../engine/packing/rollouts/rollouts.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { aggregationConflict } from "../../train/config/rules/aggregation.ts";
import type { Command, Input, Io } from "../command.ts";
import { DEVICE, IMPORT } from "../options.ts";
import {
  AGGREGATION,
  FIELDS,
  INPUT_OPTION,
  JSON_OUTPUT,
  onRollouts,
  SET,
  type SettingValue,
  settingsOf,
} from "./compute_options.ts";
import { listsByRow, metricLines, printJson } from "./compute_output.ts";

const { default: _, ...MODES } = AGGREGATION;
const LOSS_AGGREGATION = { ...MODES, describe: `${MODES.describe}; default: token-mean, or what the loss brings` };

export const lossCommand: Command = {
  path: "compute loss",
  summary: "compute a policy loss over rollouts, with its gradient and metrics",
  options: [
    INPUT_OPTION,
    {
      flag: "--loss",
      value: "NAME",
      describe: "loss; verl's bare names, tinker.NAME, trl.NAME",
      required: true,
    },
    LOSS_AGGREGATION,
    SET,
    {
      flag: "--rollout-is",
      value: "LEVEL",
      describe: "multiply by importance weights exp(old - rollout), clipped at rollout_is_threshold (2)",
      choices: ["token", "sequence"],
    },
    DEVICE,
    IMPORT,
    JSON_OUTPUT,
  ],
  examples: [
    "grpu compute loss --input rollouts.jsonl --loss vanilla --agg token-mean --set clip_ratio_high=0.28 --json",
    "grpu compute loss --input rollouts.jsonl --loss gspo --rollout-is sequence",
  ],
  notes: `${FIELDS}\nOther settings: entropy_coeff, kl_loss_coef, kl_loss_type, batch_num_tokens, global_batch_size, loss_scale_factor, dp_size.`,
  run: runLoss,
};

async function runLoss(input: Input, io: Io): Promise<void> {
  const { lossBatch } = await import("../../engine/algorithm/rollout_batches.ts");
  const { computePolicyLoss } = await import("../../engine/algorithm/run.ts");
  await onRollouts(input, io, async (rollouts, { device, where }) => {
    const { spec, threshold } = lossSpec(input);
    const weights = await importanceWeights(input, rollouts, threshold);
    const batch = {
      ...lossBatch(rollouts),
      rolloutIsWeights: weights ?? rollouts.tokens.rollout_is_weights,
      entropy: spec.entropy_coeff ? rollouts.tokens.entropy : undefined,
    };
    const { loss, dlogprobs, metrics } = await computePolicyLoss(batch, spec, { device });
    if (!input.options.json) {
      io.err(`${spec.name} (${ownAggregation(spec.name) ?? spec.loss_agg_mode}) on ${where}\n`);
      io.err(metricLines({ loss, ...metrics }));
      return;
    }
    printJson(io, { loss, ...(await listsByRow(rollouts, { dlogprobs })), metrics, device: where });
  });
}

const NORMALISERS = [
  "batch_num_tokens",
  "global_batch_size",
  "loss_scale_factor",
  "dp_size",
  "compat",
  "entropy_coeff",
];

/** `--loss`, `--agg` and `--set` as one spec, and the bound of `--rollout-is`. */
function lossSpec(input: Input): { spec: PolicyLossSpec; threshold: number | string } {
  const { kl_loss_coef, kl_loss_type, rollout_is_threshold, ...settings } = settingsOf(input);
  const lossSettings = Object.entries(settings).filter(([key]) => !NORMALISERS.includes(key));
  const spec: PolicyLossSpec = {
    ...(Object.fromEntries(Object.entries(settings).filter(([key]) => NORMALISERS.includes(key))) as object),
    name: String(input.options.loss),
    loss_agg_mode: modeOf(input),
    settings: Object.fromEntries(lossSettings.map(([key, value]) => [key, settingNumber(key, value)])),
    kl:
      kl_loss_coef === undefined
        ? undefined
        : { coef: Number(kl_loss_coef), type: String(kl_loss_type ?? "low_var_kl") },
  };
  return { spec, threshold: (rollout_is_threshold as number | string | undefined) ?? 2 };
}

/** @throws {ConfigError} for a mode that the loss ignores */
function modeOf({ options }: Input): string {
  const [loss, aggregation] = [String(options.loss), options.agg as string | undefined];
  const conflict = aggregationConflict(loss, aggregation);
  if (conflict) throw new ConfigError(`Cannot set --agg ${aggregation}: ${conflict}. Leave it out.`, { kind: "usage" });
  return aggregation ?? "token-mean";
}

/** Published words for numbers of ours. */
function settingNumber(key: string, value: SettingValue): number {
  if (key === "importance_sampling_level") return value === "sequence" ? 1 : 0;
  return value as number;
}

async function importanceWeights(input: Input, rollouts: Rollouts, threshold: number | string) {
  const level = input.options.rolloutIs;
  if (level === undefined) return undefined;
  const [{ rolloutCorrection }, { correctionBatch }] = await Promise.all([
    import("../../engine/algorithm/correction/host.ts"),
    import("../../engine/algorithm/rollout_batches.ts"),
  ]);
  const config = { rollout_is: level as "token" | "sequence", rollout_is_threshold: threshold };
  return rolloutCorrection(correctionBatch(rollouts), config).weights;
}
