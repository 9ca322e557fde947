/** A pass in requests of the size that the service wants, and their results as one. Many requests at once. */
import type { Metrics } from "../../contract/backend.ts";
import { RemoteError } from "../../errors.ts";
import { bytesOfDatum, type Datum, type TrainingOutput } from "./protobuf_messages.ts";
import type { Flags } from "./session.ts";

/** Runs of data that fit into a request, by the service's bounds. */
export function* chunked(datums: readonly Datum[], flags: Flags): Generator<readonly Datum[]> {
  const { fwdbwd_max_chunk_len: most, fwdbwd_max_chunk_bytes_count: mostBytes } = flags;
  let chunk: Datum[] = [];
  let bytes = 0;
  for (const datum of datums) {
    const size = bytesOfDatum(datum);
    if (chunk.length > 0 && (chunk.length >= most || bytes + size > mostBytes)) {
      yield chunk;
      [chunk, bytes] = [[], 0];
    }
    chunk.push(datum);
    bytes += size;
  }
  if (chunk.length > 0) yield chunk;
}

/** @throws {RemoteError} for results that do not belong to the data. */
export function checkedOutput(output: TrainingOutput, data: readonly Datum[]): TrainingOutput {
  const fits =
    output.logprobs.length === data.length &&
    data.every(({ tokens }, i) => tokens.length === output.logprobs[i]!.length);
  if (fits) return output;
  throw new RemoteError(
    `The service sent log-probs of ${output.logprobs.length} rows where ${data.length} were asked for, or rows of another length.`,
    { retryable: false },
  );
}

/** Chunks' metrics as one: the part of a name after the colon says how. */
export function joinMetrics(outputs: readonly TrainingOutput[]): Metrics {
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

/** `Promise.all` of `map` with at most `most` running; the first failure stops the others. */
export async function inParallel<T, R>(
  items: readonly T[],
  of: { most: number; signal?: AbortSignal | undefined; map: (item: T, signal: AbortSignal) => Promise<R> },
): Promise<R[]> {
  const own = new AbortController();
  const signal = of.signal ? AbortSignal.any([of.signal, own.signal]) : own.signal;
  const results = new Array<R>(items.length);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const i = next++;
      // A signal each: hundreds of listeners on one would be taken for a leak.
      results[i] = await of.map(items[i]!, AbortSignal.any([signal]));
    }
  };
  try {
    await Promise.all(Array.from({ length: Math.min(of.most, items.length) }, worker));
  } catch (error) {
    own.abort(error);
    throw error;
  }
  return results;
}
