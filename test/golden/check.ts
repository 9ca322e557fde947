/** Runs `grpu train` and compares its metrics with stored ones. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { RUNS } from "./runs.ts";

/** A line of metrics.jsonl. */
export interface Line {
  readonly phase: string;
  readonly step: number;
  readonly [metric: string]: unknown;
}

/** Metrics that depend on the machine. */
const MEASURED = /^(time|timing|perf|throughput|async.trainer_idle_ratio)|time_s|_per_s|seconds|memory/;
/** Counts values below 1e-8: whether a reward at the mean of unequal ones is depends on how a device rounds that mean. */
const ROUNDED = /\/fraction_zero$/;
/** `cpu` computes in float64 within kernels, so that only rounding to float32 differs; a GPU sums in another order. */
const TOLERANCE: Readonly<Record<string, { readonly relative: number; readonly absolute: number }>> = {
  cpu: { relative: 1e-5, absolute: 1e-7 },
  webgpu: { relative: 2e-3, absolute: 2e-5 },
};

const UPDATE = process.env.UPDATE_GOLDEN === "1";

const dir = temporaryFolder("golden");

/** Runs one of {@link RUNS}, and compares its metrics with the stored ones. */
export async function checkRun(name: string, device: string): Promise<void> {
  checkMetrics(name, await metricsOfRun(`${name}-${device}`, { args: [...RUNS[name]!, "--device", device] }), device);
}

interface RunOptions {
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

/** The metrics of `grpu train`, without those that depend on the machine. */
export async function metricsOfRun(name: string, { args, env = {} }: RunOptions): Promise<Line[]> {
  const folder = join(dir, name);
  const { code, err } = await grpu(["train", ...args, `training.default_local_dir=${folder}`], { env });
  expect(code, err).toBe(0);
  const lines = readFileSync(join(folder, "metrics.jsonl"), "utf8").trim().split("\n");
  const parsed: Line[] = lines.map((line) => JSON.parse(line));
  return parsed.filter(({ phase }) => phase !== "warmup").map(withoutMeasured);
}

function withoutMeasured(line: Line): Line {
  return Object.fromEntries(Object.entries(line).filter(([name]) => !MEASURED.test(name))) as Line;
}

const pathOf = (name: string) => new URL(`./${name}.json`, import.meta.url);

function stored(name: string): Line[] {
  return JSON.parse(readFileSync(pathOf(name), "utf8"));
}

/** Both as text, with the stored number in place of one that is close enough, so that a difference shows its metric. */
function settle(found: Line[], wanted: Line[], device: string): Line[] {
  const { relative, absolute } = TOLERANCE[device]!;
  return found.map((line, i) => {
    const near = (name: string, value: unknown) => {
      const golden = wanted[i]?.[name];
      if (device === "webgpu" && ROUNDED.test(name)) return golden;
      if (typeof value !== "number" || typeof golden !== "number") return value;
      return Math.abs(value - golden) <= absolute + relative * Math.abs(golden) ? golden : value;
    };
    return Object.fromEntries(Object.entries(line).map(([name, value]) => [name, near(name, value)])) as Line;
  });
}

/** Compares with the stored metrics, or stores them. */
export function checkMetrics(name: string, found: Line[], device: string): void {
  if (UPDATE && device === "cpu") writeFileSync(pathOf(name), `${JSON.stringify(found, null, 1)}\n`);
  const wanted = stored(name);
  expect(settle(found, wanted, device)).toEqual(wanted);
}
