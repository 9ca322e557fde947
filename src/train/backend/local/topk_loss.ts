/** Distillation losses over the teacher's most likely tokens: those of the teacher, and the student's gradient. */
import { forEachWeighted } from "../../../engine/algorithm/loss/aggregation.ts";
import { countRows, recordTopk, type TopkSettings, tokenWeights, topkPlan } from "../../../engine/algorithm/mod.ts";
import type { Device } from "../../../engine/compute/device.ts";
import type { LossSpec, Metrics, PackedTokens, TopTokens, TrainBatch } from "../../../engine/contract/backend.ts";
import type { LanguageModel, PassLoss, PassOutputs } from "../../../engine/model/language_model.ts";
import { largest, mean, smallest } from "../../../leaves/statistics.ts";
import { checkBatch, trainedIndices, withBatchTotals } from "./policy_loss.ts";

/** The `k` most likely tokens in the place of each token whose mask is 1; fewer where the vocabulary is smaller. */
export async function topTokens(
  model: LanguageModel,
  rows: PackedTokens,
  options: { policy: "current" | "reference"; temperature: number; mask: Uint32Array; k: number },
): Promise<TopTokens> {
  const { mask, policy, temperature } = options;
  const k = Math.min(options.k, model.config.vocabSize);
  const top = await model.top({ ...rows, mask }, { policy, temperature, k });
  const length = rows.tokens.length * k;
  const placed = { k, tokens: new Uint32Array(length), logprobs: new Float32Array(length) };
  const at = trainedIndices({ ...rows, mask }, { from: 0, to: rows.offsets.length - 1 });
  for (const [r, t] of at.entries()) {
    placed.tokens.set(top.tokens.subarray(r * k, (r + 1) * k), t * k);
    placed.logprobs.set(top.logprobs.subarray(r * k, (r + 1) * k), t * k);
  }
  return placed;
}

/**
 * Adds the gradient of a distillation loss over the teacher's top tokens to a model's gradient, pass by pass. The settings
 * of the spec are `log_prob_min_clamp`, `loss_max_clamp` and `coef`, the weight of the whole loss.
 * @returns the metrics of verl's distillation
 * @throws ConfigError for a mode that is not published, or a batch without a trained token
 */
export async function accumulateTopk(model: LanguageModel, batch: TrainBatch, lossSpec: LossSpec): Promise<Metrics> {
  checkBatch(batch);
  const spec = withBatchTotals(batch, lossSpec);
  const shares = sharesOf(batch, spec);
  const places = trainedIndices(batch, { from: 0, to: batch.offsets.length - 1 });
  const passes = await model.accumulate(targetsOf(batch, places), {
    temperature: spec.temperature,
    loss: (outputs) => passLoss(model.device, batch, { spec, shares, outputs }),
  });
  const losses = passes.flatMap(({ loss, data }) => {
    const { values, masses } = loss.decode(data);
    return Array.from(values, (value, i) => ({ value, mass: masses[i]!, weight: loss.weights[i]! }));
  });
  return topkMetrics(losses, teacherMasses(batch, places));
}

/** The share of each trained token in the loss, [T]; 0 elsewhere. */
function sharesOf(batch: TrainBatch, spec: LossSpec): Float32Array {
  const rows = countRows(batch.offsets, batch.mask);
  const weights = tokenWeights(spec.loss_agg_mode, rows, spec);
  const { coef = 1 } = spec.settings;
  const shares = new Float32Array(batch.tokens.length);
  forEachWeighted(batch, { weights, rows }, (t, weight) => {
    shares[t] = coef * weight;
  });
  return shares;
}

/** The teacher's tokens of every place, after the position before it. */
function targetsOf({ tokens, offsets, teacherTop }: TrainBatch, at: Uint32Array) {
  const { k, tokens: top } = teacherTop!;
  const targets = new Uint32Array(at.length * k);
  const positions = new Uint32Array(at.length * k);
  for (const [r, t] of at.entries()) {
    targets.set(top.subarray(t * k, (t + 1) * k), r * k);
    positions.fill(t - 1, r * k, (r + 1) * k);
  }
  return { tokens, offsets, targets, positions };
}

function passLoss(
  device: Device,
  batch: TrainBatch,
  { spec, shares, outputs }: { spec: LossSpec; shares: Float32Array; outputs: PassOutputs },
): PassLoss & Pick<ReturnType<typeof recordTopk>, "decode"> & { weights: Float32Array } {
  const { k, logprobs } = batch.teacherTop!;
  const at = trainedIndices(batch, outputs.sequences);
  const weights = Float32Array.from(at, (t) => shares[t]!);
  const teacher = new Float32Array(at.length * k);
  for (const [r, t] of at.entries()) teacher.set(logprobs.subarray(t * k, (t + 1) * k), r * k);
  const recorded = recordTopk(device, topkPlan(spec.name, settingsOf(spec)), {
    student: outputs.logprobs,
    teacher,
    weights,
  });
  return { ...recorded, weights };
}

function settingsOf({ settings }: LossSpec): TopkSettings {
  const { log_prob_min_clamp = null, loss_max_clamp = null } = settings;
  return { log_prob_min_clamp, loss_max_clamp };
}

function teacherMasses({ teacherTop }: TrainBatch, at: Uint32Array): number[] {
  const { k, logprobs } = teacherTop!;
  return Array.from(at, (t) =>
    logprobs.subarray(t * k, (t + 1) * k).reduce((sum, logprob) => sum + Math.exp(logprob), 0),
  );
}

/** verl's names. */
function topkMetrics(
  losses: readonly { value: number; mass: number; weight: number }[],
  teacher: readonly number[],
): Metrics {
  const values = losses.map(({ value }) => value);
  const student = losses.map(({ mass }) => mass);
  return {
    "distillation/loss": losses.reduce((sum, { value, weight }) => sum + value * weight, 0),
    "distillation/loss_min": smallest(values),
    "distillation/loss_max": largest(values),
    "distillation/student_mass": mean(student),
    "distillation/student_mass_min": smallest(student),
    "distillation/student_mass_max": largest(student),
    "distillation/teacher_mass": mean(teacher),
    "distillation/teacher_mass_min": smallest(teacher),
    "distillation/teacher_mass_max": largest(teacher),
  };
}
