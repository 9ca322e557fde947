/**
 * Short runs with stored metrics: they show any change that moves a number in the loop, on both devices.
 * `UPDATE_GOLDEN=1 npx vitest run test/golden` stores the metrics of the `cpu` device; give the reason in the commit.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { grpu } from "../fixtures/cli.ts";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { startServer } from "../interop/server.ts";
import { RUNS, tinkerRun } from "./runs.ts";

interface Line {
  readonly phase: string;
  readonly step: number;
  readonly [metric: string]: unknown;
}

/** Metrics that depend on the machine. */
const MEASURED = /^(time|timing|perf|throughput|async.trainer_idle_ratio)|time_s|_per_s|seconds|memory/;
/** Counts values below 1e-8, which depends on how a device rounds a mean. */
const ROUNDED = /\/fraction_zero$/;
/** Runs with enough warm-up that weights differ between devices in the fourth digit, and so does a sampled token. */
const CPU_ONLY = new Set(["two_roles"]);

/** `cpu` computes in float64 within kernels, so that only rounding to float32 differs; a GPU sums in another order. */
const TOLERANCE: Readonly<Record<string, { readonly relative: number; readonly absolute: number }>> = {
  cpu: { relative: 1e-5, absolute: 1e-7 },
  webgpu: { relative: 2e-3, absolute: 2e-5 },
};

const UPDATE = process.env.UPDATE_GOLDEN === "1";

const dir = temporaryFolder("golden");

function metricsOf(name: string, device: string): Promise<Line[]> {
  return metricsOfRun(`${name}-${device}`, { args: [...RUNS[name]!, "--device", device] });
}

interface RunOptions {
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

async function metricsOfRun(name: string, { args, env = {} }: RunOptions): Promise<Line[]> {
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
function check(name: string, found: Line[], device: string): void {
  if (UPDATE && device === "cpu") writeFileSync(pathOf(name), `${JSON.stringify(found, null, 1)}\n`);
  const wanted = stored(name);
  expect(settle(found, wanted, device)).toEqual(wanted);
}

describe.each(Object.keys(RUNS))("%s", (name) => {
  const devices = gpuDevice && !CPU_ONLY.has(name) ? ["cpu", "webgpu"] : ["cpu"];
  test.each(devices)("gives the stored metrics on %s", async (device) => {
    check(name, await metricsOf(name, device), device);
  });
});

describe.skipIf(!hasShared)("over Tinker's protocol", () => {
  const MODEL = sharedPath("models/stories260k");
  test.each(gpuDevice ? ["cpu", "webgpu"] : ["cpu"])("gives the stored metrics on %s", async (device) => {
    const server = await startServer(["--model", MODEL, "--device", device]);
    try {
      const env = { TINKER_BASE_URL: server.url, TINKER_API_KEY: "tml-local" };
      const found = await metricsOfRun(`tinker-${device}`, { args: tinkerRun(MODEL), env });
      check("tinker", found, device);
    } finally {
      await server.stop();
    }
  });
});
