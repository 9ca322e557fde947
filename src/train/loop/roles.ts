/** The estimator and the loss of a role: those of `traj_group_adv_estimator_map`, or the run's. */
import { ConfigError } from "../../leaves/errors.ts";
import type { LoopSettings } from "./settings.ts";

type Args = Readonly<Record<string, unknown>>;

export interface RoleAlgorithm {
  readonly estimator: string;
  readonly estimator_args: Args;
  readonly loss: string;
  readonly loss_args: Args;
}

/** rLLM's default loss for an estimator. */
const LOSS_OF_ESTIMATOR: Readonly<Record<string, string>> = { grpo: "ppo" };
const OTHER_LOSS = "importance_sampling";

/**
 * A role's estimator and loss with their arguments. A role with another estimator or loss does not take over the run's
 * arguments for it.
 * @throws {ConfigError} for an entry of the map that cannot be read
 */
export function algorithmOf(role: string, algorithm: LoopSettings["algorithm"]): RoleAlgorithm {
  const entry = readEntry(role, algorithm.traj_group_adv_estimator_map[role]);
  const estimator = entry.estimator ?? algorithm.adv_estimator;
  const args = entry.estimator_args ?? (entry.estimator === undefined ? algorithm.estimator_args : {});
  const loss = entry.loss_fn ?? algorithm.loss_fn ?? LOSS_OF_ESTIMATOR[estimator] ?? OTHER_LOSS;
  return {
    estimator,
    estimator_args: estimator === "gdpo" ? { ...gdpoArgs(algorithm), ...args } : args,
    loss,
    loss_args: entry.loss_args ?? (entry.loss_fn === undefined ? algorithm.loss_args : {}),
  };
}

/** They name it, so that they hold for every role with this estimator. */
function gdpoArgs({ gdpo_reward_keys, gdpo_reward_weights }: LoopSettings["algorithm"]): Args {
  return { gdpo_reward_keys, gdpo_reward_weights };
}

/** The components of rewards that estimators read. */
export function componentKeys(algorithm: LoopSettings["algorithm"]): readonly string[] {
  const roles = ["", ...Object.keys(algorithm.traj_group_adv_estimator_map)].map((role) =>
    algorithmOf(role, algorithm),
  );
  const keys = roles.flatMap(({ estimator, estimator_args }) =>
    estimator === "gdpo" ? ((estimator_args.gdpo_reward_keys ?? []) as readonly string[]) : [],
  );
  return [...new Set(keys)];
}

interface Entry {
  readonly estimator?: string;
  readonly estimator_args?: Args;
  readonly loss_fn?: string;
  readonly loss_args?: Args;
}

const ENTRY: Readonly<Record<keyof Entry, "string" | "object">> = {
  estimator: "string",
  estimator_args: "object",
  loss_fn: "string",
  loss_args: "object",
};

/** `rloo`, `[rloo, cispo]` (rLLM's tuple) or `{estimator: rloo, loss_fn: cispo}`. */
function readEntry(role: string, entry: unknown): Entry {
  if (entry === undefined) return {};
  if (typeof entry === "string") return { estimator: entry };
  if (Array.isArray(entry) && entry.length === 2) {
    return readEntry(role, { estimator: entry[0], loss_fn: entry[1] });
  }
  const isFit =
    typeof entry === "object" &&
    entry !== null &&
    !Array.isArray(entry) &&
    Object.entries(entry).every(
      ([key, value]) => Object.hasOwn(ENTRY, key) && typeof value === ENTRY[key as keyof Entry] && value !== null,
    );
  if (isFit) return entry as Entry;
  throw new ConfigError(
    `Cannot read the entry of the role ${role}: ${JSON.stringify(entry)}. Give an estimator, [estimator, loss], or {${Object.keys(ENTRY).join(", ")}}.`,
    { path: `rllm.algorithm.traj_group_adv_estimator_map.${role}` },
  );
}
