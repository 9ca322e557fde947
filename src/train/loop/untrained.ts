/** Steps that train no token: why, how many in a row, and when they end the run. */
import type { Metrics } from "../../engine/contract/backend.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { Episode, TrajectoryGroup } from "../data/types.ts";
import type { Held, LoopState, StageContext, StepReport } from "./contract.ts";
import { groupBy } from "./group_by.ts";
import type { LoopSettings } from "./settings.ts";

/** The weights that a step trains. Absent: an update counts as a change of them. */
type Weights = Pick<StageContext, "backend" | "versionBefore"> &
  Partial<Pick<StageContext, "settings" | "step" | "totalSteps">>;

/** The state after a step. A step that holds its groups back for a later one does not count as untrained. */
export function afterStep(
  { untrained, ...before }: LoopState,
  { step, held, report, context }: { step: number; held: Held; report: StepReport; context?: Weights },
): LoopState {
  const state = { ...before, step, held };
  if (hasTrained(report, context)) return state;
  if (held.groups.length > before.held.groups.length) return { ...state, ...(untrained && { untrained }) };
  const why = whyUntrained(report, context) ?? NO_GROUP;
  return { ...state, untrained: { steps: (untrained?.steps ?? 0) + 1, why } };
}

/**
 * Ends a run that trains no group.
 * @throws {ConfigError} after `training.max_untrained_steps` such steps in a row, and at the end of a run that never trained
 */
export function checkUntrained({ untrained, step }: LoopState, run: { settings: LoopSettings; total: number }): void {
  if (untrained === undefined) return;
  const { max_untrained_steps: limit } = run.settings.training;
  const isNever = step >= run.total && untrained.steps === step;
  if (limit === 0 || (untrained.steps < limit && !isNever)) return;
  throw new ConfigError(
    `Cannot continue training: the last ${untrained.steps} steps trained no group. Step ${step}: ${untrained.why}. ` +
      "Correct the reward, the data or the filters, or raise training.max_untrained_steps.",
    { kind: "code" },
  );
}

/**
 * Warns at the end of a run of the groups that it held back for a later step. Steps that hold groups do not count as untrained,
 * so that a run may consist of nothing else.
 * @throws {ConfigError} for such a run
 */
export function checkHeld(
  { step, held, weightVersion, warmup }: LoopState,
  { settings, warn }: { settings: LoopSettings; warn: (message: string) => void },
): void {
  const { groups, solvePartial } = held;
  if (groups.length === 0) return;
  if (weightVersion > warmup || settings.training.max_untrained_steps === 0) {
    warn(
      `The run ended with ${groups.length} groups that rejection sampling held for a later step (rllm.rejection_sample): they were not trained on.`,
    );
    return;
  }
  const { min_partial_solve_tasks: least } = settings.rejection_sample;
  throw new ConfigError(
    `Cannot finish training: none of the ${step} steps trained, and ${groups.length} groups are still held for a later one ` +
      `(${solvePartial} of rllm.rejection_sample.min_partial_solve_tasks=${least} tasks are partly solved). Lower it, or resume with more steps.`,
    { path: "rllm.rejection_sample.min_partial_solve_tasks", kind: "code" },
  );
}

const NO_GROUP = "nothing trained: no group was left";
const NO_TOKEN = "nothing trained: no optimiser step was taken, because no token was left to train on";

/** True when any round of the step ran its update, and that changed the weights. */
function hasTrained(report: StepReport, context: Weights | undefined): boolean {
  return isBatch(report) && !isIdle(report, context);
}

function isBatch({ groups, metrics }: StepReport): boolean {
  return groups.length > 0 || "time/update" in metrics;
}

/**
 * True for updates without an optimiser step: every token is masked. A backend of the user's own may not count its steps, but
 * an update that takes one measures something, and so does one of the critic alone.
 */
function isIdle({ metrics }: StepReport, { backend, versionBefore }: Partial<Weights> = {}): boolean {
  const isUncounted = versionBefore !== undefined && backend?.weightVersion === versionBefore;
  return "time/update" in metrics && isUncounted && !Object.keys(metrics).some(isOfUpdate);
}

