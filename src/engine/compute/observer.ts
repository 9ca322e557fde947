/** Types of an observer of a device, and of the work that it receives. Times in ms of `performance.now()`, unless said otherwise. */

/** An act of the host: it compiled pipelines, encoded and submitted work, or waited for it, with results to read or without. */
export interface HostEvent {
  readonly kind: "compile" | "submit" | "wait" | "read-back";
  readonly start: number;
  readonly end: number;
  /** Number of dispatches of a submit. */
  readonly dispatches?: number;
  /** Number of bytes of a read-back. */
  readonly bytes?: number;
}

/** Runs of kernels, in their order. Run i took from `times[2 * i]` to `times[2 * i + 1]`. */
export interface KernelRuns {
  readonly kernels: readonly string[];
  /** Times in ms: of the GPU's clock with `host`, else of the host's. */
  readonly times: Float64Array;
  /** Just before the host submitted the work, and when it knew that all of it was done: between them lie the runs. */
  readonly host?: { readonly submitted: number; readonly done: number } | undefined;
}

/** Watches a device. Its calls must be quick and must not throw. */
export interface DeviceObserver {
  /** Whether each kernel's run is to be timed, asked at each submit. On a GPU every dispatch is then a pass of its own. */
  readonly timesKernels: boolean;
  host(event: HostEvent): void;
  ran(runs: KernelRuns): void;
}

/** An observer at its device. */
export interface Observation {
  /** Reason why kernels are not timed; undefined where they are. */
  readonly untimed: string | undefined;
  /** Ends it; resolves when all times have arrived. */
  stop(): Promise<void>;
}
