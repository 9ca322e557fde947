/**
 * A policy loss in the service's terms. The service sums; so the weight of each token under `loss_agg_mode`, and that of
 * the rollout correction, ride in its advantage. Losses that the service lacks, and all with a KL term, are taken here:
 * their gradient by each log-prob goes there as the weight of a cross-entropy, which is exact for any loss.
 */
import { resolveLoss } from "../../algorithm/loss/resolve.ts";
import {
  advantageReader,
  checkAdvantages,
  countRows,
  factorsOf,
  type HostLoss,
  policyLoss,
  weightOfRow,
} from "../../algorithm/mod.ts";
import type { LossSpec, TrainBatch } from "../../contract/backend.ts";
import { UnsupportedError } from "../../errors.ts";
import type { Datum } from "./protobuf_messages.ts";

/** What a forward_backward asks for. */
export interface ServiceLoss {
  readonly lossFn: string;
  readonly config: Readonly<Record<string, number>>;
  /** Arrays of the datums, [T] over the batch's tokens; `target_tokens` aside. */
  readonly inputs: Readonly<Record<string, Float32Array>>;
}

const THRESHOLDS = ["clip_low_threshold", "clip_high_threshold"];

/** The service's losses that scale with the advantage, and their settings. `dro` does not: it is taken here. */
const SERVICE_LOSSES: Readonly<Record<string, readonly string[]>> = {
  cross_entropy: [],
  importance_sampling: [],
  ppo: THRESHOLDS,
  cispo: THRESHOLDS,
};

/** The service's name of a loss. verl's `cispo` and `dro` are others than Tinker's. */
function serviceName(name: string): string | undefined {
  const bare = name.startsWith("tinker.") ? name.slice("tinker.".length) : name === "cispo" ? "" : name;
  return Object.hasOwn(SERVICE_LOSSES, bare) ? bare : undefined;
}

/**
 * The loss as the service takes it in one pass; undefined for one that has to be taken here.
 * @throws {UnsupportedError} for a temperature other than 1 or an entropy bonus.
 */
export function serviceLoss(batch: TrainBatch, spec: LossSpec): ServiceLoss | undefined {
  refuseUnsupported(spec);
  const name = serviceName(spec.name);
  if (name === undefined || spec.kl) return undefined;
  const advantages = weightedAdvantages(batch, spec);
  // On policy, the gradient of each of them is that of a cross-entropy.
  if (name === "cross_entropy" || !batch.oldLogprobs)
    return { lossFn: "cross_entropy", config: {}, inputs: { weights: advantages } };
  const config = Object.fromEntries(
    SERVICE_LOSSES[name]!.filter((key) => key in spec.settings).map((key) => [key, spec.settings[key]!]),
  );
  return { lossFn: name, config, inputs: { logprobs: batch.oldLogprobs, advantages } };
}

function refuseUnsupported({ temperature, entropy_coeff }: LossSpec): void {
  const about = (capability: string) => ({ part: "tinker", capability });
  if (temperature !== 1)
    throw new UnsupportedError(
      `Cannot train at temperature ${temperature} as the service's log-probs are at temperature 1: set rllm.rollout.train.temperature=1`,
      about("temperature"),
    );
  if (entropy_coeff !== 0)
    throw new UnsupportedError(
      "Cannot take an entropy bonus as the service tells no entropies: set entropy_coeff=0",
      about("entropy_coeff"),
    );
}

/** [T]: each trained token's advantage times its share of the loss; 0 elsewhere. */
function weightedAdvantages(batch: TrainBatch, spec: LossSpec): Float32Array {
  const { offsets, mask, rolloutIsWeights: correction } = batch;
  const counts = countRows(offsets, mask);
  const { weight } = resolveLoss(spec, counts);
  const size = { rows: counts.trained.length, tokens: counts.tokens };
  const advantage = advantageReader(checkAdvantages(factorsOf(batch), size));
  const weighted = new Float32Array(mask.length);
  for (let row = 0; row + 1 < offsets.length; row++) {
    const share = weightOfRow(weight, counts.trained[row]!);
    for (let t = offsets[row]!; t < offsets[row + 1]!; t++)
      if (mask[t] !== 0) weighted[t] = advantage(t, row) * share * (correction?.[t] ?? 1);
  }
  return weighted;
}

/**
 * The loss here, in float64: value, metrics and gradient at log-probs that the service computed.
 * @param logprobs [T], at trained tokens
 */
export function hostLoss(batch: TrainBatch, spec: LossSpec, logprobs: Float32Array): HostLoss {
  return policyLoss({ ...batch, logprobs, advantages: factorsOf(batch) }, spec);
}

/** What the service is given of a loss that is taken here: the first pass tells the log-probs alone. */
export const NO_LOSS: Pick<ServiceLoss, "lossFn" | "config"> = { lossFn: "cross_entropy", config: {} };

/** The weights of a cross-entropy with the gradient of a loss: minus its slope at every token. */
export function slopesAsWeights({ dlogprobs }: HostLoss): Float32Array {
  return Float32Array.from(dlogprobs, (slope) => (slope === 0 ? 0 : -slope));
}

type Rows = Pick<TrainBatch, "tokens" | "offsets">;

/** Rows that have a target: those of one token say nothing. */
function rowsWithTargets({ offsets }: Rows): number[] {
  return Array.from({ length: offsets.length - 1 }, (_, row) => row).filter(
    (row) => offsets[row + 1]! - offsets[row]! > 1,
  );
}

/** The rows of a batch as datums: every token but the last is an input, every one but the first a target. */
export function datumsOf(batch: Rows, inputs: ServiceLoss["inputs"]): Datum[] {
  const { tokens, offsets } = batch;
  return rowsWithTargets(batch).map((row) => {
    const [first, end] = [offsets[row], offsets[row + 1]];
    const parts = Object.entries(inputs).map(
      ([name, values]) => [name, values.slice(first! + 1, end)] as const,
    );
    return {
      tokens: Int32Array.from(tokens.subarray(first, end! - 1)),
      inputs: {
        target_tokens: asInt64(tokens.subarray(first! + 1, end)),
        ...Object.fromEntries(parts),
      },
    };
  });
}

/** A low and a high half each, as the wire has them. */
function asInt64(ids: Uint32Array): BigInt64Array {
  const halves = new Uint32Array(2 * ids.length);
  for (let i = 0; i < ids.length; i++) halves[2 * i] = ids[i]!;
  return new BigInt64Array(halves.buffer);
}

/** The inverse for results: what the service says of the targets, at the tokens that they are; 0 at first tokens. */
export function atTokens(datums: readonly Float32Array[], batch: Rows): Float32Array {
  const all = new Float32Array(batch.tokens.length);
  const rows = rowsWithTargets(batch);
  for (const [i, values] of datums.entries()) all.set(values, batch.offsets[rows[i]!]! + 1);
  return all;
}
