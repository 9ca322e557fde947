/** Where a run's checkpoints are kept. */

export interface Checkpoint<State> {
  /** Holds what the backend wrote. */
  readonly dir: string;
  readonly state: State;
}

/** `State` is plain JSON. */
export interface CheckpointStore<State> {
  /**
   * Makes a checkpoint called `name` of what `write` puts into an empty folder, and of `state`. It is there whole or
   * not at all: when writing fails, the checkpoints before it are as they were.
   */
  save(name: string, contents: { state: State; write: (dir: string) => Promise<void> }): Promise<void>;
  /** The checkpoint to go on from; undefined to start afresh. */
  find(): Promise<Checkpoint<State> | undefined>;
}
