/** Progress of reading a model's weights, for a progress bar. */

export interface Loading {
  /** Path or address of the folder. */
  readonly name: string;
  /** Bytes read so far. */
  readonly done: number;
  /** Bytes. */
  readonly total: number;
}

let listener: ((loading: Loading) => void) | undefined;

/** Sets the one function of this process that is called after each tensor, in place of the previous one. */
export function onLoading(next: ((loading: Loading) => void) | undefined): void {
  listener = next;
}

/** Starts counting tensors of these sizes, bytes. @returns a function to call after each one with its size. */
export function startLoading(name: string, sizes: readonly number[]): (bytes: number) => void {
  const total = sizes.reduce((sum, bytes) => sum + bytes, 0);
  let done = 0;
  return (bytes) => {
    done += bytes;
    listener?.({ name, done, total });
  };
}