function isOfUpdate(name: string): boolean {
  return name.startsWith("actor/") || name === "critic/vf_loss";
}

/** Returns the reason why a step trains nothing, or why its update changes nothing; undefined for any other step. */
export function whyUntrained(report: StepReport, context?: Weights): string | undefined {
  const { metrics, episodes, groups } = report;
  if (hasTrained(report, context)) return whyUnchanged(metrics, groups, context);
  const causes = [...endings(episodes), ...cut(metrics)];
  if (causes.length > 0) return `nothing trained: ${causes.join(", ")}`;
  return isBatch(report) ? NO_TOKEN : NO_GROUP;
}

/** Returns the reason why an update changes no weight. */
function whyUnchanged(
  metrics: Metrics,
  groups: readonly TrajectoryGroup[],
  context: Weights | undefined,
): string | undefined {
  if (metrics["actor/lr"] === 0)
    return `the learning rate is 0 (actor/lr${endOfSchedule(context)}): the weights do not change`;
  return isFlat(metrics)
    ? `every advantage is 0: ${rewardsOf(groups)}; rllm.rejection_sample.mode=group leaves such groups out`
    : undefined;
}

/** rLLM's schedules reach 0 at the last step. */
function endOfSchedule({ settings, step, totalSteps }: Partial<Weights> = {}): string {
  const { lr_schedule = "constant" } = settings?.algorithm ?? {};
  return step === totalSteps && lr_schedule !== "constant" ? `, where rLLM's lr_schedule=${lr_schedule} ends` : "";
}

function isFlat(metrics: Metrics): boolean {
  const shares = Object.entries(metrics).filter(([name]) => /^advantage\/.*\/fraction_zero$/.test(name));
  return shares.length > 0 && shares.every(([, share]) => share === 1);
}

function rewardsOf(groups: readonly TrajectoryGroup[]): string {
  const rewards = new Set(groups.flatMap(({ trajectories }) => trajectories.map(({ reward }) => reward)));
  return rewards.size === 1 ? `all rewards are ${[...rewards][0]}` : "the rewards of each group are equal";
}

const ENDINGS: Readonly<Record<string, string>> = {
  error: "failed",
  timeout: "timed out",
  max_prompt_length_exceeded: "had a prompt longer than data.max_prompt_length",
};

/** How the rollouts without a trainable trajectory ended. */
function endings(episodes: readonly Episode[]): string[] {
  const lost = episodes.filter(
    ({ termination_reason, trajectories }) => trajectories.length === 0 || termination_reason in ENDINGS,
  );
  return Array.from(
    groupBy(lost, ({ termination_reason }) => termination_reason),
    ([reason, members]) => {
      const count =
        members.length === episodes.length ? `all ${members.length}` : `${members.length} of ${episodes.length}`;
      return `${count} rollouts ${ENDINGS[reason] ?? `recorded no call (${reason})`}`;
    },
  );
}

const CUTS: readonly (readonly [name: string, what: string])[] = [
  ["batch/groups_dropped_uniform", "groups of equal rewards dropped"],
  ["batch/groups_dropped_no_baseline", "groups dropped without a greedy baseline (batch/groups_dropped_no_baseline)"],
  ["batch/groups_dropped_insufficient_trajs", "groups dropped as too small"],
  ["batch/groups_rejected", "groups rejected"],
  ["batch/groups_held", "groups held for a later step"],
  ["batch/dropped_malformed_sequences", "trajectories dropped as malformed"],
  ["batch/dropped_stale_trajectories", "trajectories dropped by training.max_off_policy_threshold"],
  ["batch/dropped_stale_held_trajectories", "held trajectories dropped by training.max_off_policy_threshold"],
  ["batch/masked_stale_tokens", "tokens masked by training.max_off_policy_threshold (batch/masked_stale_tokens)"],
  [
    "batch/masked_overlong_trajectories",
    "trajectories masked by rllm.mask_truncated_samples or rllm.agent.overlong_filter (batch/masked_overlong_trajectories)",
  ],
];

function cut(metrics: Metrics): string[] {
  return CUTS.flatMap(([name, what]) => (metrics[name]! > 0 ? [`${metrics[name]} ${what}`] : []));
}
