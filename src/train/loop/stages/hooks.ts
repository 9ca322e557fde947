/**
 * Groupings and rejections by name, so that a configuration can choose them. A module given by `--import` registers its
 * own:
 *
 *     import { registerGrouping, registerRejection } from "grpu";
 *     registerGrouping("whole_batch", (episodes) => [ ... ]);              // rllm.algorithm.traj_grouping_hook=whole_batch
 *     registerRejection("hardest", ({ groups }) => groups.slice(0, 8));    // rllm.rejection_sample.mode=hardest
 */
import { createRegistry } from "../../../leaves/registry.ts";
import type { GroupingHook, RejectionFunction } from "../contract.ts";

export const groupings = createRegistry<GroupingHook>("grouping", {
  setting: "rllm.algorithm.traj_grouping_hook",
});
export const rejections = createRegistry<RejectionFunction>("rejection", {
  setting: "rllm.rejection_sample.mode",
});

/** Makes a grouping known as `rllm.algorithm.traj_grouping_hook`. The last registration of a name counts. */
export function registerGrouping(name: string, hook: GroupingHook): void {
  groupings.register(name, hook);
}

/** Makes a rejection known as `rllm.rejection_sample.mode`. The last registration of a name counts. */
export function registerRejection(name: string, choose: RejectionFunction): void {
  rejections.register(name, choose);
}
