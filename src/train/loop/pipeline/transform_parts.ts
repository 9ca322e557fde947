/** The parts of the stage `transform` as stages of a pipeline. */
import type { Episode } from "../../data/types.ts";
import type { StageContext, Staged } from "../contract.ts";
import { filterStale } from "../stages/staleness.ts";
import { checkRewards, filterMasked, filterMismatched, group, nameTrajectories } from "../stages/transform.ts";
import { asPipelineStage, type PipelineStage, valueAs } from "./stage.ts";

type Filter = (episodes: readonly Episode[], context: StageContext) => Staged<readonly Episode[]>;

const filter = (name: string, run: Filter) =>
  asPipelineStage({
    name,
    needs: ["eligible"],
    gives: ["eligible"],
    run: ({ eligible }, context) => valueAs("eligible", run(eligible, context)),
  });

export const TRANSFORM_PARTS: readonly PipelineStage[] = [
  filter("name_trajectories", nameTrajectories),
  filter("filter_masked", filterMasked),
  filter("filter_mismatched", filterMismatched),
  filter("filter_stale", filterStale),
  asPipelineStage({
    name: "group",
    needs: ["eligible"],
    gives: ["groupings"],
    run: ({ eligible }, context) => valueAs("groupings", group(eligible, context)),
  }),
  asPipelineStage({
    name: "check_rewards",
    needs: ["groupings"],
    gives: ["groups"],
    run: ({ groupings }) => valueAs("groups", checkRewards(groupings)),
  }),
];
