/** Stores of a run's checkpoints. */

export interface Checkpoint<State> {
  /** Holds what the backend wrote. */
  readonly dir: string;
  readonly state: State;
}

/** Measure by which a checkpoint is the best so far. */
export interface Best {
  readonly metric: string;
  readonly value: number;
}

export interface CheckpointContents<State> {
  readonly state: State;
  readonly write: (dir: string) => Promise<void>;
  /** The checkpoint is the best of the run so far: it is kept, in addition to the newest, until a better one exists. */
  readonly best?: Best | undefined;
}

/** `State` is plain JSON. */
export interface CheckpointStore<State> {
  /**
   * Makes a checkpoint called `name` of what `write` puts into an empty folder, and of `state`. It is there whole or
   * not at all: when writing fails, the checkpoints before it are as they were.
   */
  save(name: string, contents: CheckpointContents<State>): Promise<void>;
  /** The last checkpoint that this process saved, to which a run returns that loses its GPU. */
  readonly lastSaved?: Checkpoint<State> | undefined;
  /** The checkpoint to continue from; undefined to start a new run. */
  find(): Promise<Checkpoint<State> | undefined>;
}
