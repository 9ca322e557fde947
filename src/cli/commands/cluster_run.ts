/** `grpu train` with a trainer on a cluster. */
import { dryRunText } from "../../cluster/ray/dry_run.ts";
import { type ClusterComposition, trainOnCluster } from "../../train/run/cluster/train_on_cluster.ts";
import type { Input, Io } from "../command.ts";
import { EXIT_OK } from "../process/exit.ts";
import { endOfRun } from "./cluster_text.ts";
import { leaveOrStop } from "./leave_or_stop.ts";
import { announce } from "./recipe_run.ts";

/** @returns the exit status */
export async function runOnCluster(composed: ClusterComposition, input: Input, io: Io): Promise<number> {
  const { dryRun, jobFolder, attach } = input.options;
  let status = EXIT_OK;
  await trainOnCluster(composed, {
    isDryRun: dryRun === true,
    jobFolder: typeof jobFolder === "string" ? jobFolder : undefined,
    isAttached: attach === true,
    io,
    leaveOrStop: () => leaveOrStop(io),
    view: {
      dryRun({ plan, dir }) {
        io.out(dryRunText(plan));
        io.err(`Wrote the job to ${dir}. Nothing was submitted.\n`);
      },
      begin: (head) => announce(head, io),
      end(ending) {
        status = endOfRun(ending, { input, io });
      },
    },
  });
  return status;
}
