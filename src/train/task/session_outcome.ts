/** The end of an attempt as the outcome of its recorded session: what a run trains on, by the ids of its calls. */
import type { SessionCall, SessionOutcome, SessionTrajectory } from "../../engine/contract/trace.ts";
import type { Step } from "../data/types.ts";
import { type AttemptEnd, type RolloutResult, type RolloutTrajectory, Termination } from "./rollout.ts";

/** An outcome that is not stored yet. */
export type NewOutcome = Omit<SessionOutcome, "ended_at">;

/** How trajectories are written. */
export interface OutcomeOptions {
  /** Id of the trace that records a step, undefined where none does. Default: the step's own id. */
  readonly traceOf?: (step: Step) => string | undefined;
  /** A trajectory's key in `trajectory_rewards`. Default: its name, followed by its number where others have the name. */
  readonly labelOf?: (trajectory: RolloutTrajectory) => string | undefined;
}

/**
 * The outcome's `reward` is that of all trajectories where they share one; else `trajectory_rewards` has them by label. An
 * attempt that failed has neither. Where a step was not recorded, `trajectories` is left out.
 */
export function outcomeOf(end: AttemptEnd, options: OutcomeOptions = {}): NewOutcome {
  if ("error" in end) return { reward: null, termination_reason: reasonOf(end.error) };
  const { is_correct, metrics, termination_reason, trajectories } = end.result;
  const labels = labelsOf(trajectories, options);
  const rewards = trajectories.map(({ reward, steps }) => reward ?? steps.at(-1)?.reward ?? 0);
  const [first = null, ...others] = rewards;
  const isShared = others.every((reward) => reward === first);
  const signals = sharedSignals(trajectories);
  const recorded = trajectories.flatMap((each, i) => recordedTrajectory(each, { ...options, label: labels[i]! }) ?? []);
  return {
    reward: isShared ? first : null,
    ...(!isShared && { trajectory_rewards: Object.fromEntries(labels.map((label, i) => [label, rewards[i]!])) }),
    ...(is_correct !== undefined && { is_correct }),
    ...(metrics && { metrics }),
    ...(signals && { signals }),
    ...(termination_reason && { termination_reason }),
    ...(recorded.length === trajectories.length && { trajectories: recorded }),
  };
}

function reasonOf(error: unknown): string {
  return error instanceof Termination ? error.reason : "error";
}

function sharedSignals([first, ...others]: RolloutResult["trajectories"]): RolloutTrajectory["signals"] {
  const text = JSON.stringify(first?.signals);
  return others.every(({ signals }) => JSON.stringify(signals) === text) ? first?.signals : undefined;
}

/** Distinct, also where `labelOf` gives one label twice, or a name is what another trajectory is numbered as. */
function labelsOf(trajectories: RolloutResult["trajectories"], { labelOf }: OutcomeOptions): string[] {
  const wanted = trajectories.map((each) => labelOf?.(each) ?? each.name ?? "");
  const isShared = (label: string) => wanted.indexOf(label) !== wanted.lastIndexOf(label);
  const used = new Set(wanted.filter((label) => !isShared(label)));
  return wanted.map((label) => {
    if (!isShared(label)) return label;
    let number = 0;
    while (used.has(`${label}/${number}`)) number++;
    used.add(`${label}/${number}`);
    return `${label}/${number}`;
  });
}

function recordedTrajectory(
  { name = "", reward = null, signals, steps }: RolloutTrajectory,
  { label, traceOf = ({ id }) => id }: OutcomeOptions & { readonly label: string },
): SessionTrajectory | undefined {
  const calls = steps.flatMap((step): SessionCall[] => {
    const trace_id = traceOf(step);
    const { reward, advantage } = step;
    return trace_id === undefined ? [] : [{ trace_id, reward, ...(advantage != null && { advantage }) }];
  });
  if (calls.length < steps.length) return undefined;
  return { name, label, reward, ...(signals && { signals }), calls };
}
