/** `Promise.all` of `map` with at most `most` calls running; the first failure aborts the others. */
export async function inParallel<T, R>(
  items: readonly T[],
  of: { most: number; signal?: AbortSignal | undefined; map: (item: T, signal: AbortSignal) => Promise<R> },
): Promise<R[]> {
  const own = new AbortController();
  const signal = of.signal ? AbortSignal.any([of.signal, own.signal]) : own.signal;
  const results: R[] = [];
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const i = next++;
      // One signal per call: Node warns of a leak when hundreds of listeners share one.
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
