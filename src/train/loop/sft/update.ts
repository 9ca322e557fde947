/** One optimiser step on examples: the step of `grpu sft`, and of the warm-up of a training run. */
import type { Backend, LossSpec, Metrics, OptimParams, TrainBatch } from "../../../engine/contract/backend.ts";
import { type SupervisedBatch, totalWeight } from "./batch.ts";

const CROSS_ENTROPY: LossSpec = {
  name: "cross_entropy",
  loss_agg_mode: "token-mean",
  settings: {},
  entropy_coeff: 0,
  temperature: 1,
};

/**
 * Steps on the weighted mean of the tokens' cross-entropies, sum w * -log p / sum w, over all rows together.
 * @returns the metrics of the loss and of the optimiser, under their names without the part before the slash: `loss`,
 * `entropy`, `grad_norm`, `lr`, ...
 */
export async function supervisedStep(
  backend: Backend,
  batch: SupervisedBatch,
  { params }: { readonly params: OptimParams },
): Promise<Metrics> {
  const spec = lossOf(batch);
  const [loss, optim] = await gradientStep(backend, { batch, loss: spec, params });
  return plainNames({ ...withEntropy(loss, { batch, spec }), ...optim });
}

/** A batch's gradient and the optimiser step on it, together where the backend can. @returns the metrics of both */
export async function gradientStep(
  backend: Backend,
  { batch, loss, params }: { readonly batch: TrainBatch; readonly loss: LossSpec; readonly params: OptimParams },
): Promise<[Metrics, Metrics]> {
  const fused = await backend.forwardBackwardAndOptimStep?.([{ batch, loss }], params);
  if (fused) return [fused[0]!, fused[1]!];
  const metrics = await backend.forwardBackward(batch, loss);
  return [metrics, await backend.optimStep(params)];
}

/** The backend divides the sum of the entropies like that of the losses, but no weight acts on an entropy. */
function withEntropy(loss: Metrics, { batch: { mask }, spec }: { batch: SupervisedBatch; spec: LossSpec }): Metrics {
  const entropy = loss["actor/entropy"];
  if (entropy === undefined || spec.batch_num_tokens === undefined) return loss;
  const trained = mask.reduce((sum, each) => sum + each, 0);
  return { ...loss, "actor/entropy": (entropy * spec.batch_num_tokens) / trained };
}

/** Weights of 0 and 1 add up to the trained tokens, by which a loss divides by itself. */
function lossOf(batch: SupervisedBatch): LossSpec {
  const isPlain = batch.weights.every((weight, t) => weight === batch.mask[t]);
  return isPlain ? CROSS_ENTROPY : { ...CROSS_ENTROPY, batch_num_tokens: totalWeight(batch) };
}

/** `actor/pg_loss` of a supervised step is its cross-entropy. */
function plainNames(metrics: Metrics): Metrics {
  const name = (key: string) => key.replace(/^.*\//, "").replace("pg_loss", "loss");
  return Object.fromEntries(Object.entries(metrics).map(([key, value]) => [name(key), value]));
}
