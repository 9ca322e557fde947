/** Long work in slices, so that one large request does not delay the others. */

/** Bytes processed between two yields: about ten milliseconds. */
export const SLICE_BYTES = 2 ** 21;

/** Yields to timers and sockets. */
export function yieldToEventLoop(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 0));
}
