/** Long work in slices, so that one large request keeps nobody else waiting. */

/** Bytes worked on between two breaths: some ten milliseconds. */
export const SLICE_BYTES = 2 ** 21;

/** Lets timers and sockets have their turn. */
export function breathe(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 0));
}
