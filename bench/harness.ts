/** What the benchmarks share: repeated timing with its spread, and lines for people or for machines (`--json`). */

export interface Timing {
  readonly median: number;
  /** Quickest and slowest, seconds. */
  readonly least: number;
  readonly most: number;
}

export interface TimeOptions {
  /** Runs that count. Default 5. */
  readonly rounds?: number;
  /** Runs before, for compilation and caches. Default 1. */
  readonly warmup?: number;
}

/** Times `run` as a whole, in seconds. */
export async function time(run: () => Promise<unknown>, options: TimeOptions = {}): Promise<Timing> {
  const { rounds = 5, warmup = 1 } = options;
  for (let i = 0; i < warmup; i++) await run();
  const seconds: number[] = [];
  for (let i = 0; i < rounds; i++) {
    const start = performance.now();
    await run();
    seconds.push((performance.now() - start) / 1000);
  }
  seconds.sort((a, b) => a - b);
  return { median: seconds[seconds.length >> 1]!, least: seconds[0]!, most: seconds[seconds.length - 1]! };
}

export interface Line {
  readonly what: string;
  readonly rate: number;
  readonly unit: string;
  readonly timing: Timing;
  /** Share of a ceiling or a peer's rate, measured in the same run. */
  readonly against?: { readonly name: string; readonly rate: number } | undefined;
}

/** Prints one result. */
export function report(line: Line): void {
  const { what, rate, unit, timing, against } = line;
  if (process.argv.includes("--json")) {
    console.log(JSON.stringify({ ...line, ratio: against && rate / against.rate }));
    return;
  }
  const spread = `${(timing.median * 1000).toFixed(1)} ms (${(timing.least * 1000).toFixed(1)}-${(timing.most * 1000).toFixed(1)})`;
  const ratio = against ? `  ${((100 * rate) / against.rate).toFixed(0)}% of ${against.name}` : "";
  console.log(`  ${what.padEnd(46)} ${format(rate).padStart(10)} ${unit.padEnd(10)} ${spread}${ratio}`);
}

/** A heading, for people. */
export function heading(text: string): void {
  if (!process.argv.includes("--json")) console.log(`\n${text}`);
}

function format(rate: number): string {
  return rate >= 1000 ? Math.round(rate).toLocaleString("en") : rate.toPrecision(3);
}

/** Stops a benchmark whose result is wrong: a fast wrong answer is no figure. */
export function check(isRight: boolean, what: string): void {
  if (!isRight) throw new Error(`Cannot time ${what} as its result is wrong`);
}
