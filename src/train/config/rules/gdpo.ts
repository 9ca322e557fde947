/** Rules of GDPO, which normalises each reward of a trajectory on its own: it must know their names. */
import type { Finding, Rule } from "./rules.ts";

type Read = Parameters<Rule["check"]>[0];

const ESTIMATOR = "rllm.algorithm.adv_estimator";
export const GDPO_KEYS = "algorithm.gdpo_reward_keys";
export const GDPO_WEIGHTS = "algorithm.gdpo_reward_weights";

/** Names and weights, as an estimator's own arguments have them, or the run. */
export interface GdpoArgs {
  readonly gdpo_reward_keys?: unknown;
  readonly gdpo_reward_weights?: unknown;
}

/** Returns the finding that makes GDPO impossible, whichever role's estimator it is. @param args those of the estimator */
export function gdpoFinding(read: Read, args: GdpoArgs): Finding | undefined {
  const keys = args.gdpo_reward_keys ?? read(GDPO_KEYS) ?? [];
  const weights = args.gdpo_reward_weights ?? read(GDPO_WEIGHTS) ?? null;
  const fail = (path: string, message: string): Finding => ({ severity: "error", path, message });
  if (!Array.isArray(keys) || keys.some((key) => typeof key !== "string" || key === "") || isRepeated(keys))
    return fail(GDPO_KEYS, `Cannot set ${GDPO_KEYS}: it takes a list of different names (${JSON.stringify(keys)}).`);
  if (keys.length === 0)
    return fail(
      GDPO_KEYS,
      `Cannot estimate gdpo: ${GDPO_KEYS} names no rewards. Set it to components that the reward returns, for instance [accuracy, format], or choose grpo.`,
    );
  if (weights !== null && !(Array.isArray(weights) && weights.length === keys.length && weights.every(isNumber)))
    return fail(
      GDPO_WEIGHTS,
      `Cannot set ${GDPO_WEIGHTS}: it takes a finite number for each of the ${keys.length} rewards in ${GDPO_KEYS} (${JSON.stringify(weights)}). Null weighs all by 1.`,
    );
  const mode = "rllm.stepwise_advantage.mode";
  if (read("rllm.stepwise_advantage.enable") !== true || read(mode) !== "per_step") return undefined;
  return fail(
    mode,
    `Cannot estimate gdpo with ${mode}=per_step: the components of a reward are those of a trajectory, not of its steps. Set ${mode}=broadcast, or choose another estimator.`,
  );
}

function isRepeated(names: readonly unknown[]): boolean {
  return new Set(names).size < names.length;
}

function isNumber(value: unknown): boolean {
  return typeof value === "number" && Number.isFinite(value);
}

/** A role's estimator may be gdpo where the run's is not. */
function unused(read: Read): Finding | undefined {
  const roles = Object.keys((read("rllm.algorithm.traj_group_adv_estimator_map") ?? {}) as object);
  const path = [GDPO_KEYS, GDPO_WEIGHTS].find((each) => (read(each) ?? null) !== null);
  if (path === undefined || roles.length > 0) return undefined;
  const message = `${path} has no effect: ${ESTIMATOR} is ${read(ESTIMATOR)}, and gdpo alone reads it.`;
  return { severity: "warning", path, message };
}

export const GDPO_RULES: readonly Rule[] = [
  {
    backends: "all",
    check: (read) =>
      read(ESTIMATOR) === "gdpo"
        ? gdpoFinding(read, (read("rllm.algorithm.estimator_args") ?? {}) as GdpoArgs)
        : unused(read),
  },
];
