/** The policy loss of a batch, one pass at a time: on the trained tokens of the pass alone, end to end. */
import {
  checkAdvantages,
  countRows,
  factorsOf,
  isHostOnly,
  type LossResult,
  policyLoss,
  recordPolicyLoss,
  rowsOfTokens,
} from "../../../engine/algorithm/mod.ts";
import type { Data, Device } from "../../../engine/compute/device.ts";
import type { LossSpec, Metrics, TrainBatch } from "../../../engine/contract/backend.ts";
import type { LanguageModel, PassLoss, PassOutputs } from "../../../engine/model/language_model.ts";
import { Scratch } from "../../../engine/model/scratch.ts";
import { ConfigError } from "../../../leaves/errors.ts";

/** The loss of one pass, recorded. `decode` takes the data of its reads. */
interface RecordedLoss extends PassLoss {
  decode(data: readonly Data[]): LossResult;
  /** Trained tokens of the pass. */
  readonly tokens: number;
}

/**
 * Adds the gradient of a policy loss over a batch to a model's gradient, pass by pass.
 * @returns the loss's metrics over the batch.
 * @throws ConfigError as {@link checkBatch}
 */
export async function accumulateLoss(model: LanguageModel, batch: TrainBatch, spec: LossSpec): Promise<Metrics> {
  checkBatch(batch);
  const shared = withBatchTotals(batch, spec);
  const passes = await model.accumulate(batch, {
    temperature: spec.temperature,
    usesEntropies: usesEntropies(spec),
    loss: (outputs) => passLoss(model.device, batch, { spec: shared, outputs }),
  });
  return combinePasses(passes.map(({ loss, data }) => ({ ...loss.decode(data), tokens: loss.tokens })));
}

/** @throws ConfigError for a per-token array of the wrong length, or a batch without a trained token. */
export function checkBatch(batch: TrainBatch): void {
  const tokens = batch.tokens.length;
  const perToken = ["mask", "oldLogprobs", "rolloutLogprobs", "refLogprobs", "rolloutIsWeights", "weights"] as const;
  for (const name of perToken) {
    const length = batch[name]?.length ?? tokens;
    if (length !== tokens)
      throw new ConfigError(`Cannot train: ${name} must have one element per token (${length} of ${tokens}).`, {
        path: name,
      });
  }
  checkAdvantages(batch.advantages, { rows: batch.offsets.length - 1, tokens });
  if (countRows(batch.offsets, batch.mask).trained.every((count) => count === 0))
    throw new ConfigError("Cannot train on the batch: its mask is 0 for every token.");
}

/** Whether the loss has a gradient in the entropies. */
function usesEntropies(spec: Pick<LossSpec, "entropy_coeff">): boolean {
  return spec.entropy_coeff !== 0;
}

/** The spec with the denominators of the whole batch, because a pass holds only a part of it. */
export function withBatchTotals<S extends BatchTotals>(batch: Pick<TrainBatch, "mask" | "offsets">, spec: S) {
  const { trained, longest } = countRows(batch.offsets, batch.mask);
  return {
    ...spec,
    all_rows: spec.all_rows ?? trained.length,
    loss_scale_factor: spec.loss_scale_factor ?? longest,
    batch_num_tokens: spec.batch_num_tokens ?? trained.reduce((sum, count) => sum + count, 0),
    global_batch_size: spec.global_batch_size ?? trained.filter((count) => count > 0).length,
  };
}

type BatchTotals = Partial<Pick<LossSpec, "all_rows" | "loss_scale_factor" | "batch_num_tokens" | "global_batch_size">>;

/** Records the loss of one pass, on the device or, for a loss that is a function of the host, there. */
function passLoss(
  device: Device,
  batch: TrainBatch,
  at: { spec: LossSpec; outputs: PassOutputs },
): Promise<RecordedLoss> | RecordedLoss {
  if (isHostOnly(at.spec)) return hostLoss(device, batch, at);
  return Scratch.unlessThrown(device, (scratch) => deviceLoss(scratch, batch, at));
}

