/** The loop's settings out of a composed configuration (whose values the schema has checked). */

import { ConfigError } from "../../leaves/errors.ts";
import { LOOP_ROWS, loopTree } from "../config/fields/loop.ts";
import { setting } from "../config/schema.ts";
import { getAt, type Tree } from "../config/yaml/tree.ts";
import type { LoopSettings } from "./settings.ts";

/**
 * Reads every setting of the loop. What the loop does not have was refused when the configuration was composed
 * (config/fields/support.ts).
 * @throws {ConfigError} for a sampling setting that the sampler does not have.
 */
export function settingsFromConfig(config: Tree): LoopSettings {
  refuseOtherSampling(config, "rllm.rollout.train");
  refuseOtherSampling(config, "rllm.rollout.val");
  const settings = loopTree(({ path }) => getAt(config, path));
  const { workflow } = settings;
  const workflow_args = { ...workflow.workflow_args, timeout: readTimeout(config) };
  return { ...settings, workflow: { ...workflow, workflow_args } };
}

/** The section is open, because backends of other systems take more than the sampler here has. */
function refuseOtherSampling(config: Tree, section: string): void {
  const fields = LOOP_ROWS.map(({ path }) => path).filter((path) => path.startsWith(`${section}.`));
  const keys = Object.keys(getAt(config, section) as Tree).map((key) => `${section}.${key}`);
  const other = keys.find((path) => !fields.includes(path));
  if (other === undefined) return;
  const names = fields.map((path) => path.slice(section.length + 1));
  throw new ConfigError(
    `Cannot sample: the sampler has no setting ${other.slice(section.length + 1)}. It has ${names.join(", ")}.`,
    { path: other },
  );
}

/** The shorter of an agent's and a workflow's limit, in seconds. */
function readTimeout(config: Tree): number {
  const agent = setting(config, "rllm.agent.trajectory_timeout") ?? Number.POSITIVE_INFINITY;
  return Math.min(agent, setting(config, "rllm.workflow.workflow_args.timeout"));
}
