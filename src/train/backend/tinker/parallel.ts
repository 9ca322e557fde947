/** `Promise.all` of `map` with at most `most` calls running; the first failure aborts the others. */
export async function inParallel<T, R>(
  items: readonly T[],
  of: { most: number; signal?: AbortSignal | undefined; map: (item: T, signal: AbortSignal) => Promise<R> },
): Promise<R[]> {
  const calls = new Calls();
  const end = () => calls.end(of.signal?.reason);
  if (of.signal?.aborted) end();
  of.signal?.addEventListener("abort", end);
  const results: R[] = [];
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const i = next++;
      results[i] = await calls.run((signal) => of.map(items[i]!, signal));
    }
  };
  try {
    await Promise.all(Array.from({ length: Math.min(of.most, items.length) }, worker));
  } catch (error) {
    calls.end(error);
    throw error;
  } finally {
    of.signal?.removeEventListener("abort", end);
  }
  return results;
}

/**
 * Calls that end together. Each has a signal of its own, because Node warns of a leak when hundreds of listeners share one,
 * and `AbortSignal.any` leaves an entry of each call in a signal that lives as long as the run.
 */
export class Calls {
  private readonly running = new Set<AbortController>();
  private ended: { readonly reason: unknown } | undefined;

  /** @param also ends this call too */
  async run<R>(call: (signal: AbortSignal) => Promise<R>, also?: AbortSignal): Promise<R> {
    const abort = new AbortController();
    const end = () => abort.abort(also?.reason);
    if (this.ended) abort.abort(this.ended.reason);
    if (also?.aborted) end();
    also?.addEventListener("abort", end);
    this.running.add(abort);
    try {
      return await call(abort.signal);
    } finally {
      this.running.delete(abort);
      also?.removeEventListener("abort", end);
    }
  }

  end(reason: unknown): void {
    this.ended ??= { reason };
    for (const call of this.running) call.abort(reason);
  }
}
