/**
 * Records what a device and its user did, in order of time: the runs of kernels, the host's calls and waits, and named
 * spans.
 */
import type { Device } from "../device.ts";
import type { DeviceObserver, HostEvent, KernelRuns, Observation } from "../observer.ts";

/** Something with a name, from `start` to `end` in ms of `performance.now()`. */
export interface Span {
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

/** The most that is kept of each kind, so that a trace opens in a browser. */
export interface ProfileLimits {
  /** Runs of kernels. Default 200,000. */
  readonly runs?: number;
  /** Events of the host. Default 100,000. */
  readonly events?: number;
}

/** How much was left out, because the profile was full. */
export interface LeftOut {
  /** When kernels were no longer timed, in ms of `performance.now()`. Absent: all were. */
  readonly kernelsAfter?: number;
  readonly hostEvents: number;
  readonly spans: number;
}

/**
 * A profile in memory. Attached to a device it takes the time of each kernel's run, until it is full; then the device runs at
 * its own speed again.
 */
export class Profile implements DeviceObserver {
  readonly start: number = performance.now();
  readonly spans: Span[] = [];
  readonly events: HostEvent[] = [];
  readonly batches: KernelRuns[] = [];
  private readonly limits: Required<ProfileLimits>;
  private runs = 0;
  private fullAt: number | undefined;
  private droppedEvents = 0;
  private droppedSpans = 0;
  private observation: Observation | undefined;

  constructor({ runs = 200_000, events = 100_000 }: ProfileLimits = {}) {
    this.limits = { runs, events };
  }

  /** Watches a device. Only one at a time. */
  attach(device: Pick<Device, "observe">): void {
    this.observation = device.observe?.(this);
  }

  /** Reason why there are no times of kernels; undefined where there are. */
  get untimed(): string | undefined {
    return this.observation ? this.observation.untimed : "the backend has no device of its own";
  }

  get timesKernels(): boolean {
    return this.fullAt === undefined;
  }

  get leftOut(): LeftOut {
    const kernels = this.fullAt === undefined ? {} : { kernelsAfter: this.fullAt };
    return { ...kernels, hostEvents: this.droppedEvents, spans: this.droppedSpans };
  }

  host(event: HostEvent): void {
    if (this.events.length < this.limits.events) this.events.push(event);
    else this.droppedEvents++;
  }

  ran(runs: KernelRuns): void {
    this.batches.push(runs);
    this.runs += runs.kernels.length;
    if (this.runs >= this.limits.runs) this.fullAt ??= performance.now();
  }

  /** Adds a phase of the program. */
  span(span: Span): void {
    if (this.spans.length < this.limits.events) this.spans.push(span);
    else this.droppedSpans++;
  }

  /** Ends the observation; resolves when everything has arrived. */
  async stop(): Promise<void> {
    await this.observation?.stop();
  }
}

/** A run of a kernel, in ms of `performance.now()`. */
export interface KernelRun extends Span {}

/**
 * The runs of kernels on the host's clock. The GPU's starts anywhere; work begins after it was submitted, so the two differ by
 * the largest difference seen, which is exact where the GPU was idle.
 */
export function* kernelRuns(batches: readonly KernelRuns[]): Generator<KernelRun> {
  let shift = Number.NEGATIVE_INFINITY;
  for (const { times, host } of batches)
    if (host && isTimed(times, 0)) shift = Math.max(shift, host.submitted - times[0]!);
  for (const { kernels, times, host } of batches) {
    const by = host ? shift : 0;
    for (const [i, name] of kernels.entries())
      if (isTimed(times, i)) yield { name, start: times[2 * i]! + by, end: times[2 * i + 1]! + by };
  }
}

/** Drivers leave out times now and then: 0, or an end before its start. */
function isTimed(times: Float64Array, i: number): boolean {
  return times[2 * i]! > 0 && times[2 * i + 1]! >= times[2 * i]!;
}
