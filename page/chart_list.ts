/** Which charts the page draws, from the published names of metrics. */
import type { Phase } from "../src/train/log/logger.ts";
import { MEAN_REWARD } from "../src/train/log/page/page_data.ts";
import { curve, data, metricNames } from "./data.ts";

export interface Line {
  /** The metric. */
  readonly name: string;
  readonly label?: string | undefined;
}

export interface Chart {
  readonly title: string;
  /** The text under the title: the metric, or a pattern for several. */
  readonly metric: string;
  readonly phase: Phase;
  readonly lines: readonly Line[];
  readonly unit?: string;
  /** Ends of the axis; by default those of the values. */
  readonly range?: readonly [number, number] | undefined;
  /** Every value has a mark, and nothing is smoothed. */
  readonly isMarked?: boolean;
}

const at = (title: string, name: string, more: Partial<Chart> = {}): Chart => ({
  title,
  metric: name,
  phase: "train",
  lines: [{ name }],
  ...more,
});

const SHARE = [0, 1] as const;

/** True where no run leaves 0 to 1. */
const isShare = (phase: Phase, name: string) =>
  data.runs.every((run) => {
    const it = curve(run, phase, name);
    return !it || (it.min >= 0 && it.max <= 1);
  });

export function trainingCharts(): Chart[] {
  const roles = metricNames("train", /^reward\/.*\/mean$/);
  const range = isShare("train", MEAN_REWARD) ? SHARE : undefined;
  return [
    at("Loss", "train/loss"),
    at("Held-out loss", "val/loss", { phase: "val", isMarked: true }),
    at("Held-out token accuracy", "val/mean_token_accuracy", { phase: "val", range: SHARE, isMarked: true }),
    at("Margin between chosen and rejected", "rewards/margins"),
    at("Pairs preferred as chosen", "rewards/accuracies", { range: SHARE }),
    at("Held-out margin", "val/rewards/margins", { phase: "val", isMarked: true }),
    at("Held-out pairs preferred as chosen", "val/rewards/accuracies", { phase: "val", range: SHARE, isMarked: true }),
    at("Log-prob of chosen answers", "logps/chosen", { unit: "nats" }),
    at("Log-prob of rejected answers", "logps/rejected", { unit: "nats" }),
    at("Reward", MEAN_REWARD, { metric: "reward/<role>/mean", range }),
    ...(roles.length > 1 ? roles.map((name) => at(`Reward of ${name.split("/")[1]}`, name)) : []),
    ...accuracyCharts(),
    ...verlValidations(),
    at("KL to the policy before each update", "actor/ppo_kl"),
    at("Entropy", "actor/entropy", { unit: "nats" }),
    at("Clip fraction", "actor/pg_clipfrac"),
    at("Value loss of the critic", "critic/vf_loss"),
    at("Share of the returns' variance that values explain", "critic/vf_explained_var"),
    at("Mean value and mean return", "critic/{values,returns}/mean", {
      lines: ["values", "returns"].map((label) => ({ name: `critic/${label}/mean`, label })),
    }),
    at("Response length", "response_length/mean", { unit: "tokens" }),
    at("Speed", "perf/throughput", { unit: "tokens/s" }),
    at("Gradient norm", "actor/grad_norm"),
    at("Gradient norm", "train/grad_norm"),
    at("Tasks by outcome", "batch/solve_{all,partial,none}", {
      range: SHARE,
      lines: ["all", "partial", "none"].map((label) => ({ name: `batch/solve_${label}`, label })),
    }),
    at("Learning rate", "actor/lr"),
    at("Learning rate", "train/lr"),
  ];
}

/** One chart for each source of tasks, with a line for each k of pass@k. */
function accuracyCharts(): Chart[] {
  const all = metricNames("val", /\/pass@\d+$/);
  const sources = new Set(all.map((name) => name.replace(/\/pass@\d+$/, "")));
  return [...sources].map((source) => {
    const names = all.filter((name) => name.startsWith(`${source}/pass@`));
    return at("Validation accuracy", names.length > 1 ? `${source}/pass@k` : names[0]!, {
      phase: "val",
      lines: names.map((name) => ({ name, label: name.split("/").at(-1) })),
      range: SHARE,
      isMarked: true,
    });
  });
}

/** Of verl's trainer on a cluster, a chart for each of its main validation metrics. */
function verlValidations(): Chart[] {
  return metricNames("val", /^val-core\//).map((name) => at("Validation", name, { phase: "val", isMarked: true }));
}

/** The metrics that asynchronous training adds, under their published names. */
export function stalenessCharts(): Chart[] {
  const line = (name: string, label: string) => ({ name: `async/${name}`, label });
  return [
    at("Staleness", "async/staleness_{mean,min,max}", {
      unit: "versions",
      lines: [line("staleness_mean", "mean"), line("staleness_max", "max"), line("staleness_min", "min")],
    }),
    at("Share of the step that the trainer waited", "async/trainer_idle_ratio", { range: SHARE }),
    at("Quota of the window", "async/{quota_used,max_rollout_quota}", {
      unit: "groups",
      lines: [line("quota_used", "used"), line("max_rollout_quota", "most")],
    }),
    at("Groups on their way", "async/{in_flight_groups,buffer_qsize,buffer_pending}", {
      unit: "groups",
      lines: [
        line("in_flight_groups", "in flight"),
        line("buffer_qsize", "ready"),
        line("buffer_pending", "incomplete"),
      ],
    }),
  ];
}

export const warmupCharts = (): Chart[] => [at("Cross-entropy", "warmup/loss", { phase: "warmup" })];

/** The plain chart of one metric. */
export const metricChart = (phase: Phase, name: string): Chart =>
  at(name.split("/").slice(-2).join(" "), name, { phase, isMarked: phase === "val" });
