/** The folder of a run as a page shows it: read once, or again and again while another process writes it. */
import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import type { Phase } from "../logger.ts";
import { meanReward } from "../mean_reward.ts";
import {
  CONFIG_FILE,
  GROUPS_FILE,
  type GroupsLine,
  METRICS_FILE,
  type MetricsLine,
  RUN_FILE,
  SAMPLES_FILE,
  type SampleLine,
} from "../run_files.ts";
import { Curve, Sampled } from "./curve.ts";
import { checkRegular, FollowedFile } from "./followed_file.ts";
import { type CurveData, MEAN_REWARD, type RunData } from "./page_data.ts";
import { factsOf, groupsOf, parseMetricsLine, sampleOf } from "./run_lines.ts";

export interface RunFolderOptions {
  /** Flattens `config.yaml`. Default: no settings. */
  readonly settingsOf?: (text: string) => Readonly<Record<string, string>>;
  /** Default: the folder's name. */
  readonly name?: string | undefined;
}

/** Steps whose groups are kept for the page. */
const GROUP_STEPS = 24;
/** Metrics of a phase that are drawn, and samples of a step that are shown: a run writes far fewer. */
const MOST_CURVES = 4096;
const MOST_SAMPLES = 256;

type Curves = Record<Phase, Map<string, Curve>>;

export class RunFolder {
  readonly dir: string;
  private readonly options: RunFolderOptions;
  private readonly metrics: FollowedFile;
  private readonly samplesFile: FollowedFile;
  private readonly groupsFile: FollowedFile;
  private curves: Curves = noCurves();
  private samples: SampleLine[] = [];
  private groups = new Sampled<GroupsLine>(GROUP_STEPS);
  /** Damaged lines by file. */
  private readonly bad = new Map<FollowedFile, number>();
  /** Counts what changed. */
  private changes = 0;
  private stamp = "";

  constructor(dir: string, options: RunFolderOptions = {}) {
    this.dir = dir;
    this.options = options;
    this.metrics = new FollowedFile(join(dir, METRICS_FILE));
    this.samplesFile = new FollowedFile(join(dir, SAMPLES_FILE));
    this.groupsFile = new FollowedFile(join(dir, GROUPS_FILE));
  }

  /** Reads new lines. @returns a number that grows whenever anything changed */
  poll(): number {
    this.follow(this.metrics, {
      read: parseMetricsLine,
      add: (line) => this.addMetrics(line),
      reset: () => (this.curves = noCurves()),
    });
    this.follow(this.samplesFile, {
      read: sampleOf,
      add: (line) => this.addSample(line),
      reset: () => (this.samples = []),
    });
    this.follow(this.groupsFile, {
      read: groupsOf,
      add: (line) => this.groups.add(line),
      reset: () => (this.groups = new Sampled<GroupsLine>(GROUP_STEPS)),
    });
    const stamp = [RUN_FILE, CONFIG_FILE].map((name) => modified(join(this.dir, name))).join();
    if (stamp !== this.stamp) this.changes++;
    this.stamp = stamp;
    return this.changes;
  }

  /** A damaged line (a killed run leaves one half written) is counted and left out. */
  private follow<T>(
    file: FollowedFile,
    of: { read: (line: string) => T | undefined; add: (item: T) => void; reset: () => void },
  ): void {
    file.poll(
      (line) => {
        const item = of.read(line);
        if (item === undefined) this.bad.set(file, this.badIn(file) + 1);
        else of.add(item);
        this.changes++;
      },
      () => {
        of.reset();
        this.bad.delete(file);
        this.changes++;
      },
    );
  }

  private badIn(file: FollowedFile): number {
    return this.bad.get(file) ?? 0;
  }

  private addMetrics({ phase, step, ...metrics }: MetricsLine): void {
    const curves = this.curves[phase];
    const numbers = Object.fromEntries(
      Object.entries(metrics).filter(([, value]) => typeof value === "number"),
    ) as Record<string, number>;
    const reward = phase === "train" ? meanReward(numbers) : undefined;
    if (reward !== undefined) numbers[MEAN_REWARD] = reward;
    for (const [name, value] of Object.entries(numbers)) {
      if (curves.size >= MOST_CURVES && !curves.has(name)) continue;
      const curve = curves.get(name) ?? new Curve();
      curves.set(name, curve);
      curve.add(step, value);
    }
  }

  private addSample(sample: SampleLine): void {
    const first = this.samples[0]?.step ?? sample.step;
    const kept = this.samples.filter(({ step }) => step === first || step === sample.step);
    if (kept.length < MOST_SAMPLES) this.samples = [...kept, sample];
  }

  data(): RunData {
    const facts = factsOf(readIfThere(join(this.dir, RUN_FILE)) ?? "");
    const config = readIfThere(join(this.dir, CONFIG_FILE)) ?? "";
    const name = this.options.name ?? basename(resolve(this.dir));
    return {
      name,
      title: facts.title ?? name,
      subtitle: facts.subtitle ?? "",
      status: facts.ended === undefined ? "open" : facts.complete ? "complete" : "stopped",
      updated: Math.max(...[METRICS_FILE, RUN_FILE].map((file) => modified(join(this.dir, file)))),
      totalSteps: facts.total_steps ?? null,
      curves: {
        warmup: curveData(this.curves.warmup),
        train: curveData(this.curves.train),
        val: curveData(this.curves.val),
      },
      samples: this.samples,
      groups: this.groups.items(),
      settings: config === "" ? {} : (this.options.settingsOf?.(config) ?? {}),
      config,
      badLines: [this.metrics, this.samplesFile, this.groupsFile].reduce(
        (sum, file) => sum + this.badIn(file) + file.tooLong,
        0,
      ),
    };
  }
}

/** True for a folder that a run wrote or is about to write. */
export function isRunFolder(dir: string): boolean {
  return [METRICS_FILE, CONFIG_FILE, RUN_FILE].some((name) => existsSync(join(dir, name)));
}

function noCurves(): Curves {
  return { warmup: new Map(), train: new Map(), val: new Map() };
}

function curveData(curves: ReadonlyMap<string, Curve>): Record<string, CurveData> {
  const entries = [...curves].map(([name, curve]) => [name, curve.data()] as const);
  return Object.fromEntries(entries.filter(([, data]) => data.count > 0));
}

function readIfThere(file: string): string | undefined {
  if (!existsSync(file)) return undefined;
  checkRegular(file);
  return readFileSync(file, "utf8");
}

/** ms since 1970; 0 for no file. */
function modified(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}
