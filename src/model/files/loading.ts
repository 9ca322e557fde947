/** How far the reading of a model's weights is, for whoever shows it to a person. */

export interface Loading {
  /** The folder, or what else the weights come from. */
  readonly name: string;
  /** Bytes of the files that have been read. */
  readonly done: number;
  readonly total: number;
}

let listener: ((loading: Loading) => void) | undefined;

/** Calls a function with every part of a model that is read in this process, in place of the one before. */
export function onLoading(next: ((loading: Loading) => void) | undefined): void {
  listener = next;
}

/** Counts tensors of these sizes; returns what is to be called with each one that has been read. */
export function startLoading(name: string, sizes: readonly number[]): (bytes: number) => void {
  const total = sizes.reduce((sum, bytes) => sum + bytes, 0);
  let done = 0;
  return (bytes) => {
    done += bytes;
    listener?.({ name, done, total });
  };
}
