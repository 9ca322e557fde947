/** The text that people and programs read of a run on a cluster at its end. */
import { join } from "node:path";
import { JOB_LOG_FILE } from "../../train/run/cluster/job_record.ts";
import type { ClusterEnding } from "../../train/run/cluster/train_on_cluster.ts";
import { CLUSTER_TRAINERS } from "../../train/run/cluster/trainers.ts";
import { quoted } from "../../train/run/quoted.ts";
import type { Input, Io } from "../command.ts";
import { commandName } from "../command_line.ts";
import { importsOf } from "../options.ts";
import { EXIT_FAILED, EXIT_OK, interruptedStatus } from "../process/exit.ts";

interface Called {
  readonly input: Input;
  readonly io: Io;
}

/** Says how the run ended and what to do next. @returns the exit status */
export function endOfRun(end: ClusterEnding, { input, io }: Called): number {
  const { config, record, dir, report } = end;
  if (input.options.json === true) io.out(`${JSON.stringify(summary(end))}\n`);
  io.err("\n");
  const log = join(dir, JOB_LOG_FILE);
  if (end.kind === "failed") io.err(`failed   ${end.cause}\nlog      ${log}\n`);
  if (end.kind === "incomplete")
    io.err(`short    the job ended without an error after step ${end.reached} of ${end.totalSteps}\nlog      ${log}\n`);
  if (end.kind === "left")
    io.err(`left     the job ${record.submission_id} goes on; follow it with:  ${again("--attach", { input, io })}\n`);
  if (end.kind === "stopped") io.err(`stopped  after step ${end.step}\n`);
  if (end.lastSaved) {
    const { step, folder } = end.lastSaved;
    io.err(`saved    step ${step}: ${folder}, on the cluster\n`);
    const merge = CLUSTER_TRAINERS[record.system].merge?.(folder, config);
    if (merge !== undefined) io.err(`merge    ${merge}\n`);
  }
  if (end.kind === "incomplete" && end.lastSaved)
    io.err(`go on    ${again("trainer.resume_mode=auto", { input, io })}\n`);
  if (report) io.err(`report   ${report}\n`);
  if (end.kind === "succeeded" || end.kind === "left") return EXIT_OK;
  return io.signal.aborted ? interruptedStatus(io.signal) : EXIT_FAILED;
}

/** The command with one word more. */
function again(word: string, { input, io }: Called): string {
  const flags = importsOf(input).flatMap((file) => ["--import", file]);
  return `${commandName(io)} train ${[...input.args, word, ...flags].map(quoted).join(" ")}`;
}

function summary({ kind, step, totalSteps, lastSaved, cause, record, dir, report }: ClusterEnding) {
  return {
    outcome: kind,
    complete: kind === "succeeded",
    step,
    total_steps: totalSteps,
    dir,
    job: record.submission_id,
    address: record.address,
    checkpoint: lastSaved ?? null,
    cause: cause ?? null,
    report: report ?? null,
  };
}
