/** `grpu compute ...`: the engine's advantages, losses, KL and rollout correction on a file of rollouts. */
import type { PolicyLossSpec } from "../../algorithm/loss/resolve.ts";
import type { Device } from "../../compute/device.ts";
import type { Precision, Rollouts } from "../../data/rollouts/builder.ts";
import { ConfigError } from "../../errors.ts";
import type { Command, Input, Io, Option } from "../command.ts";
import { DEVICE, IMPORT, importsOf } from "../options.ts";

const INPUT: Option = {
  flag: "--input",
  value: "FILE",
  describe: "rollouts as JSONL or Parquet; - is standard input (JSONL)",
  required: true,
};
const SET: Option = {
  flag: "--set",
  value: "key=value",
  describe: "a setting under its published name; may repeat",
  repeat: true,
};
const JSON_OUTPUT: Option = { flag: "--json", describe: "print one JSON object instead of a summary" };
const AGGREGATION: Option = {
  flag: "--agg",
  value: "MODE",
  describe: "how token losses become one number",
  choices: [
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
  ],
  default: "token-mean",
};

const FIELDS = `Each line of the input is one trajectory: group, reward, and per token mask (1 = trained on), token_rewards,
logprobs, old_logprobs, rollout_logprobs, ref_logprobs, values, entropy, sum_pi_squared, advantages.`;

