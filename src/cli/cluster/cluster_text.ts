/** Texts for people and programs about a run on a cluster, at its start and at its end. */
import { join } from "node:path";
import { getAt } from "../../config/yaml/tree.ts";
import { labelled } from "../../log/format.ts";
import type { Input, Io } from "../command.ts";
import { importsOf } from "../options.ts";
import { EXIT_FAILED, EXIT_OK, interruptedStatus } from "../process/exit.ts";
import { commandName, quoted } from "../run/command_line.ts";
import type { RunSession } from "../run/session.ts";
import { readRun, writeReport } from "../run/write_report.ts";
import { JOB_LOG_FILE, type JobRecord } from "./job_record.ts";
import { CLUSTER_TRAINERS } from "./trainers.ts";
import type { JobEnd } from "./watch_job.ts";

interface Announcement {
  readonly session: RunSession;
  readonly record: JobRecord;
  readonly gateway: string | undefined;
  /** Address of the service. */
  readonly service: string;
  readonly dir: string;
  readonly io: Io;
}

export function announce({ session, record, gateway, service, dir, io }: Announcement): void {
  const { tasks, environment, config } = session;
  const width = io.isTerminal ? io.columns : Number.POSITIVE_INFINITY;
  const say = (label: string, text: string) => io.err(labelled(label, text, width));
  say(
    "task",
    `${environment.name}: ${environment.describe} (${tasks.train.length} training, ${tasks.val.length} held out)`,
  );
  say("model", `${getAt(config, "actor_rollout_ref.model.path")}`);
  say(
    "cluster",
    `${record.address}, ${CLUSTER_TRAINERS[record.system].title} ${record.version}, job ${record.submission_id}`,
  );
  const what = session.asksPrompt ? "rewards" : "agents";
  say("service", `${what} on ${service}${record.service.url === service ? "" : `, reached as ${record.service.url}`}`);
  if (gateway !== undefined) say("gateway", gateway);
  say("run", `written to ${dir}`);
  say("watch", `${commandName(io)} view ${quoted(dir)}`);
  io.err("\n");
}

interface Ended {
  readonly session: RunSession;
  readonly record: JobRecord;
  readonly dir: string;
  readonly input: Input;
  readonly io: Io;
}

/** Writes the report, says how the run ended and what to do next. @returns the exit status */
export function endOfRun(end: JobEnd, { session, record, dir, input, io }: Ended): number {
  const { config } = session;
  const report = end.step > 0 ? writeReport(config, { dir, run: readRun(dir) }) : undefined;
  if (input.options.json === true) io.out(`${JSON.stringify(summary(end, { record, dir, report }))}\n`);
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
function again(word: string, { input, io }: Pick<Ended, "input" | "io">): string {
  const flags = importsOf(input).flatMap((file) => ["--import", file]);
  return `${commandName(io)} train ${[...input.args, word, ...flags].map(quoted).join(" ")}`;
}

function summary(end: JobEnd, context: { record: JobRecord; dir: string; report: string | undefined }) {
  const { kind, step, totalSteps, lastSaved, cause } = end;
  const { record, dir, report } = context;
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
