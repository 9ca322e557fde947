/** The metrics of a validation, of episodes that exist already: under the names that training logs. */
import type { Metrics } from "../../engine/contract/backend.ts";
import type { Episode } from "../data/types.ts";
import { groupBy } from "../loop/group_by.ts";
import type { LoopSettings } from "../loop/settings.ts";
import { checkRewards, filterMasked, filterMismatched, group, nameTrajectories } from "../loop/stages/transform.ts";
import { roleRewards, scores, validationBatchSize } from "../loop/validate.ts";

/**
 * Rewards are measured batch by batch, as a validation does it (`data.val_batch_size`), so that the same attempts have the same scores.
 * @throws {ConfigError} for a reward that is missing or not finite, with its trajectory
 */
export function validationScores(episodes: readonly Episode[], settings: LoopSettings): Metrics {
  const size = validationBatchSize(settings, Number.POSITIVE_INFINITY);
  const batches = groupBy(episodes, ({ task_index }) => Math.floor(task_index / size));
  const rewards = Array.from(batches.values(), (batch) => rewardsOf(batch, settings));
  return scores(rewards.flat(), { episodes, settings });
}

function rewardsOf(episodes: readonly Episode[], settings: LoopSettings): Metrics[] {
  const named = nameTrajectories(episodes, { settings });
  const unmasked = filterMasked(named.value, { settings });
  const sound = filterMismatched(unmasked.value, { settings });
  return roleRewards(checkRewards(group(sound.value, { settings, grouping: undefined }).value).value);
}
