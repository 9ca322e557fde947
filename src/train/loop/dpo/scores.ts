/** Log-probs of preferences under the policy and the reference, and the loss that follows from them. */
import {
  klBaseline,
  type PreferenceBatch,
  type PreferenceSpec,
  planPreference,
  preferenceLoss,
} from "../../../engine/algorithm/mod.ts";
import type { Backend, Metrics } from "../../../engine/contract/backend.ts";
import { forEachRow } from "../../../engine/packing/offsets.ts";
import { type SupervisedBatch, supervisedBatch } from "../sft/batch.ts";
import type { EncodedRow } from "../sft/encode.ts";
import type { EncodedPreference } from "./encode.ts";

/** Parts of a run that scoring needs. */
export interface PairScoring {
  readonly backend: Backend;
  readonly spec: PreferenceSpec;
  /** Most tokens of the rows from which KTO's baseline is estimated. */
  readonly maxLength: number;
  readonly reference: ReferenceScores;
}

/** A batch of preferences with its loss. */
export interface ScoredPreferences {
  /** Its mask is 1 at the tokens that the loss reads. */
  readonly batch: SupervisedBatch;
  readonly loss: number;
  /** d(loss)/d(logprob), [T]. */
  readonly dlogprobs: Float64Array;
  /** TRL's names: `rewards/chosen`, ..., and `entropy` where the backend measures it. */
  readonly metrics: Metrics;
}

/** Rows scored in one call; the backend cuts a call into passes that fit its memory. */
const ROWS = 128;

/** The log-probs of rows under the reference, each computed once: it does not change. */
export class ReferenceScores {
  private readonly known = new WeakMap<EncodedRow, Float32Array>();

  /** [T], for rows end to end. */
  async of(rows: readonly EncodedRow[], { backend, signal }: { backend: Backend; signal: AbortSignal }) {
    const missing = rows.filter((row) => !this.known.has(row));
    const { logprobs, offsets } = await logprobsOf(missing, { backend, signal, policy: "reference" });
    forEachRow(offsets, (i, first, end) => void this.known.set(missing[i]!, logprobs.slice(first, end)));
    const parts = rows.map((row) => this.known.get(row)!);
    const logprobs_T = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
    let at = 0;
    for (const part of parts) {
      logprobs_T.set(part, at);
      at += part.length;
    }
    return logprobs_T;
  }
}

/** Scores preferences and takes the loss over all of them, in float64 on the host. */
export async function scorePreferences(
  preferences: readonly EncodedPreference[],
  { backend, spec, maxLength, reference }: PairScoring,
  signal: AbortSignal,
): Promise<ScoredPreferences> {
  const { loss, nllWeight } = planPreference(spec);
  const rows = preferences.flatMap((preference) => preference.rows);
  // TRL's ORPO counts the likelihood of the prompt too.
  const readsAll = loss.name === "orpo" && nllWeight > 0;
  const { logprobs, entropy, ...batch } = await logprobsOf(rows, { backend, signal, policy: "current", readsAll });
  const completion = supervisedBatch(rows).mask;
  const scored: PreferenceBatch = {
    ...{ offsets: batch.offsets, mask: completion, nllMask: batch.mask, logprobs, places: rows },
    ...(loss.hasReference && { refLogprobs: await reference.of(rows, { backend, signal }) }),
    ...(loss.unit === "row" && { labels: Uint32Array.from(preferences, ({ label }) => Number(label)) }),
  };
  const kl = loss.unit === "row" ? await baseline(rows, { backend, maxLength, signal }) : undefined;
  const { loss: value, dlogprobs, metrics } = preferenceLoss(scored, { ...spec, kl });
  return { batch, loss: value, dlogprobs, metrics: { ...metrics, ...entropyMetric(entropy, completion) } };
}

/** Each prompt with the completion of the row before it, and the first with the last row's: TRL's estimate of the KL. */
async function baseline(
  rows: readonly EncodedRow[],
  { backend, maxLength, signal }: { backend: Backend; maxLength: number; signal: AbortSignal },
): Promise<number> {
  const mismatched = rows.map((row, i) => answeredBy(row, rows.at(i - 1)!, maxLength));
  const { logprobs, mask, offsets } = await logprobsOf(mismatched, { backend, signal, policy: "current" });
  const { logprobs: refLogprobs } = await logprobsOf(mismatched, { backend, signal, policy: "reference" });
  return klBaseline({ offsets, mask, logprobs, refLogprobs });
}

function answeredBy(row: EncodedRow, other: EncodedRow, maxLength: number): EncodedRow {
  const prompt = row.ids.slice(0, row.mask.indexOf(1));
  const from = other.mask.indexOf(1);
  return {
    ...row,
    ids: [...prompt, ...other.ids.slice(from)].slice(0, maxLength),
    mask: [...prompt.map(() => 0), ...other.mask.slice(from)].slice(0, maxLength),
  };
}

interface LogprobOptions {
  readonly backend: Backend;
  readonly signal: AbortSignal;
  readonly policy: "current" | "reference";
  /** True: every token that has one before it, not the completions' alone. */
  readonly readsAll?: boolean;
}

interface RowLogprobs extends SupervisedBatch {
  /** [T]. */
  readonly logprobs: Float32Array;
  /** [T]; absent where the backend does not measure it. */
  readonly entropy?: Float32Array | undefined;
}

/** The rows end to end with their log-probs; 0 where the mask is 0. */
async function logprobsOf(
  rows: readonly EncodedRow[],
  { backend, signal, policy, readsAll = false }: LogprobOptions,
): Promise<RowLogprobs> {
  const batchOf = (some: readonly EncodedRow[]) =>
    supervisedBatch(readsAll ? some.map((row) => ({ ids: row.ids, mask: row.ids.map(() => 1) })) : some);
  const batch = batchOf(rows);
  const logprobs_T = new Float32Array(batch.tokens.length);
  const entropy_T = new Float32Array(batch.tokens.length);
  let isMeasured = true;
  for (let from = 0; from < rows.length; from += ROWS) {
    signal.throwIfAborted();
    const part = batchOf(rows.slice(from, from + ROWS));
    const scores = await backend.logprobs(part, { policy, temperature: 1, mask: part.mask });
    logprobs_T.set(scores.logprobs, batch.offsets[from]!);
    if (scores.entropy) entropy_T.set(scores.entropy, batch.offsets[from]!);
    else isMeasured = false;
  }
  return { ...batch, logprobs: logprobs_T, ...(isMeasured && { entropy: entropy_T }) };
}

/** The mean over the completions' tokens. */
function entropyMetric(entropy: Float32Array | undefined, mask: Uint32Array): Metrics {
  if (!entropy) return {};
  const [sum, count] = mask.reduce(([total, n], weight, t) => [total + weight * entropy[t]!, n + weight], [0, 0]);
  return { entropy: sum / count };
}
