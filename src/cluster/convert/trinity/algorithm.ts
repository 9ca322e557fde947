/** Writes verl's estimator, KL and loss as Trinity's `algorithm` section. */

import { ownAggregation } from "../../../engine/algorithm/loss/losses.ts";
import type { Build } from "../build.ts";
import { ADVANTAGE_ARGS, ESTIMATORS, KL_TO_TRINITY, LOSS_ARGS, VERL_CLIP_DEFAULT, WITHOUT_TYPE } from "./rows.ts";

const ACTOR = "actor_rollout_ref.actor";

export function putAlgorithm(build: Build): void {
  const path = "algorithm.adv_estimator";
  const estimator = String(build.take(path) ?? "gae");
  const advantage = [...ESTIMATORS, ...WITHOUT_TYPE].find(([name]) => name === estimator)?.[1];
  const hasType = ESTIMATORS.some(([name]) => name === estimator);
  if (!hasType && !build.options.profile.has("algorithm.algorithm_type")) {
    const why = advantage
      ? `Trinity has the advantage_fn ${advantage}, and no algorithm type or workflow that rolls out its greedy baseline`
      : `Trinity has no such estimator (it has ${ESTIMATORS.map(([name]) => name).join(", ")})`;
    build.fail(
      `Cannot convert ${path}=${estimator}: ${why}. Give algorithm.algorithm_type and algorithm.advantage_fn in the profile.`,
      path,
    );
  }
  if (hasType) build.put("algorithm.algorithm_type", advantage as string, { kind: "computed", from: [path] });
  if (advantage !== undefined) build.put("algorithm.advantage_fn", advantage, { kind: "renamed", from: [path] });
  if (build.peek("algorithm.norm_adv_by_std_in_grpo") === false) {
    build.drop(
      "algorithm.norm_adv_by_std_in_grpo",
      "Trinity's grpo always divides by the deviation (rec has std_normalize)",
    );
  } else if (build.has("algorithm.norm_adv_by_std_in_grpo")) {
    build.drop("algorithm.norm_adv_by_std_in_grpo", "what Trinity's grpo does anyway");
  }
}

/** Leaves out arguments that a Trinity function does not take; they have no effect in verl there either. */
function dropArguments(
  build: Build,
  section: string,
  { name, takes }: { name: string; takes?: readonly string[] | undefined },
): void {
  if (takes === undefined) return;
  for (const [path, { from }] of [...build.values]) {
    const key = path.startsWith(`${section}.`) ? path.slice(section.length + 1) : undefined;
    if (key === undefined || takes.includes(key)) continue;
    build.values.delete(path);
    for (const origin of from) build.drop(origin, `${name} does not take it`);
  }
}

const AGGREGATION = "algorithm.loss_agg_mode";
const CLIP = "algorithm.policy_loss_fn_args.clip_range";

/** Arguments of a loss replace all of Trinity's defaults, which differ by loss; verl clips every loss by 0.2. */
export function completeArguments(build: Build): void {
  const advantage = String(build.values.get("algorithm.advantage_fn")?.value ?? "");
  dropArguments(build, "algorithm.advantage_fn_args", {
    name: `Trinity's ${advantage}`,
    takes: ADVANTAGE_ARGS[advantage],
  });
  const loss = String(build.values.get("algorithm.policy_loss_fn")?.value ?? "ppo");
  const isSet = (side: string) => build.values.has(`${CLIP}${side}`);
  if (isSet("") && !(isSet("_low") && isSet("_high"))) {
    build.check(
      `verl reads clip_ratio only where clip_ratio_low and _high are null; by default they are ${VERL_CLIP_DEFAULT}`,
      `${ACTOR}.clip_ratio`,
    );
  }
  dropArguments(build, "algorithm.policy_loss_fn_args", {
    name: `Trinity's ${loss}`,
    takes: LOSS_ARGS[loss],
  });
  const lossMode = ownAggregation(loss);
  if (lossMode !== undefined && !build.values.has(AGGREGATION))
    build.put(AGGREGATION, lossMode, { kind: "computed", message: `verl's ${loss} brings it, before and after 0.9.1` });
  const hasArguments = [...build.values.keys()].some((path) => path.startsWith("algorithm.policy_loss_fn_args."));
  const isComplete = isSet("") || loss === "sapo" || (loss === "ppo" && !hasArguments);
  for (const side of isComplete ? [] : ["_low", "_high"].filter((side) => !isSet(side))) {
    build.put(`${CLIP}${side}`, VERL_CLIP_DEFAULT, { kind: "computed", message: "verl's default" });
  }
}

interface KlSide {
  readonly use: string;
  readonly kind: string;
  readonly coefficient: string;
  readonly defaultKind: string;
  readonly fn: string;
}

export function putKl(build: Build): void {
  putKlSide(build, {
    use: "algorithm.use_kl_in_reward",
    kind: "algorithm.kl_penalty",
    coefficient: "algorithm.kl_ctrl.kl_coef",
    defaultKind: "kl",
    fn: "algorithm.kl_penalty_fn",
  });
  putKlSide(build, {
    use: `${ACTOR}.use_kl_loss`,
    kind: `${ACTOR}.kl_loss_type`,
    coefficient: `${ACTOR}.kl_loss_coef`,
    defaultKind: "low_var_kl",
    fn: "algorithm.kl_loss_fn",
  });
  if (build.peek("algorithm.use_kl_in_reward") === true && build.peek(`${ACTOR}.use_kl_loss`) === true) {
    build.check("KL counts twice: in the reward and in the loss");
  }
}

function putKlSide(build: Build, side: KlSide): void {
  const isLoss = side.fn.endsWith("loss_fn");
  const isOn = build.take(side.use) === true;
  if (!isOn) {
    // Trinity's default for the loss is k2, so off must be written.
    if (isLoss || build.has(side.use)) build.put(side.fn, "none", { kind: "merged", from: [side.use] });
    for (const path of [side.kind, side.coefficient]) {
      if (build.has(path)) build.drop(path, `${side.use} is false, so it has no effect`);
    }
    return;
  }
  const kind = String(build.take(side.kind) ?? side.defaultKind);
  const fn = KL_TO_TRINITY[kind];
  if (fn === undefined) {
    build.fail(
      `Cannot convert ${side.kind}=${kind}: Trinity has no such estimator. Choose one of ${Object.keys(KL_TO_TRINITY).join(", ")}.`,
      side.kind,
    );
    return;
  }
  const isClamped = kind === "k3" ? "verl clamps its k3, so this is Trinity's low_var_kl" : undefined;
  build.put(side.fn, fn, { kind: "merged", from: [side.use, side.kind], message: isClamped });
}
