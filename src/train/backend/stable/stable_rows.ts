/**
 * The rows of the loss `stable_reinforce`, which takes what the sampler of each token knew: so a row says where its tokens were sampled.
 * What follows a row's last sampled token moves nothing and has no place in a recorded sequence, so it is left out.
 */
import { STABLE_REINFORCE } from "../../../engine/algorithm/loss/service_losses.ts";
import type { LossSpec, PackedTokens, TrainBatch } from "../../../engine/contract/backend.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import type { SampledRecords, SampledSpan } from "./sampled_records.ts";
import { weightedAdvantages } from "./weighted_advantages.ts";

/** The rows that train, and where their tokens lie in the batch, [T of the rows]. */
export interface StableRows {
  readonly rows: PackedTokens;
  readonly places: Uint32Array;
  /** `advantages`, `logprobs`, `mask`: one element per token of the rows. */
  readonly inputs: Readonly<Record<string, Float32Array>>;
  /** Weight of the penalty at every trained token. */
  readonly klCoeff: number;
  /** Spans of every row, over its tokens. */
  readonly spans: readonly (readonly SampledSpan[])[];
}

/** Parts of the rows. `part`: the backend, for errors. */
export interface StableRequest {
  readonly spec: LossSpec;
  readonly records: SampledRecords;
  readonly part: string;
}

export function isStable({ name }: Pick<LossSpec, "name">): boolean {
  return name === STABLE_REINFORCE.name;
}

/**
 * @throws {ConfigError} for a trained token that was not recorded, and for a penalty on tokens of different weight
 * @throws {UnsupportedError} for a KL term to the reference
 */
export function stableRows(batch: TrainBatch, { spec, records, part }: StableRequest): StableRows {
  refuseReference(spec, part);
  const advantages = weightedAdvantages(batch, { ...spec, name: "cross_entropy", settings: {} });
  const [kept, spans, offsets]: [number[], SampledSpan[][], number[]] = [[], [], [0]];
  for (let row = 0; row + 1 < batch.offsets.length; row++) {
    const found = records.spansOf({ ...rowOf(batch, row), temperature: spec.temperature, row });
    const length = found.reduce((sum, span) => sum + span.length, 0);
    if (length === 0) continue;
    for (let t = 0; t < length; t++) kept.push(batch.offsets[row]! + t);
    spans.push(found);
    offsets.push(kept.length);
  }
  const places = Uint32Array.from(kept);
  const at = (values: Float32Array) => Float32Array.from(places, (place) => values[place]!);
  const klCoeff = klCoeffOf(batch, spec);
  return {
    rows: { tokens: places.map((at) => batch.tokens[at]!), offsets: Uint32Array.from(offsets) },
    places,
    inputs: {
      advantages: at(advantages),
      // The sampler's log-probs come with every loss, whether or not it reads them.
      ...(batch.rolloutLogprobs && { logprobs: at(batch.rolloutLogprobs) }),
      // A penalty counts at trained tokens alone.
      ...(klCoeff !== 0 && { mask: Float32Array.from(places, (place) => batch.mask[place]!) }),
    },
    klCoeff,
    spans,
  };
}

/** Values of the rows, at the tokens of the batch: 0 elsewhere. */
export function atPlaces(
  values: Float32Array,
  { places, tokens }: { places: Uint32Array; tokens: number },
): Float32Array {
  const joined = new Float32Array(tokens);
  for (const [i, at] of places.entries()) joined[at] = values[i]!;
  return joined;
}

function rowOf({ tokens, mask, offsets, rolloutLogprobs }: TrainBatch, row: number) {
  const range = [offsets[row]!, offsets[row + 1]!] as const;
  return {
    tokens: tokens.subarray(...range),
    mask: mask.subarray(...range),
    logprobs: rolloutLogprobs?.subarray(...range),
  };
}

/** The loss adds its penalty once a token, so that here it gets the weight that every token has. */
function klCoeffOf(batch: TrainBatch, spec: LossSpec): number {
  const { kl_coeff = 0 } = spec.settings;
  if (kl_coeff === 0) return 0;
  const values = new Float32Array(batch.offsets.length - 1).fill(1);
  const { rolloutIsWeights: _, ...plain } = batch;
  const ones: TrainBatch = { ...plain, advantages: { level: "row", values } };
  const shares = weightedAdvantages(ones, { ...spec, name: "cross_entropy", settings: {} }).filter(
    (_, t) => batch.mask[t],
  );
  const [share = 0] = shares;
  if (shares.every((other) => other === share)) return kl_coeff * share;
  throw new ConfigError(
    `Cannot train with kl_coeff ${kl_coeff} of stable_reinforce and loss_agg_mode ${spec.loss_agg_mode}: the loss adds the penalty with one weight for all tokens. Set rllm.algorithm.loss_agg_mode=token-mean, or kl_coeff to 0.`,
    { path: "rllm.algorithm.loss_args" },
  );
}

function refuseReference({ kl }: LossSpec, part: string): void {
  if (!kl || kl.coef === 0) return;
  throw new UnsupportedError(
    "Cannot train with stable_reinforce and a KL term to a reference: the loss is taken alone. Set rllm.algorithm.kl_beta=0; rllm.algorithm.loss_args.kl_coeff holds the policy to its sampler.",
    { part, capability: "kl" },
  );
}

/** Returns the error of a backend that keeps no records. */
export function notRecording(): ConfigError {
  return new ConfigError(
    "Cannot train with stable_reinforce: nothing was recorded while it was sampled. Open the backend with recordStabilityInfo, which a run does with rllm.algorithm.loss_fn=stable_reinforce.",
    { path: "rllm.algorithm.loss_fn" },
  );
}