function deviceLoss(
  scratch: Scratch,
  batch: TrainBatch,
  { spec, outputs }: { spec: LossSpec; outputs: PassOutputs },
): RecordedLoss {
  const trained = trainedTokens(batch, outputs.sequences);
  const upload = (values: Float32Array | undefined, label: string) => values && scratch.upload(values, label);
  const { offsets } = outputs;
  const { level, values } = trained.advantages;
  const mask = new Uint32Array(trained.count).fill(1);
  const recorded = recordPolicyLoss(scratch.device, spec, {
    counts: countRows(offsets, mask),
    buffers: {
      logprobs: outputs.logprobs,
      entropy: outputs.entropies,
      mask: scratch.upload(mask, "mask"),
      offsets: scratch.upload(offsets, "row offsets"),
      trajectoryOfToken: scratch.upload(rowsOfTokens(offsets), "rows of tokens"),
      advantages: { level, values: scratch.upload(values, "advantages") },
      oldLogprobs: upload(trained.oldLogprobs, "old logprobs"),
      refLogprobs: upload(trained.refLogprobs, "reference logprobs"),
      isWeights: upload(trained.rolloutIsWeights, "importance weights"),
    },
  });
  const release = () => {
    recorded.release();
    scratch.release();
  };
  const dentropy = usesEntropies(spec) ? recorded.dentropy : undefined;
  return { ...recorded, dentropy, release, tokens: trained.count };
}

/** Reads the log-probs back, and uploads the loss's gradient. */
async function hostLoss(
  device: Device,
  batch: TrainBatch,
  { spec, outputs }: { spec: LossSpec; outputs: PassOutputs },
): Promise<RecordedLoss> {
  const trained = trainedTokens(batch, outputs.sequences);
  const [logprobs, entropy] = (await device.read([
    { buffer: outputs.logprobs, type: "f32" },
    { buffer: outputs.entropies, type: "f32" },
  ])) as [Float32Array, Float32Array];
  const mask = new Uint32Array(trained.count).fill(1);
  const result = policyLoss({ ...trained, offsets: outputs.offsets, mask, logprobs, entropy }, spec);
  return Scratch.unlessThrown(device, (scratch) => {
    const upload = (values: Float64Array, label: string) => scratch.upload(Float32Array.from(values), label);
    return {
      dlogprobs: upload(result.dlogprobs, "dlogprobs"),
      dentropy: result.dentropy && upload(result.dentropy, "dentropy"),
      reads: [],
      decode: () => ({ loss: result.loss, metrics: result.metrics }),
      release: () => scratch.release(),
      tokens: trained.count,
    };
  });
}

/** The loss's inputs for the trained tokens of sequences [from, to), end to end. */
function trainedTokens(batch: TrainBatch, range: { from: number; to: number }) {
  const at = trainedIndices(batch, range);
  const pick = (values: Float32Array) => Float32Array.from(at, (t) => values[t]!);
  const { level, values } = factorsOf(batch);
  return {
    count: at.length,
    advantages: { level, values: level === "token" ? pick(values) : values.slice(range.from, range.to) },
    oldLogprobs: batch.oldLogprobs && pick(batch.oldLogprobs),
    refLogprobs: batch.refLogprobs && pick(batch.refLogprobs),
    rolloutIsWeights: batch.rolloutIsWeights && pick(batch.rolloutIsWeights),
  };
}

/** Indices of the trained tokens of sequences [from, to) in the batch. */
export function trainedIndices(
  { mask, offsets }: Pick<TrainBatch, "mask" | "offsets">,
  { from, to }: { from: number; to: number },
): Uint32Array {
  const indices: number[] = [];
  for (let i = from; i < to; i++)
    for (let t = offsets[i]! + 1; t < offsets[i + 1]!; t++) if (mask[t] === 1) indices.push(t);
  return Uint32Array.from(indices);
}

/** Metrics that are shares of the batch's loss, which add up. The others are means over the tokens of a pass. */
const SUMMED = new Set(["actor/pg_loss", "actor/kl_loss", "actor/entropy"]);

/** The metrics of the batch from those of its passes. */
function combinePasses(passes: readonly (LossResult & { readonly tokens: number })[]): Metrics {
  const tokens = passes.reduce((sum, pass) => sum + pass.tokens, 0);
  const combined: Metrics = { "actor/loss": 0 };
  for (const pass of passes) {
    combined["actor/loss"]! += pass.loss;
    for (const [name, value] of Object.entries(pass.metrics)) {
      const share = SUMMED.has(name) || name.endsWith("kl_coef") ? 1 : pass.tokens / tokens;
      combined[name] = name.endsWith("kl_coef") ? value : (combined[name] ?? 0) + share * value;
    }
  }
  return combined;
}
