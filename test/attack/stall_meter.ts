/** How long the event loop of this process stood still, as far as the process itself was the reason. */

const TICK_MS = 10;

/**
 * The longest stretch between two ticks of a timer, of which only what the process worked counts: on a machine that
 * others use as well a process also waits for its turn.
 */
export class StallMeter {
  private longest = 0;
  private last = now();
  private readonly timer = setInterval(() => this.tick(), TICK_MS);

  private tick(): void {
    const { wall, worked } = now();
    const stood = Math.min(wall - this.last.wall, worked - this.last.worked) - TICK_MS;
    this.longest = Math.max(this.longest, stood);
    this.last = { wall, worked };
  }

  /** Milliseconds since the last call. */
  take(): number {
    this.tick();
    const { longest } = this;
    this.longest = 0;
    return longest;
  }

  close(): void {
    clearInterval(this.timer);
  }
}

function now(): { wall: number; worked: number } {
  const { user, system } = process.cpuUsage();
  return { wall: performance.now(), worked: (user + system) / 1000 };
}
