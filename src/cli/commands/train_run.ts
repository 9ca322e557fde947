/** `grpu train`: the recipe on this machine or on a service, or a job of a cluster. */

import { ConfigError } from "../../leaves/errors.ts";
import { isClusterBackend } from "../../train/config/fields/backend_fields.ts";
import type { TraceOptions } from "../../train/run/recipe.ts";
import { trainRecipe } from "../../train/run/recipes/train.ts";
import { runRecipe } from "../../train/run/run_recipe.ts";
import type { Input, Io } from "../command.ts";
import { reporting, requestOf } from "./recipe_run.ts";

export async function runTraining(input: Input, io: Io): Promise<number> {
  const allowUnsupported = input.options.allowUnsupported === true;
  const composed = await trainRecipe.compose({ ...requestOf(input), allowUnsupported, traces: tracesOf(input) }, io);
  if (isClusterBackend(composed.composed.backend)) {
    checkHere(input);
    const { runOnCluster } = await import("./cluster_run.ts");
    return runOnCluster(composed, input, io);
  }
  checkNoCluster(input);
  return reporting("train", { input, io }, (options) => runRecipe(trainRecipe, composed, options));
}

function tracesOf({ options: { fromTraces, latest } }: Input): TraceOptions {
  return { file: fromTraces === undefined ? undefined : String(fromTraces), isLatest: latest === true };
}

/** @throws {ConfigError} for an option that acts on this machine alone */
function checkHere({ options }: Input): void {
  if (options.profile !== true) return;
  throw new ConfigError(
    "Cannot use --profile: the run trains on a cluster, whose trainer has a profiler of its own (global_profiler.*). Leave --profile out.",
    { kind: "usage" },
  );
}

/** @throws {ConfigError} for an option that acts on clusters alone */
function checkNoCluster({ options }: Input): void {
  const flag = options.dryRun === true ? "--dry-run" : options.attach === undefined ? undefined : "--attach";
  if (flag === undefined) return;
  throw new ConfigError(
    `Cannot use ${flag}: the run trains here, not on a cluster. Choose rllm/backend=verl or trinity.`,
    {
      kind: "usage",
    },
  );
}
