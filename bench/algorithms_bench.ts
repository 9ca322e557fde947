/**
 * How fast each preset learns: every one on the arithmetic task and the game of turns with the same models, learning rates and batches, over
 * several seeds. Not a figure of speed: it prints the accuracy in validations, and draws its curves where all presets ran.
 * `npm run bench -- algorithms --seeds 5 --tasks arithmetic,game --presets grpo,dapo --device cpu --runs DIR`: without options it runs all twelve
 * presets on both tasks with five seeds each, which is 120 runs of half a minute and more. `--runs` keeps their metrics: what was interrupted
 * continues, and further seeds or presets join those that ran.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { PRESETS } from "../src/train/config/hydra/groups.ts";
import { type Curve, curvesSvg } from "./curves_svg.ts";
import { check, heading, remark } from "./harness.ts";
import { learningOptions } from "./options.ts";

interface LearningTask {
  readonly file: string;
  readonly title: string;
  /** What a validation measures. */
  readonly y: string;
}

const TASKS: Readonly<Record<string, LearningTask>> = {
  arithmetic: { file: "examples/arithmetic/run.yaml", title: "one digit added to two", y: "held-out accuracy" },
  // Its validation plays for the sixteen digits that it trains on.
  game: { file: "examples/multi_turn/run.yaml", title: "a hidden digit in four guesses", y: "share of games won" },
};
const CLI = fileURLToPath(new URL("../dist/cli.js", import.meta.url));
const IMAGES = fileURLToPath(new URL("../docs/images/", import.meta.url));

export async function run(): Promise<void> {
  const known = { tasks: Object.keys(TASKS), presets: PRESETS };
  const { seeds, tasks, presets, device, runs: kept } = learningOptions(process.argv.slice(2), known);
  for (const task of tasks) {
    const { file, title, y } = TASKS[task]!;
    heading(`algorithms: ${title}, seeds 0 to ${seeds - 1}, ${y}`);
    const curves: Curve[] = [];
    for (const preset of presets) {
      const runs = Array.from({ length: seeds }, (_, seed) => {
        const place = kept === undefined ? undefined : join(kept, `${task}_${preset}_${seed}.jsonl`);
        return accuracies({ file, preset, seed, device, place });
      });
      const curve = { name: preset, points: meanCurve(runs) };
      curves.push(curve);
      remark(rowOf(curve));
    }
    if (presets.length < PRESETS.length) continue;
    mkdirSync(IMAGES, { recursive: true });
    writeFileSync(join(IMAGES, `algorithms_${task}.svg`), curvesSvg(curves, { title, y }));
  }
}

interface Run {
  readonly file: string;
  readonly preset: string;
  readonly seed: number;
  readonly device: string | undefined;
  /** Where its metrics are kept. */
  readonly place: string | undefined;
}

/** Accuracy in validations by training step. */
function accuracies(run: Run): Map<number, number> {
  const { place } = run;
  const text = place !== undefined && existsSync(place) ? readFileSync(place, "utf8") : trained(run);
  const lines = text.trim().split("\n");
  return new Map(lines.flatMap((line) => accuracyOf(JSON.parse(line))));
}

/** Runs a training. @returns its metrics.jsonl */
function trained({ file, preset, seed, device, place }: Run): string {
  const folder = mkdtempSync(join(tmpdir(), "grpu-algorithms-"));
  try {
    const overrides = [`+preset=${preset}`, `training.seed=${seed}`, "rllm.trainer.logger=[jsonl]"];
    const quiet = ["rllm.trainer.save_freq=-1", `training.default_local_dir=${folder}`];
    const onDevice = device === undefined ? [] : ["--device", device];
    const args = [CLI, "train", file, ...overrides, ...quiet, ...onDevice];
    const { status, stderr } = spawnSync(process.execPath, args, { encoding: "utf8", maxBuffer: 2 ** 26 });
    check(status === 0, `${preset} with seed ${seed}: ${stderr?.slice(-500)}`);
    const text = readFileSync(join(folder, "metrics.jsonl"), "utf8");
    if (place !== undefined) keep(place, text);
    return text;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Whole or not at all. */
function keep(place: string, text: string): void {
  mkdirSync(dirname(place), { recursive: true });
  writeFileSync(`${place}.part`, text);
  renameSync(`${place}.part`, place);
}

type MetricsLine = Readonly<Record<string, number>> & { readonly step: number };

function accuracyOf(line: MetricsLine): [number, number][] {
  const [, value] = Object.entries(line).find(([name]) => /^val\/.*\/pass@1$/.test(name)) ?? [];
  return value === undefined ? [] : [[line.step, value]];
}

/** Mean, least and most over the seeds at each step. */
function meanCurve(runs: readonly ReadonlyMap<number, number>[]): Curve["points"] {
  return [...runs[0]!.keys()].map((step) => {
    const values = runs.map((run) => run.get(step)!);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return { step, mean, least: Math.min(...values), most: Math.max(...values) };
  });
}

function rowOf({ name, points }: Curve): string {
  const last = points.at(-1)!;
  const spread = `${last.least.toFixed(3)} to ${last.most.toFixed(3)}`;
  return `${name.padEnd(20)} ${points.map(({ mean }) => mean.toFixed(3)).join(" ")}  at the end ${spread}`;
}