export const commands: readonly Command[] = [
  {
    path: "compute advantages",
    summary: "estimate the advantages of rollouts",
    options: [
      INPUT,
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
  },
  {
    path: "compute loss",
    summary: "take a policy loss over rollouts, with its gradient and metrics",
    options: [
      INPUT,
      {
        flag: "--loss",
        value: "NAME",
        describe: "loss; verl's bare names, tinker.NAME, trl.NAME",
        required: true,
      },
      AGGREGATION,
      SET,
      {
        flag: "--rollout-is",
        value: "LEVEL",
        describe: "multiply in importance weights exp(old - rollout), cut at rollout_is_threshold (2)",
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
  },
  {
    path: "compute kl",
    summary: "estimate the KL divergence of logprobs to ref_logprobs",
    options: [
      INPUT,
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
  },
  {
    path: "compute rollout-correction",
    summary: "weigh and reject tokens whose sampler differs from the trainer",
    options: [INPUT, SET, JSON_OUTPUT],
    examples: [
      "grpu compute rollout-correction --input rollouts.jsonl --set rollout_is=token --json",
      "grpu compute rollout-correction --input rollouts.jsonl --set preset=decoupled_geo_rs",
    ],
    notes:
      "Settings: preset, rollout_is, rollout_is_threshold, rollout_is_batch_normalize, rollout_rs, rollout_rs_threshold. Compares old_logprobs with rollout_logprobs, in float64.",
    run: runCorrection,
  },
];

async function runAdvantages(input: Input, io: Io): Promise<void> {
  const [{ advantageBatch, computeAdvantages }, { advantageMetrics, summarizeGroups }] = await Promise.all([
    import("../../algorithm/run.ts"),
    import("../../algorithm/advantage/metrics.ts"),
  ]);
  await importUserModules(input);
  await onDevice(input, async (device, where) => {
    const rollouts = await readRollouts(input, io, device);
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
    const { advantages, returns } = await rowsOf(rollouts, {
      advantages: result.advantages,
      returns: result.returns,
    });
    printJson(io, { estimator, device: where, advantages, returns, metrics });
  });
}

async function runLoss(input: Input, io: Io): Promise<void> {
  const { computePolicyLoss, lossBatch } = await import("../../algorithm/run.ts");
  await importUserModules(input);
  await onDevice(input, async (device, where) => {
    const rollouts = await readRollouts(input, io, device);
    const { spec, threshold } = lossSpec(input);
    const weights = await importanceWeights(input, rollouts, threshold);
    const batch = {
      ...lossBatch(rollouts),
      rolloutIsWeights: weights ?? rollouts.tokens.rollout_is_weights,
      entropy: spec.entropy_coeff ? rollouts.tokens.entropy : undefined,
    };
    const { loss, dlogprobs, metrics } = await computePolicyLoss(batch, spec, { device });
    if (!input.options.json) {
      io.err(`${spec.name} (${spec.loss_agg_mode}) on ${where}\n`);
      io.err(metricLines({ loss, ...metrics }));
      return;
    }
    printJson(io, { loss, ...(await rowsOf(rollouts, { dlogprobs })), metrics, device: where });
  });
}

async function runKl(input: Input, io: Io): Promise<void> {
  const { computeKl, field } = await import("../../algorithm/run.ts");
  await onDevice(input, async (device, where) => {
    const rollouts = await readRollouts(input, io, device);
    const { offsets, mask } = rollouts;
    const batch = {
      offsets,
      mask,
      logprobs: field(rollouts, "logprobs"),
      refLogprobs: field(rollouts, "ref_logprobs"),
    };
    const kl = String(input.options.kl);
    const spec = { ...settingsOf(input), kl, loss_agg_mode: String(input.options.agg) };
    const { values, loss, dlogprobs } = await computeKl(batch, spec, { device });
    if (input.options.json)
      printJson(io, { loss, ...(await rowsOf(rollouts, { values, dlogprobs })), device: where });
    else io.err(`${kl} (${spec.loss_agg_mode}) on ${where}\n${metricLines({ loss })}`);
  });
}

async function runCorrection(input: Input, io: Io): Promise<void> {
  const [{ rolloutCorrection }, { correctionPreset }, { field }] = await Promise.all([
    import("../../algorithm/correction/host.ts"),
    import("../../algorithm/correction/config.ts"),
    import("../../algorithm/run.ts"),
  ]);
  const rollouts = await readRollouts(input, io, undefined);
  const { preset, ...settings } = settingsOf(input);
  refuseUnknown(settings, CORRECTION_SETTINGS);
  const config = { ...(preset === undefined ? {} : correctionPreset(String(preset))), ...settings };
  const { offsets, mask } = rollouts;
  const batch = {
    offsets,
    mask,
    logprobs: field(rollouts, "old_logprobs"),
    rolloutLogprobs: field(rollouts, "rollout_logprobs"),
  };
  const result = rolloutCorrection(batch, config);
  if (!input.options.json) {
    io.err(metricLines(result.metrics));
    return;
  }
  const { mask: kept } = await rowsOf(rollouts, { mask: result.mask });
  const weights = result.weights && (await rowsOf(rollouts, { weights: result.weights })).weights;
  printJson(io, { weights: weights ?? null, mask: kept, metrics: result.metrics });
}

const CORRECTION_SETTINGS = [
  "rollout_is",
  "rollout_is_threshold",
  "rollout_is_batch_normalize",
  "rollout_rs",
  "rollout_rs_threshold",
];

function refuseUnknown(settings: Readonly<Record<string, unknown>>, known: readonly string[]): void {
  for (const key of Object.keys(settings))
    if (!known.includes(key))
      throw new ConfigError(`Cannot set ${key}: known are preset, ${known.join(", ")}.`, { path: key });
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
  const own = Object.entries(settings).filter(([key]) => !NORMALISERS.includes(key));
  const spec: PolicyLossSpec = {
    ...(Object.fromEntries(Object.entries(settings).filter(([key]) => NORMALISERS.includes(key))) as object),
    name: String(input.options.loss),
    loss_agg_mode: String(input.options.agg),
    settings: Object.fromEntries(own.map(([key, value]) => [key, settingNumber(key, value)])),
    kl:
      kl_loss_coef === undefined
        ? undefined
        : { coef: Number(kl_loss_coef), type: String(kl_loss_type ?? "low_var_kl") },
  };
  return { spec, threshold: (rollout_is_threshold as number | string | undefined) ?? 2 };
}

/** Published words for numbers of ours. */
function settingNumber(key: string, value: Setting): number {
  if (key === "importance_sampling_level") return value === "sequence" ? 1 : 0;
  return value as number;
}

async function importanceWeights(input: Input, rollouts: Rollouts, threshold: number | string) {
  const level = input.options.rolloutIs;
  if (level === undefined) return undefined;
  const [{ rolloutCorrection }, { field }] = await Promise.all([
    import("../../algorithm/correction/host.ts"),
    import("../../algorithm/run.ts"),
  ]);
  const { offsets, mask } = rollouts;
  const batch = {
    offsets,
    mask,
    logprobs: field(rollouts, "old_logprobs"),
    rolloutLogprobs: field(rollouts, "rollout_logprobs"),
  };
  const config = { rollout_is: level as "token" | "sequence", rollout_is_threshold: threshold };
  return rolloutCorrection(batch, config).weights;
}

async function importUserModules(input: Input): Promise<void> {
  const paths = importsOf(input);
  if (paths.length === 0) return;
  const { importModules } = await import("../run/modules.ts");
  await importModules(paths);
}

/** Runs on the device of `--device`; `cpu` is the float64 reference, without a device. */
async function onDevice(
  input: Input,
  run: (device: Device | undefined, where: string) => Promise<void>,
): Promise<void> {
  const name = (input.options.device ?? "auto") as "auto" | "webgpu" | "cpu";
  const { openDevice } = await import("../../compute/open.ts");
  const device = name === "cpu" ? undefined : await openDevice({ device: name });
  if (!device || device.info.kind === "cpu") {
    device?.destroy();
    await run(undefined, "cpu (float64)");
    return;
  }
  try {
    await run(device, device.info.description);
  } finally {
    device.destroy();
  }
}

/** Float64 where the reference computes, float32 where a device does. */
async function readRollouts(input: Input, io: Io, device: Device | undefined): Promise<Rollouts> {
  const [{ readJsonl, readParquet }, { createReadStream, existsSync }] = await Promise.all([
    import("../../data/rollouts/read.ts"),
    import("node:fs"),
  ]);
  const path = String(input.options.input);
  const precision: Precision = device ? "f32" : "f64";
  if (path === "-") return readJsonl(await io.stdin(), { file: "stdin", precision });
  if (!existsSync(path))
    throw new ConfigError(`Cannot read the rollouts as there is no such file: ${path}.`, { file: path });
  if (!path.endsWith(".parquet"))
    return readJsonl(createReadStream(path, "utf8") as AsyncIterable<string>, { file: path, precision });
  const { asyncBufferFromFile } = await import("hyparquet");
  return readParquet(await asyncBufferFromFile(path), { file: path, precision });
}

type Setting = string | number | boolean | null;

/** `--set key=value`: numbers, true, false and null as what they are, the rest as text. */
function settingsOf({ options }: Input): Record<string, Setting> {
  const entries = ((options.set as readonly string[] | undefined) ?? []).map((text): [string, Setting] => {
    const at = text.indexOf("=");
    if (at < 1) throw new ConfigError(`Cannot read --set ${JSON.stringify(text)}: write key=value.`);
    return [text.slice(0, at), settingValue(text.slice(at + 1))];
  });
  return Object.fromEntries(entries);
}

const WORDS: Readonly<Record<string, boolean | null>> = {
  true: true,
  false: false,
  True: true,
  False: false,
  null: null,
  None: null,
};

function settingValue(text: string): Setting {
  if (Object.hasOwn(WORDS, text)) return WORDS[text]!;
  return text.trim() !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

/** Per-token numbers as one list per row. */
async function rowsOf<K extends string>(
  rollouts: Rollouts,
  values: Record<K, ArrayLike<number>>,
): Promise<Record<K, number[][]>> {
  const { unpack } = await import("../../data/rollouts/builder.ts");
  const entries = Object.entries<ArrayLike<number>>(values).map(([name, flat]) => [
    name,
    unpack(flat, rollouts.offsets),
  ]);
  return Object.fromEntries(entries) as Record<K, number[][]>;
}

function printJson(io: Io, value: unknown): void {
  io.out(`${JSON.stringify(value)}\n`);
}

const NUMBER_WIDTH = 10;

function metricLines(metrics: Readonly<Record<string, number>>): string {
  const width = Math.max(...Object.keys(metrics).map((name) => name.length));
  return Object.entries(metrics)
    .map(([name, value]) => `${name.padEnd(width)}  ${format(value)}\n`)
    .join("");
}

function format(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toPrecision(6);
}

const MAX_GROUPS_SHOWN = 20;

function groupTable(
  names: readonly string[],
  groups: readonly import("../../algorithm/advantage/metrics.ts").GroupSummary[],
): string {
  const shown = groups.slice(0, MAX_GROUPS_SHOWN);
  const nameWidth = Math.max(5, ...names.slice(0, MAX_GROUPS_SHOWN).map((name) => name.length));
  const cell = (text: string | number) =>
    (typeof text === "number" ? format(text) : text).padStart(NUMBER_WIDTH);
  const header = ["rows", "reward", "std", "min adv", "max adv"].map(cell).join("  ");
  const lines = shown.map((group, i) => {
    const numbers = [group.size, group.rewardMean, group.rewardStd, group.advantageMin, group.advantageMax];
    return `${(names[i] ?? `row ${i}`).padEnd(nameWidth)}${numbers.map((x) => `  ${cell(x)}`).join("")}  ${group.difficulty ?? "alone"}\n`;
  });
  const more = groups.length > shown.length ? `... and ${groups.length - shown.length} more groups\n` : "";
  return `${"group".padEnd(nameWidth)}  ${header}\n${lines.join("")}${more}\n`;
}
