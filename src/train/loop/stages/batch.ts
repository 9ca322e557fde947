/** Stage 4, batch: packs groups into rows of tokens. */
import type { Metrics } from "../../../engine/contract/backend.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { spread } from "../../../leaves/statistics.ts";
import { type PackedRows, packTrajectories, rowCount } from "../../data/pack.ts";
import type { Step, TerminationReason, TrajectoryGroup } from "../../data/types.ts";
import type { StageContext, Staged } from "../contract.ts";
import type { LoopSettings } from "../settings.ts";
import { maskStale } from "./staleness.ts";

/**
 * Checks the steps, and merges those of each trajectory into rows (see `packTrajectories`). What must not be trained on is
 * masked: by the ending of its episode, and by the age of its weights.
 * @throws {ConfigError} for tokens and log-probs that do not match, and for a log-prob or a step's advantage that is not
 * finite, with its trajectory and token
 */
export function packBatch(groups: readonly TrajectoryGroup[], context: StageContext): Staged<PackedRows> {
  for (const { trajectories } of groups) {
    for (const { uid, steps } of trajectories)
      for (const [index, step] of steps.entries()) checkStep(step, { uid, index });
  }
  const rows = packTrajectories(groups);
  // Before anything is masked: what is not trained on was sampled all the same.
  const prompts = promptLengths(rows);
  const overlong = maskByReason(rows, reasonsToMask(context.settings));
  const stale = maskStale(rows, context);
  return { value: rows, metrics: { ...rowMetrics(rows, prompts), ...overlong, ...stale } };
}

interface Place {
  readonly uid: string;
  /** Index of the step in its trajectory. */
  readonly index: number;
}

/** @throws {ConfigError} as {@link packBatch} */
export function checkStep({ response_ids, logprobs, advantage }: Step, { uid, index }: Place): void {
  const fail = (what: string): never => {
    throw new ConfigError(`Cannot train on the trajectory ${uid}: ${what}`, { kind: "code" });
  };
  if (logprobs.length !== response_ids.length) {
    fail(`each response token needs a log-prob: ${response_ids.length} tokens, ${logprobs.length} log-probs`);
  }
  const at = logprobs.findIndex((logprob) => !isFloat(logprob));
  if (at >= 0) fail(`the log-prob of response token ${at} is not finite: ${logprobs[at]}`);
  if (advantage === undefined || advantage === null) return;
  if (!Array.isArray(advantage)) {
    if (!isFloat(advantage)) fail(`the advantage of step ${index} ${MUST_BE_FINITE}: ${advantage}`);
    return;
  }
  if (advantage.length !== response_ids.length) {
    fail(`a list of advantages needs one per response token: ${advantage.length} for ${response_ids.length}`);
  }
  const wrong = advantage.findIndex((each) => !isFloat(each));
  if (wrong >= 0)
    fail(`the advantage of response token ${wrong} of step ${index} ${MUST_BE_FINITE}: ${advantage[wrong]}`);
}

const MUST_BE_FINITE = "must be a finite number";

/** True for a number that is finite in 32 bits. */
function isFloat(value: unknown): boolean {
  return typeof value === "number" && Number.isFinite(Math.fround(value));
}

const OVERLONG: readonly TerminationReason[] = [
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "max_turns_exceeded",
  "timeout",
];

/** Endings of episodes whose trajectories are not trained on. */
export function reasonsToMask({ mask_truncated_samples, agent }: LoopSettings): readonly TerminationReason[] {
  if (agent.overlong_filter) return OVERLONG;
  return mask_truncated_samples ? ["max_response_length_exceeded"] : [];
}

/** Removes trajectories that ended for these reasons from the loss, not from the baseline. Changes the rows' mask. */
function maskByReason(rows: PackedRows, reasons: readonly TerminationReason[]): Metrics {
  if (reasons.length === 0) return {};
  const isMasked = rows.groups.flatMap((group) =>
    group.metadata.map((member) => reasons.includes(member.termination_reason)),
  );
  rows.trajectoryOfRow.forEach((trajectory, row) => {
    if (isMasked[trajectory]) rows.mask.fill(0, rows.offsets[row], rows.offsets[row + 1]);
  });
  return { "batch/masked_overlong_trajectories": isMasked.filter(Boolean).length };
}

/** Tokens before the first sampled one, by row. */
function promptLengths(rows: PackedRows): number[] {
  const { offsets, mask } = rows;
  return Array.from({ length: rowCount(rows) }, (_, row) => {
    const part = mask.subarray(offsets[row], offsets[row + 1]);
    const first = part.indexOf(1);
    return first < 0 ? part.length : first;
  });
}

function rowMetrics(rows: PackedRows, prompts: readonly number[]): Metrics {
  const { offsets, mask, trajectories, trajectoryOfRow } = rows;
  const perRow = prompts.map((prompt, row) => {
    const part = mask.subarray(offsets[row], offsets[row + 1]);
    const trained = part.reduce((sum, bit) => sum + bit, 0);
    return { response: part.length - prompt, trained };
  });
  const rowsPer = new Uint32Array(trajectories.length);
  for (const trajectory of trajectoryOfRow) rowsPer[trajectory]!++;
  const steps = trajectories.reduce((sum, trajectory) => sum + trajectory.steps.length, 0);
  const responses = perRow.map(({ response }) => response);
  return {
    ...spread("response_length", responses),
    ...spread("prompt_length", prompts),
    ...spread("batch/steps_per_traj", rowsPer),
    ...spread("batch/step_response_length", responses),
    ...spread(
      "batch/action_token_ratio",
      perRow.map(({ trained, response }) => trained / Math.max(response, 1)),
    ),
    "batch/merge_compression_ratio": steps / Math.max(perRow.length, 1),
    "response_length/clip_ratio": truncatedShare(rows),
  };
}

function truncatedShare({ groups }: PackedRows): number {
  const members = groups.flatMap((group) => group.metadata);
  const truncated = members.filter((member) => member.termination_reason === "max_response_length_exceeded");
  return truncated.length / Math.max(members.length, 1);
}
