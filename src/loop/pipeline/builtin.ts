/** The loop's own stages, and the parts of `transform`, as a pipeline sees them. */
import type { Episode } from "../../data/types.ts";
import type { StageContext, Staged, Stages } from "../contract.ts";
import {
  checkRewards,
  filterMasked,
  filterMismatched,
  group,
  nameTrajectories,
} from "../stages/transform.ts";
import { STAGES } from "../stages.ts";
import { progress, throughput } from "../step.ts";
import { asPipelineStage, type Given, type PipelineStage, type Slot, type StepValues } from "./stage.ts";

/** The loop's own stages as a pipeline sees them, over the run's record of functions. */
export function builtIns(stages: Stages): PipelineStage[] {
  return [
    asPipelineStage({
      name: "generate",
      needs: ["tasks"],
      gives: ["episodes", "eligible"],
      run: async ({ tasks }, context) => {
        const { value: episodes, metrics } = await stages.generate(tasks, context);
        return { episodes, eligible: episodes, metrics };
      },
    }),
    asPipelineStage({
      name: "transform",
      needs: ["eligible"],
      gives: ["groups"],
      run: async ({ eligible }, context) => as("groups", await stages.transform(eligible, context)),
    }),
    ...transformParts(),
    asPipelineStage({
      name: "reject",
      needs: ["episodes", "groups", "held"],
      gives: ["groups", "held"],
      run: async (candidates, context) => {
        const { value, metrics } = await stages.reject(candidates, context);
        return { ...value, metrics };
      },
    }),
    asPipelineStage({
      name: "batch",
      needs: ["groups"],
      gives: ["rows"],
      run: async ({ groups }, context) =>
        groups.length > 0 ? as("rows", await stages.batch(groups, context)) : undefined,
    }),
    asPipelineStage({
      name: "process",
      needs: ["rows"],
      gives: ["logprobs"],
      run: async ({ rows }, context) => {
        const { value, metrics } = await stages.process(rows, context);
        const { oldLogprobs, refLogprobs, rolloutIsWeights } = value;
        return { logprobs: { oldLogprobs, refLogprobs, rolloutIsWeights }, metrics };
      },
    }),
    asPipelineStage({
      name: "advantages",
      needs: ["rows"],
      uses: ["logprobs"],
      gives: ["advantages"],
      run: async ({ rows, logprobs }, context) => {
        const { value, metrics } = await stages.advantages({ ...rows, ...logprobs }, context);
        return { advantages: value.advantages, metrics };
      },
    }),
    asPipelineStage({
      name: "update",
      needs: ["rows", "advantages"],
      uses: ["logprobs"],
      gives: [],
      run: async ({ rows, logprobs, advantages }, context) => {
        const { metrics } = await stages.update({ ...rows, ...logprobs, advantages }, context);
        return { metrics };
      },
    }),
    asPipelineStage({
      name: "log",
      needs: ["metrics"],
      uses: ["episodes", "groups", "rows"],
      gives: [],
      run: async ({ metrics, episodes = [], groups = [], rows }, context) => {
        const speed = rows && "time/update" in metrics ? throughput(rows.tokens.length, metrics) : {};
        const report = { metrics: { ...metrics, ...speed, ...progress(context) }, episodes, groups };
        return stages.log(report, context);
      },
    }),
  ];
}

/** The parts of `transform`, for pipelines that want them apart. */
function transformParts(): PipelineStage[] {
  const part = (
    name: string,
    run: (episodes: readonly Episode[], context: StageContext) => Staged<readonly Episode[]>,
  ) =>
    asPipelineStage({
      name,
      needs: ["eligible"],
      gives: ["eligible"],
      run: ({ eligible }, context) => as("eligible", run(eligible, context)),
    });
  return [
    part("name_trajectories", nameTrajectories),
    part("filter_masked", filterMasked),
    part("filter_mismatched", filterMismatched),
    asPipelineStage({
      name: "group",
      needs: ["eligible"],
      gives: ["groupings"],
      run: ({ eligible }, context) => as("groupings", group(eligible, context)),
    }),
    asPipelineStage({
      name: "check_rewards",
      needs: ["groupings"],
      gives: ["groups"],
      run: ({ groupings }) => as("groups", checkRewards(groupings)),
    }),
  ];
}

function as<S extends Slot>(slot: S, { value, metrics }: Staged<StepValues[S]>) {
  return { [slot]: value, metrics } as unknown as Given<S>;
}

export const BUILT_IN_NAMES: readonly string[] = builtIns(STAGES).map(({ name }) => name);
