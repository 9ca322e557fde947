/** Rewards of a session's trajectories: the agent's own, or those of the run's judge where it reports none. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { Task } from "../../data/types.ts";
import { type Completion, evaluationOf, type Reward, type RolloutResult, replyText, signalsOf } from "../rollout.ts";
import type { Asked } from "./answer.ts";
import type { AgentReport } from "./contract.ts";
import type { NamedTrajectory } from "./roles.ts";

/** An attempt and the judge of its report. */
export interface JudgedAttempt {
  readonly task: Task;
  readonly asked: Asked;
  /** Judges the last reply where the agent reports no reward. */
  readonly reward?: Reward | undefined;
  /** An evaluator judges where the agent reports no reward. */
  readonly isJudgedLater: boolean;
}

/**
 * The reward of each trajectory: its own, that of all, or the judge's.
 * @throws {ConfigError} for a session without calls, a reward of an unknown trajectory, and where nothing judges
 */
export async function judgeSession(
  report: AgentReport,
  named: readonly NamedTrajectory[],
  attempt: JudgedAttempt,
): Promise<RolloutResult> {
  const { termination_reason, metadata } = report;
  // A map, because an agent may name a trajectory `constructor`.
  const rewards = new Map(Object.entries(report.trajectory_rewards ?? {}));
  checkTrajectories(named, rewards, attempt.asked);
  const rewardFor = ({ label, name }: NamedTrajectory) => rewards.get(label) ?? rewards.get(name ?? "");
  const isWhole = report.reward !== undefined || named.every((each) => rewardFor(each) !== undefined);
  const judged = isWhole ? undefined : await judgeLastReply(named, attempt);
  const reward = report.reward ?? judged?.reward;
  const is_correct = report.is_correct ?? judged?.is_correct ?? (reward === undefined ? undefined : reward > 0);
  const reported = signalsOf(report);
  const ours = judged && signalsOf(judged);
  const signals = (reported ?? ours) && { ...ours, ...reported };
  const trajectories = named.map((each) => {
    const { label: _, ...trajectory } = each;
    return { ...trajectory, reward: rewardFor(each) ?? reward ?? null, ...(signals && { signals }) };
  });
  return {
    trajectories,
    metrics: { ...judged?.metrics, ...report.metrics },
    ...(is_correct !== undefined && { is_correct }),
    ...(termination_reason && { termination_reason }),
    ...(metadata && { metadata }),
  };
}

/** Undefined: an evaluator judges after the rollout. */
async function judgeLastReply(
  trajectories: readonly NamedTrajectory[],
  { reward, isJudgedLater, task, asked }: JudgedAttempt,
) {
  if (reward) return evaluationOf(await reward(replyText(lastStep(trajectories)), task));
  if (isJudgedLater) return undefined;
  throw new ConfigError(
    `Cannot judge the session ${asked.session_id}: the agent ${asked.url} reports no reward and nothing else judges it. Answer {"reward": NUMBER}, or set task.reward or task.evaluator.`,
    { kind: "code", path: "task.reward" },
  );
}

/** The agent's final reply: of the trajectory that was begun last. */
function lastStep(trajectories: readonly NamedTrajectory[]): Completion {
  return trajectories.at(-1)!.steps.at(-1) as Completion;
}

function checkTrajectories(
  trajectories: readonly NamedTrajectory[],
  rewards: ReadonlyMap<string, number>,
  { url, session_id }: Asked,
): void {
  const from = `the agent ${url} for the session ${session_id}`;
  if (trajectories.length === 0)
    throw new ConfigError(
      `Cannot train on what came from ${from}: it answered without a call to the model. Let it call base_url with api_key.`,
      { kind: "code" },
    );
  const labels = new Set(trajectories.flatMap(({ label, name }) => [label, name ?? ""]));
  const other = [...rewards.keys()].find((label) => !labels.has(label));
  if (other === undefined) return;
  throw new ConfigError(
    `Cannot use the reward of the trajectory ${other} from ${from}: there is no such trajectory. There are ${[...labels].join(", ")}.`,
    { kind: "code" },
  );
}
