/** One run as the page knows it: what its worker has told, as the curves and figures that the page of runs draws. */

import type { Phase } from "../../src/train/log/logger.ts";
import { meanReward } from "../../src/train/log/mean_reward.ts";
import { Curve } from "../../src/train/log/page/curve.ts";
import { type CurveData, MEAN_REWARD, type RunData } from "../../src/train/log/page/page_data.ts";
import type { GroupsLine, SampleLine } from "../../src/train/log/run_files.ts";
import type { GroupView, News, RecordNews, StageName } from "./protocol.ts";
import { type RecipeName, recipeNamed } from "./recipes.ts";
import { type Given, PAGE_SETTINGS } from "./settings.ts";

/** `pausing`: a step is under way, and the run waits at its end. */
export type RunStatus = "idle" | "opening" | "training" | "pausing" | "paused" | "ended" | "failed";

/** Metrics that the page draws. */
const DRAWN =
  /^(reward|actor\/(ppo_kl|entropy|pg_clipfrac|grad_norm|lr)|response_length\/mean|perf\/throughput|batch\/solve_\w+|warmup\/loss|val\/.*\/pass@1)$/;

/** A change of settings, and the step that takes it first. */
export interface Change {
  readonly fromStep: number;
  readonly text: string;
}

export class RunView {
  readonly name: string;
  status: RunStatus = "idle";
  /** The values of all settings, as the worker resolved them. */
  values: Given = {};
  /** The settings that a person gave and the run took. */
  accepted: Given = {};
  choices: Readonly<Record<string, readonly string[]>> = {};
  device: { readonly kind: "webgpu" | "cpu"; readonly description: string } | undefined;
  parameters = 0;
  trainable = 0;
  phase: Phase | undefined;
  step = 0;
  totalSteps = 0;
  stage: StageName | undefined;
  /** Attempts of a validation under way. */
  progress: { readonly done: number; readonly total: number } | undefined;
  /** Of the last training step. */
  metrics: Readonly<Record<string, number>> = {};
  rollouts: readonly GroupView[] = [];
  groups: GroupsLine | undefined;
  note: string | undefined;
  changes: Change[] = [];
  warnings: string[] = [];
  failure: string | undefined;
  private curves = newCurves();
  private samples: SampleLine[] = [];

  constructor(name: string) {
    this.name = name;
  }

  get isActive(): boolean {
    return !["idle", "ended", "failed"].includes(this.status);
  }

  /** A step is under way. */
  get isStepping(): boolean {
    return this.status === "training" || this.status === "pausing";
  }

  take(news: News): void {
    if (news.type === "record") this.takeRecord(news);
    else if (news.type === "described") Object.assign(this, { values: news.values, choices: news.choices });
    else if (news.type === "opened") this.takeOpened(news);
    else if (news.type === "stage") Object.assign(this, { stage: news.stage, phase: "train", progress: undefined });
    else if (news.type === "progress") this.progress = news;
    else if (news.type === "changed") this.takeChange(news);
    else if (news.type === "paused") this.status = "paused";
    else if (news.type === "continued") this.status = "training";
    else if (news.type === "warned") this.warnings.push(news.message);
    else if (news.type === "failed") Object.assign(this, { status: "failed", failure: news.message });
    else if (news.type === "ended") Object.assign(this, { status: "ended", stage: undefined });
  }

  private takeOpened({ kind, description, parameters, trainable }: News & { type: "opened" }): void {
    Object.assign(this, { status: "training", device: { kind, description }, parameters, trainable });
  }

  private takeChange({ given, values, fromStep }: News & { type: "changed" }): void {
    const changed = PAGE_SETTINGS.filter(({ path }) => values[path] !== this.values[path]);
    const text = changed.map(({ path, label }) => `${label.toLowerCase()} ${this.values[path]} → ${values[path]}`);
    if (text.length > 0) this.changes.push({ fromStep, text: text.join(", ") });
    Object.assign(this, { accepted: given, values });
  }

  private takeRecord({ phase, step, totalSteps, metrics, samples, groups, rollouts, note }: RecordNews): void {
    const reward = phase === "train" ? meanReward(metrics) : undefined;
    for (const [name, value] of Object.entries({
      ...metrics,
      ...(reward !== undefined && { [MEAN_REWARD]: reward }),
    })) {
      if (!DRAWN.test(name)) continue;
      const curve = this.curves[phase].get(name) ?? new Curve();
      this.curves[phase].set(name, curve);
      curve.add(step, value);
    }
    Object.assign(this, { phase, progress: undefined, note });
    // A validation stands between steps.
    if (phase !== "val") Object.assign(this, { step, totalSteps });
    const first = this.samples[0]?.step;
    if (samples.length > 0) this.samples = [...this.samples.filter((sample) => sample.step === first), ...samples];
    if (phase === "train") Object.assign(this, { metrics, groups, rollouts: rollouts ?? [], stage: undefined });
  }

  curve(phase: Phase, name: string): CurveData | undefined {
    return this.curves[phase].get(name)?.data();
  }

  /** Validation accuracy: of the only source of tasks that a recipe has. */
  get accuracy(): CurveData | undefined {
    const name = [...this.curves.val.keys()].find((each) => /\/pass@1$/.test(each));
    return name === undefined ? undefined : this.curve("val", name);
  }

  get reward(): CurveData | undefined {
    return this.curve("train", MEAN_REWARD);
  }

  /** For the parts that the page of runs draws. */
  data(recipe: RecipeName): RunData {
    const { title, goal } = recipeNamed(recipe)!;
    const dataOf = (phase: Phase) =>
      Object.fromEntries(
        Array.from(this.curves[phase], ([name, curve]) => [name, curve.data()] as const).filter(
          ([, it]) => it.count > 0,
        ),
      );
    return {
      name: this.name,
      title,
      subtitle: goal,
      status: this.status === "ended" ? "complete" : this.isActive ? "open" : "stopped",
      updated: Date.now(),
      totalSteps: this.totalSteps,
      curves: { warmup: dataOf("warmup"), train: dataOf("train"), val: dataOf("val") },
      samples: this.samples,
      groups: this.groups ? [this.groups] : [],
      settings: this.values,
      config: "",
      badLines: 0,
    };
  }
}

function newCurves(): Record<Phase, Map<string, Curve>> {
  return { warmup: new Map(), train: new Map(), val: new Map() };
}
