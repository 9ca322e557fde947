/** The results of a pass's requests, checked and joined. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { RemoteError } from "../../../leaves/errors.ts";
import type { TrainingDatum } from "./datums.ts";

export interface TrainingReply {
  /** One array per datum, at its targets, [L] each. */
  readonly logprobs: readonly Float32Array[];
  /** Metrics by `name:reduction`, for instance `loss:sum`. */
  readonly metrics: Readonly<Record<string, number>>;
}

/** @throws {RemoteError} for an output that does not match the data. */
export function checkedOutput(output: TrainingReply, data: readonly TrainingDatum[]): TrainingReply {
  const fits =
    output.logprobs.length === data.length &&
    data.every(({ tokens }, i) => tokens.length === output.logprobs[i]!.length);
  if (fits) return output;
  throw new RemoteError(
    `Cannot use the service's result: it has log-probs of ${output.logprobs.length} rows for a request of ${data.length} rows, or rows of another length.`,
    { retryable: false },
  );
}

/** Joins metrics by their reduction: the part of a name after the colon. */
export function joinOutputMetrics(outputs: readonly TrainingReply[]): Metrics {
  const rows = outputs.reduce((sum, { logprobs }) => sum + logprobs.length, 0);
  const joined: Metrics = {};
  for (const { metrics, logprobs } of outputs)
    for (const [name, value] of Object.entries(metrics)) {
      const before = joined[name];
      if (name.endsWith(":sum")) joined[name] = (before ?? 0) + value;
      else if (name.endsWith(":mean")) joined[name] = (before ?? 0) + (value * logprobs.length) / rows;
      else if (name.endsWith(":min")) joined[name] = Math.min(before ?? value, value);
      else joined[name] = name.endsWith(":max") ? Math.max(before ?? value, value) : (before ?? value);
    }
  return joined;
}
