/** Operations, tokens and busy seconds of a backend, by phase. */
import type { PhaseWork, WorkPhase } from "../../../engine/contract/backend.ts";

interface Tally {
  flop: number;
  tokens: number;
  seconds: number;
  /** Calls under way, and since when there is one, in ms. */
  calls: number;
  since: number;
}

export class WorkMeter {
  private readonly tallies = new Map<WorkPhase, Tally>();

  /** Does the work. What it counts for is known when it is done; a phase is busy while any of its calls runs. */
  async track<T>(
    phase: WorkPhase,
    work: () => Promise<T>,
    countOf: (result: T) => { readonly flop: number; readonly tokens: number },
  ): Promise<T> {
    const tally = this.tally(phase);
    if (tally.calls++ === 0) tally.since = performance.now();
    try {
      const result = await work();
      const { flop, tokens } = countOf(result);
      tally.flop += flop;
      tally.tokens += tokens;
      return result;
    } finally {
      if (--tally.calls === 0) tally.seconds += (performance.now() - tally.since) / 1000;
    }
  }

  /** Returns the work that was counted since the last call. */
  take(): Partial<Record<WorkPhase, PhaseWork>> {
    const now = performance.now();
    const taken: Partial<Record<WorkPhase, PhaseWork>> = {};
    for (const [phase, tally] of this.tallies) {
      const running = tally.calls > 0 ? (now - tally.since) / 1000 : 0;
      const { flop, tokens, seconds } = tally;
      taken[phase] = { flop, tokens, seconds: seconds + running };
      Object.assign(tally, { flop: 0, tokens: 0, seconds: 0, since: now });
    }
    return taken;
  }

  private tally(phase: WorkPhase): Tally {
    const tally = this.tallies.get(phase) ?? { flop: 0, tokens: 0, seconds: 0, calls: 0, since: 0 };
    this.tallies.set(phase, tally);
    return tally;
  }
}
