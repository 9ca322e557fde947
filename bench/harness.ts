/** What the benchmarks share: timing with its spread, and results for people, for machines (`--json`) and for the history. */
import type { Device } from "../src/engine/compute/device.ts";
import { openDevice } from "../src/engine/compute/open.ts";
import { type Figure, formatRate } from "./history.ts";

/** Seconds of the repeated runs. */
export interface Timing {
  readonly median: number;
  readonly least: number;
  readonly most: number;
}

export interface TimeOptions {
  /** Timed runs. Default 5. */
  readonly rounds?: number;
  /** Untimed runs first, for compilation and caches. Default 1. */
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

/** Seconds of all processors that this process takes for `run`: less noisy than the clock on a machine that others use. */
export async function processorSeconds(run: () => Promise<unknown>): Promise<number> {
  const before = process.cpuUsage();
  await run();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1e6;
}

export interface Line {
  readonly what: string;
  /** At the median time; higher is better. */
  readonly rate: number;
  readonly unit: string;
  readonly timing: Timing;
  /** For people only. */
  readonly detail?: string;
  /** A ceiling or a peer's rate, measured in the same run. */
  readonly against?: { readonly name: string; readonly rate: number } | undefined;
}

/** The figures reported so far. */
export const figures: Omit<Figure, "date" | "commit">[] = [];

let bench = "";
let device: Pick<Figure, "device" | "driver"> = { device: "none", driver: "" };

/** Sets the benchmark whose name goes before those of its figures. */
export function begin(name: string): void {
  bench = name;
  device = { device: "none", driver: "" };
}

/** Opens the device and notes it for the figures to come. */
export async function openBenchDevice(): Promise<Device> {
  const opened = await openDevice();
  const { description, vendor, architecture } = opened.info;
  device = { device: description, driver: [vendor, architecture].filter(Boolean).join(" ") };
  return opened;
}

/** Prints one result and notes it. */
export function report(line: Line): void {
  const { what, rate, unit, timing, against, detail } = line;
  const figure = {
    ...device,
    name: `${bench}: ${what}`,
    value: rate,
    unit,
    low: (rate * timing.median) / timing.most,
    high: (rate * timing.median) / timing.least,
    ...(against && { peer: against.name, ratio: rate / against.rate }),
  };
  figures.push(figure);
  if (isForMachines()) {
    console.log(JSON.stringify(figure));
    return;
  }
  const spread = `${milliseconds(timing.median)} ms (${milliseconds(timing.least)}-${milliseconds(timing.most)})`;
  const ratio = against ? `  ${((100 * rate) / against.rate).toFixed(0)}% of ${against.name}` : "";
  console.log(
    `  ${[what, detail].filter(Boolean).join(", ").padEnd(46)} ${formatRate(rate).padStart(10)} ${unit.padEnd(10)} ${spread}${ratio}`,
  );
}

/** A figure that is counted, or a cost. */
export interface Count {
  readonly what: string;
  /** Lower is better, unless `isGain`. */
  readonly value: number;
  readonly unit: string;
  readonly isGain?: boolean;
  /** Of figures that are measured: their range. */
  readonly low?: number;
  readonly high?: number;
  /** The device that it was measured on. Default: the one of the figures to come. */
  readonly on?: Pick<Figure, "device" | "driver">;
}

/** Prints one count and notes it. */
export function count({ what, value, unit, low = value, high = value, on = device, isGain }: Count): void {
  const figure = { ...on, name: `${bench}: ${what}`, value, unit, low, high, ...(!isGain && { lowerIsBetter: true }) };
  figures.push(figure);
  if (isForMachines()) console.log(JSON.stringify(figure));
  else console.log(`  ${what.padEnd(78)} ${formatRate(value).padStart(18)} ${unit}`);
}

/** Notes the figures to come as counted for a device that is not here. Returns the one before. */
export function countedOn(description: string): Pick<Figure, "device" | "driver"> {
  const before = device;
  device = { device: description, driver: "" };
  return before;
}

/** A heading, for people. */
export function heading(text: string): void {
  if (!isForMachines()) console.log(`\n${text}`);
}

/** A remark that is no figure, for people. */
export function remark(text: string): void {
  if (!isForMachines()) console.log(`  ${text}`);
}

/** Stops a benchmark whose result is wrong: the speed of a wrong result means nothing. */
export function check(isRight: boolean, what: string): void {
  if (!isRight) throw new Error(`Cannot time ${what}: the result is wrong. Run its tests.`);
}

const isForMachines = () => process.argv.includes("--json");
const milliseconds = (seconds: number) => (seconds * 1000).toFixed(1);
