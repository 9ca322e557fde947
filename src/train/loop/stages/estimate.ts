/** Advantages by the published estimators, on the host or on the training device. */
import type { EstimatorSettings } from "../../../engine/algorithm/advantage/definition.ts";
import { hasAdvantageKernel, recordAdvantages } from "../../../engine/algorithm/advantage/device.ts";
import { estimatorNames, findEstimator } from "../../../engine/algorithm/advantage/estimators.ts";
import { packGroups } from "../../../engine/algorithm/advantage/groups.ts";
import { advantages } from "../../../engine/algorithm/advantage/host.ts";
import { countRows } from "../../../engine/algorithm/rows.ts";
import { mergeSettings } from "../../../engine/algorithm/settings.ts";
import type { Device } from "../../../engine/compute/device.ts";
import type { AdvantageOptions, EstimateAdvantages, EstimatedAdvantages } from "../contract.ts";

/**
 * Runs a registered estimator on one role's rewards, on the host in float64. A name that rLLM and verl define
 * differently means rLLM's (`grpo` divides by the population deviation in rLLM, by the sample deviation in verl).
 */
export const estimateAdvantages: EstimateAdvantages = Object.assign(estimateOnHost, {
  check: checkEstimator,
});

function estimateOnHost(
  rewards_N: Float32Array,
  groups_N: Uint32Array,
  options: AdvantageOptions,
): EstimatedAdvantages {
  const { name, settings } = choose(options);
  const rows = rowsOf(rewards_N.length, { ...options, name });
  const { values, baselines: rewardBaselines, components: rewardComponents } = options;
  const batch = { ...rows, groups: packed(groups_N), scores: rewards_N, values, rewardBaselines, rewardComponents };
  const { level, values: estimated, returns } = advantages(batch, name, settings);
  return { level, values: Float32Array.from(estimated), ...(returns && { returns: Float32Array.from(returns) }) };
}

/** {@link estimateAdvantages} on the device. Estimators without a kernel run on the host. */
export function estimateAdvantagesOn(device: Device): EstimateAdvantages {
  const estimate: EstimateAdvantages = async (rewards_N, groups_N, options) => {
    const { name, settings } = choose(options);
    const { components: rewardComponents } = options;
    if (rewards_N.length === 0 || !hasAdvantageKernel(name, { rewardComponents }))
      return estimateAdvantages(rewards_N, groups_N, options);
    const { offsets, mask: mask_T } = rowsOf(rewards_N.length, { ...options, name });
    const buffers = {
      scores: device.upload(rewards_N, "rewards"),
      mask: device.upload(mask_T, "mask"),
      offsets: device.upload(offsets, "row offsets"),
      ...(options.values && { values: device.upload(options.values, "values") }),
      ...(options.baselines && { rewardBaselines: device.upload(options.baselines, "reward baselines") }),
    };
    const counts = countRows(offsets, mask_T);
    const recorded = recordAdvantages(device, name, { buffers, groups: packed(groups_N), counts, settings });
    const { level, values: buffer } = recorded.advantages;
    const length = level === "row" ? rewards_N.length : mask_T.length;
    const wanted = [buffer, ...(recorded.returns ? [recorded.returns] : [])];
    const read = await device.read(wanted.map((buffer) => ({ buffer, type: "f32" as const, length })));
    const [values, returns] = read as Float32Array[];
    recorded.release();
    device.release(...Object.values(buffers));
    return { level, values: values!, returns };
  };
  return Object.assign(estimate, { check: checkEstimator });
}

function checkEstimator(name: string, args: Readonly<Record<string, unknown>>): void {
  const { name: estimator, settings } = choose({ name, norm_adv_by_std_in_grpo: true, settings: args });
  mergeSettings("estimator", findEstimator(estimator), settings);
}

function choose({ name, norm_adv_by_std_in_grpo, gamma, lam, settings = {} }: AdvantageOptions): {
  name: string;
  settings: EstimatorSettings;
} {
  const estimator = findEstimator(estimatorNames().includes(`rllm.${name}`) ? `rllm.${name}` : name);
  const shared = Object.entries({ norm_adv_by_std_in_grpo, gamma, lam }).filter(
    ([key, value]) => key in estimator.settings && value !== null && value !== undefined,
  );
  return { name: estimator.name, settings: { ...Object.fromEntries(shared), ...settings } };
}

function packed(groups_N: Uint32Array) {
  return packGroups(
    groups_N,
    groups_N.reduce((most, group) => Math.max(most, group + 1), 0),
  );
}

/**
 * Trajectories as rows of their trained tokens. For rLLM's estimators each row has one token, because their batch
 * statistics weight trajectories equally; verl's weight tokens equally.
 */
function rowsOf(count: number, { name, lengths }: Pick<AdvantageOptions, "name" | "lengths">) {
  const offsets = new Uint32Array(count + 1);
  for (let i = 0; i < count; i++) {
    offsets[i + 1] = offsets[i]! + (name.startsWith("rllm.") ? 1 : (lengths?.[i] ?? 1));
  }
  return { offsets, mask: new Uint32Array(offsets[count]!).fill(1) };
}
