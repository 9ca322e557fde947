/** The metrics of a validation, of episodes that exist already: under the names that training logs. */
import type { Metrics } from "../contract/backend.ts";
import type { Episode } from "../data/types.ts";
import type { LoopSettings } from "../loop/settings.ts";
import { checkRewards, filterMasked, group, nameTrajectories } from "../loop/stages/transform.ts";
import { roleRewards, scores } from "../loop/validate.ts";

/** @throws {ConfigError} for a reward that is missing or not finite, with its trajectory */
export function validationScores(episodes: readonly Episode[], settings: LoopSettings): Metrics {
  const named = nameTrajectories(episodes, { settings });
  const unmasked = filterMasked(named.value, { settings });
  const groups = checkRewards(group(unmasked.value, { settings, grouping: undefined }).value);
  return scores(roleRewards(groups.value), { episodes, settings });
}
