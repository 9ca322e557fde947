/** The folder of a run as a page shows it: read once, or again and again while another process writes it. */
import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { meanReward } from "./console.ts";
import { Curve, type CurveData, Sampled } from "./curve.ts";
import { FollowedFile } from "./followed_file.ts";
import type { GroupsLine, MetricsLine, SampleLine } from "./jsonl.ts";
import type { Phase } from "./logger.ts";

export const METRICS_FILE = "metrics.jsonl";
export const SAMPLES_FILE = "samples.jsonl";
export const GROUPS_FILE = "groups.jsonl";
export const CONFIG_FILE = "config.yaml";
export const RUN_FILE = "run.json";

/** What a run says of itself when it starts and when it ends (`run.json`). */
export interface RunFacts {
  readonly title: string;
  /** The task, the model, the device. */
  readonly subtitle: string;
  readonly total_steps: number;
  readonly started: string;
  /** Absent while it runs, and for ever when it was killed. */
  readonly ended?: string;
  readonly complete?: boolean;
}

/** A run as plain JSON. */
export interface RunData {
  /** Tells it from the other runs of the page. */
  readonly name: string;
  readonly title: string;
  readonly subtitle: string;
  /** `open`: it runs, or was killed. */
  readonly status: "complete" | "stopped" | "open";
  /** When something was last written, in ms since 1970. */
  readonly updated: number;
  readonly totalSteps: number | null;
  readonly curves: Readonly<Record<Phase, Readonly<Record<string, CurveData>>>>;
  /** The first and the last validation. */
  readonly samples: readonly SampleLine[];
  readonly groups: readonly GroupsLine[];
  /** By path, as text. */
  readonly settings: Readonly<Record<string, string>>;
  readonly config: string;
}

export interface RunFolderOptions {
  /** Flattens `config.yaml`. */
  readonly settingsOf: (text: string) => Readonly<Record<string, string>>;
  readonly name?: string;
}

/** Steps whose groups are kept for the page. */
const GROUP_STEPS = 24;
/** Of the mean over all roles, which no logger writes. */
export const MEAN_REWARD = "reward";

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
  /** Counts what changed. */
  private changes = 0;
  private stamp = "";

  constructor(dir: string, options: RunFolderOptions) {
    this.dir = dir;
    this.options = options;
    this.metrics = new FollowedFile(join(dir, METRICS_FILE));
    this.samplesFile = new FollowedFile(join(dir, SAMPLES_FILE));
    this.groupsFile = new FollowedFile(join(dir, GROUPS_FILE));
  }

  /** Reads what is new. Returns a number that grows when anything is. */
  poll(): number {
    this.metrics.poll(
      (line) => this.take<MetricsLine>(line, (it) => this.addMetrics(it)),
      () => this.forget(() => (this.curves = noCurves())),
    );
    this.samplesFile.poll(
      (line) => this.take<SampleLine>(line, (it) => this.addSample(it)),
      () => this.forget(() => (this.samples = [])),
    );
    this.groupsFile.poll(
      (line) => this.take<GroupsLine>(line, (it) => this.groups.add(it)),
      () => this.forget(() => (this.groups = new Sampled<GroupsLine>(GROUP_STEPS))),
    );
    const stamp = [RUN_FILE, CONFIG_FILE].map((name) => modified(join(this.dir, name))).join();
    if (stamp !== this.stamp) this.changes++;
    this.stamp = stamp;
    return this.changes;
  }

  private forget(reset: () => void): void {
    reset();
    this.changes++;
  }

  /** A line that a killed run left half written, with another after it, is no line. */
  private take<T>(line: string, add: (it: T) => void): void {
    let parsed: T;
    try {
      parsed = JSON.parse(line) as T;
    } catch {
      return;
    }
    add(parsed);
    this.changes++;
  }

  private addMetrics({ phase, step, ...metrics }: MetricsLine): void {
    const curves = this.curves[phase];
    if (!curves) return;
    const numbers = Object.fromEntries(
      Object.entries(metrics).filter(([, value]) => typeof value === "number"),
    ) as Record<string, number>;
    const reward = phase === "train" ? meanReward(numbers) : undefined;
    if (reward !== undefined) numbers[MEAN_REWARD] = reward;
    for (const [name, value] of Object.entries(numbers)) {
      const curve = curves.get(name) ?? new Curve();
      curves.set(name, curve);
      curve.add(step, value);
    }
  }

  private addSample(sample: SampleLine): void {
    const first = this.samples[0]?.step ?? sample.step;
    const kept = this.samples.filter(({ step }) => step === first || step === sample.step);
    this.samples = [...kept, sample];
  }

  data(): RunData {
    const facts = readFacts(join(this.dir, RUN_FILE));
    const config = readIfThere(join(this.dir, CONFIG_FILE)) ?? "";
    const name = this.options.name ?? basename(resolve(this.dir));
    return {
      name,
      title: facts?.title ?? name,
      subtitle: facts?.subtitle ?? "",
      status: facts?.ended === undefined ? "open" : facts.complete ? "complete" : "stopped",
      updated: Math.max(...[METRICS_FILE, RUN_FILE].map((file) => modified(join(this.dir, file)))),
      totalSteps: facts?.total_steps ?? null,
      curves: {
        warmup: curveData(this.curves.warmup),
        train: curveData(this.curves.train),
        val: curveData(this.curves.val),
      },
      samples: this.samples,
      groups: this.groups.items(),
      settings: config === "" ? {} : this.options.settingsOf(config),
      config,
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

function readFacts(file: string): RunFacts | undefined {
  try {
    return JSON.parse(readIfThere(file) ?? "") as RunFacts;
  } catch {
    return undefined;
  }
}

function readIfThere(file: string): string | undefined {
  return existsSync(file) ? readFileSync(file, "utf8") : undefined;
}

/** ms since 1970; 0 for no file. */
function modified(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}
