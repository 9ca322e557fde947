/** Which estimator and which loss a role trains with: its own by `traj_group_adv_estimator_map`, or the run's. */
import { ConfigError } from "../../errors.ts";
import type { LoopSettings } from "../settings.ts";

type Args = Readonly<Record<string, unknown>>;

export interface RoleAlgorithm {
  readonly estimator: string;
  readonly estimator_args: Args;
  readonly loss: string;
  readonly loss_args: Args;
}

/** rLLM's choice of loss for an estimator, where no loss is named. */
const LOSS_OF_ESTIMATOR: Readonly<Record<string, string>> = { grpo: "ppo" };
const OTHER_LOSS = "importance_sampling";

/**
 * A role's algorithm. Arguments belong to the estimator or loss that they were given for: a role with one of its own
 * has its own arguments.
 * @throws {ConfigError} for an entry of the map that is none.
 */
export function algorithmOf(role: string, algorithm: LoopSettings["algorithm"]): RoleAlgorithm {
  const own = readEntry(role, algorithm.traj_group_adv_estimator_map[role]);
  const estimator = own.estimator ?? algorithm.adv_estimator;
  const loss = own.loss_fn ?? algorithm.loss_fn ?? LOSS_OF_ESTIMATOR[estimator] ?? OTHER_LOSS;
  return {
    estimator,
    estimator_args: own.estimator_args ?? (own.estimator === undefined ? algorithm.estimator_args : {}),
    loss,
    loss_args: own.loss_args ?? (own.loss_fn === undefined ? algorithm.loss_args : {}),
  };
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
    Object.entries(entry).every(
      ([key, value]) =>
        Object.hasOwn(ENTRY, key) && typeof value === ENTRY[key as keyof Entry] && value !== null,
    );
  if (isFit) return entry as Entry;
  throw new ConfigError(
    `Cannot read the role's entry as it is an estimator, [estimator, loss], or {${Object.keys(ENTRY).join(", ")}}: ${JSON.stringify(entry)}`,
    { path: `rllm.algorithm.traj_group_adv_estimator_map.${role}` },
  );
}
