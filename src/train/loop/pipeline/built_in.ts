/** The loop's eight stages as stages of a pipeline, over the run's record of functions. */
import type { Stages } from "../contract.ts";
import { STAGES } from "../stages.ts";
import { performanceOf, progress } from "../step.ts";
import { asPipelineStage, type PipelineStage, valueAs } from "./stage.ts";
import { TRANSFORM_PARTS } from "./transform_parts.ts";

const generate = (stages: Stages) =>
  asPipelineStage({
    name: "generate",
    needs: ["tasks"],
    gives: ["episodes", "eligible"],
    run: async ({ tasks }, context) => {
      const { value: episodes, metrics } = await stages.generate(tasks, context);
      return { episodes, eligible: episodes, metrics };
    },
  });

const transform = (stages: Stages) =>
  asPipelineStage({
    name: "transform",
    needs: ["eligible"],
    gives: ["groups"],
    run: async ({ eligible }, context) => valueAs("groups", await stages.transform(eligible, context)),
  });

const reject = (stages: Stages) =>
  asPipelineStage({
    name: "reject",
    needs: ["episodes", "groups", "held"],
    gives: ["groups", "held"],
    run: async (candidates, context) => {
      const { value, metrics } = await stages.reject(candidates, context);
      return { ...value, metrics };
    },
  });

const batch = (stages: Stages) =>
  asPipelineStage({
    name: "batch",
    needs: ["groups"],
    gives: ["rows"],
    run: async ({ groups }, context) =>
      groups.length > 0 ? valueAs("rows", await stages.batch(groups, context)) : undefined,
  });

const process = (stages: Stages) =>
  asPipelineStage({
    name: "process",
    needs: ["rows"],
    gives: ["logprobs"],
    run: async ({ rows }, context) => {
      const { value, metrics } = await stages.process(rows, context);
      const { oldLogprobs, refLogprobs, rolloutIsWeights, teacherLogprobs, teacherTop, values } = value;
      return { logprobs: { oldLogprobs, refLogprobs, rolloutIsWeights, teacherLogprobs, teacherTop, values }, metrics };
    },
  });

const advantages = (stages: Stages) =>
  asPipelineStage({
    name: "advantages",
    needs: ["rows"],
    uses: ["logprobs"],
    gives: ["advantages"],
    run: async ({ rows, logprobs }, context) => {
      const { value, metrics } = await stages.advantages({ ...rows, ...logprobs }, context);
      return { advantages: value.advantages, metrics };
    },
  });

const update = (stages: Stages) =>
  asPipelineStage({
    name: "update",
    needs: ["rows", "advantages"],
    uses: ["logprobs"],
    gives: [],
    run: async ({ rows, logprobs, advantages }, context) => {
      const { metrics } = await stages.update({ ...rows, ...logprobs, advantages }, context);
      return { metrics };
    },
  });

const log = (stages: Stages) =>
  asPipelineStage({
    name: "log",
    needs: ["metrics"],
    uses: ["episodes", "groups", "rows"],
    gives: [],
    run: async ({ metrics, episodes = [], groups = [], rows }, context) => {
      const speed =
        rows && "time/update" in metrics ? await performanceOf(context.backend, rows.tokens.length, metrics) : {};
      const report = { metrics: { ...metrics, ...speed, ...progress(context) }, episodes, groups };
      return stages.log(report, context);
    },
  });

/** The stages that every run has: the eight over `stages`, and the parts of `transform`. */
export function builtIns(stages: Stages): PipelineStage[] {
  const made = [generate, transform, reject, batch, process, advantages, update, log].map((make) => make(stages));
  return [...made, ...TRANSFORM_PARTS];
}

export const BUILT_IN_STAGES: readonly PipelineStage[] = builtIns(STAGES);
