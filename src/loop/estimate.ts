/** Advantages by the published estimators: on the host, or on the device that trains. */
import { advantages } from "../algorithm/advantages.ts";
import { countRows } from "../algorithm/aggregation.ts";
import { type EstimatorSettings, estimatorNames, findEstimator } from "../algorithm/estimator.ts";
import { packGroups } from "../algorithm/groups.ts";
import { hasAdvantageKernel, recordAdvantages } from "../algorithm/record_advantages.ts";
import type { Device } from "../compute/device.ts";
import type { AdvantageOptions, EstimateAdvantages } from "./advantages.ts";

/**
 * Runs a registered estimator on one role's rewards, on the host in float64. Where rLLM and verl differ under one name
 * (`grpo` divides by the population's deviation in rLLM, by the sample's in verl), the loop's settings mean rLLM's.
 */
export const estimateAdvantages: EstimateAdvantages = (rewards, groups, options) => {
  const { name, settings } = choose(options);
  const batch = { ...rowsOfOne(rewards.length), groups: packed(groups), scores: rewards };
  return Float32Array.from(advantages(batch, name, settings).advantages);
};

/** {@link estimateAdvantages} by the device's kernels; estimators that are functions of the host run there. */
export function estimateAdvantagesOn(device: Device): EstimateAdvantages {
  return async (rewards, groups, options) => {
    const { name, settings } = choose(options);
    if (rewards.length === 0 || !hasAdvantageKernel(name))
      return estimateAdvantages(rewards, groups, options);
    const { offsets, mask } = rowsOfOne(rewards.length);
    const buffers = {
      scores: device.upload(rewards, "rewards"),
      mask: device.upload(mask, "mask"),
      offsets: device.upload(offsets, "row offsets"),
    };
    const counts = countRows(offsets, mask);
    const recorded = recordAdvantages(device, name, { buffers, groups: packed(groups), counts, settings });
    const [values] = await device.read([
      { buffer: recorded.advantages, type: "f32", length: rewards.length },
    ]);
    recorded.release();
    device.release(...Object.values(buffers));
    return values as Float32Array;
  };
}

function choose({ name, norm_adv_by_std_in_grpo }: AdvantageOptions): {
  name: string;
  settings: EstimatorSettings;
} {
  const estimator = findEstimator(estimatorNames().includes(`rllm.${name}`) ? `rllm.${name}` : name);
  const settings: EstimatorSettings =
    "norm_adv_by_std_in_grpo" in estimator.settings ? { norm_adv_by_std_in_grpo } : {};
  return { name: estimator.name, settings };
}

function packed(groups: Uint32Array) {
  return packGroups(
    groups,
    groups.reduce((most, group) => Math.max(most, group + 1), 0),
  );
}

/** Each trajectory as a row of one token: batch-wide statistics weigh trajectories alike. */
function rowsOfOne(count: number) {
  return {
    offsets: Uint32Array.from({ length: count + 1 }, (_, i) => i),
    mask: new Uint32Array(count).fill(1),
  };
}
