/** The published versions of verl that runs are made for, and what differs between them where a run meets it. */
import { verlEstimatorNames } from "../../engine/algorithm/advantage/estimators.ts";
import { verlLossNames } from "../../engine/algorithm/loss/losses.ts";
import { ConfigError } from "../../leaves/errors.ts";

export interface VerlVersion {
  readonly name: string;
  /** The packaged tree of settings: `config/verl/<tree>.yaml`. */
  readonly tree: string;
  /** Settings of that tree which this version does not have. */
  readonly lacks?: RegExp;
  /** Defaults that differ from that tree. */
  readonly defaults?: Readonly<Record<string, null | string>>;
  /** The trainer that keeps rollouts in TransferQueue (`trainer.use_v1`). */
  readonly hasV1: boolean;
  /** Values of `algorithm.adv_estimator`. */
  readonly estimators: readonly string[];
  /** Values of `actor_rollout_ref.actor.policy_loss.loss_mode`. */
  readonly losses: readonly string[];
  /** Losses that are averaged by `loss_agg_mode` in this version, and by their own mode in the others and here. */
  readonly averagesByMode: readonly string[];
  /** Requirements of a worker's Python, besides an inference engine. */
  readonly pip: readonly string[];
}

const ESTIMATORS = verlEstimatorNames();
/** `bypass_mode` takes its loss from the correction. */
const lossesOf = (version: string) => [...verlLossNames(version), "bypass_mode"];

/** Added to the tree between 0.9.0 and 0.9.1. */
const SINCE_091 =
  /\.(turbo_config|hybrid_rollout)\.|\.(use_no_sync_for_gradient_accumulation|finish_hook_\w+|relocate_results|memory_snapshot_num_steps|router_config_path|checkpoint_callback_class)$|^ray_kwargs\.ray_init\.runtime_env\.py_executable$/;

const V1 = { tree: "0.9.1", hasV1: true, estimators: ESTIMATORS } as const;

/** Oldest first. */
const VERSIONS: readonly VerlVersion[] = [
  {
    ...{ name: "0.8.0", tree: "0.8.0", hasV1: false, estimators: ESTIMATORS, losses: lossesOf("0.8.0") },
    ...{ averagesByMode: [], pip: ["verl==0.8.0"] },
  },
  {
    ...V1,
    name: "0.9.0",
    losses: lossesOf("0.9.0"),
    lacks: SINCE_091,
    defaults: { "algorithm.filter_groups.metric": null },
    averagesByMode: [],
    pip: ["verl[verl-core]==0.9.0", "orjson"],
  },
  {
    ...{ ...V1, name: "0.9.1", losses: lossesOf("0.9.1") },
    ...{ averagesByMode: ["gspo"], pip: ["verl[verl-core]==0.9.1", "orjson"] },
  },
];

export const VERL_RUN_VERSIONS: readonly string[] = VERSIONS.map(({ name }) => name);

/**
 * The version by its name: `0.9.1`, `0.9` (the newest of them) or `newest`.
 *
 * @throws {ConfigError} for a version that is not known.
 */
export function verlVersion(name: string): VerlVersion {
  const found = VERSIONS.findLast((version) => name === "newest" || `${version.name}.`.startsWith(`${name}.`));
  if (found) return found;
  throw new ConfigError(
    `Cannot make a run for verl ${name}: the known versions are ${VERL_RUN_VERSIONS.join(", ")}. Choose one of them.`,
  );
}
