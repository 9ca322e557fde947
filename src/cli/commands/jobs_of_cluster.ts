/** Actions of `grpu jobs list|show|logs|stop|delete`. */
import { CauseFinder } from "../../cluster/ray/cause.ts";
import type { JobDetails, LogLine } from "../../cluster/ray/contract.ts";
import { isTerminal } from "../../cluster/ray/details.ts";
import { jobFailureText } from "../../cluster/ray/failure.ts";
import type { RayJobs } from "../../cluster/ray/jobs.ts";
import { LineSplitter } from "../../cluster/ray/lines.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { openRay } from "../../train/run/net/ray_cluster.ts";
import type { Input, Io } from "../command.ts";
import { EXIT_FAILED, EXIT_OK } from "../process/exit.ts";

export async function listJobs(input: Input, io: Io): Promise<undefined> {
  const jobs = openCluster(input, io);
  const found = await jobs.list(io.signal);
  if (input.options.json) io.out(`${JSON.stringify(found)}\n`);
  else if (found.length === 0) io.err(`no jobs at ${jobs.address}\n`);
  else io.out(table([["job", "status", "started", "took", "command"], ...found.map(cells)]));
}

export async function showJob(input: Input, io: Io): Promise<undefined> {
  const details = await openCluster(input, io).details(idOf(input), io.signal);
  if (input.options.json) {
    io.out(`${JSON.stringify(details)}\n`);
    return;
  }
  const { message, error_type, driver_exit_code, metadata } = details;
  const [, status, started, took, command] = cells(details) as [string, string, string, string, string];
  const rows = [
    ["status", error_type ? `${status}, ${error_type}` : status],
    ["started", started],
    [isTerminal(details) ? "took" : "runs for", took],
    ["command", command],
    ...(driver_exit_code === undefined ? [] : [["exit status", String(driver_exit_code)]]),
    ...Object.entries(metadata),
  ];
  io.out(table(rows));
  if (message) io.out(`\n${message.trimEnd()}\n`);
  const failure = jobFailureText(details);
  if (failure) io.err(`\n${failure}\n`);
}

/** @returns the exit status: a followed job that failed is a failure */
export async function printLog(input: Input, io: Io): Promise<number> {
  const jobs = openCluster(input, io);
  const id = idOf(input);
  if (!input.options.follow) {
    const splitter = new LineSplitter((line) => io.out(shown(line)));
    splitter.feed(await jobs.logs(id, io.signal));
    splitter.end();
    return EXIT_OK;
  }
  const finder = new CauseFinder();
  const details = await jobs.follow(
    id,
    (line) => {
      finder.take(line);
      io.out(shown(line));
    },
    io.signal,
  );
  const failure = jobFailureText(details, finder.cause());
  io.err(failure ? `grpu: ${failure}\n` : `the job ${id} has ended: ${details.status}\n`);
  return failure ? EXIT_FAILED : EXIT_OK;
}

/** Returns a line as Ray prints it, without its colours. */
function shown({ text, worker }: LogLine): string {
  if (!worker) return `${text}\n`;
  const { name, pid, ip } = worker;
  return `(${name}${name && " "}pid=${pid}${ip === undefined ? "" : `, ip=${ip}`}) ${text}\n`;
}

export async function stopJob(input: Input, io: Io): Promise<number> {
  const id = idOf(input);
  const details = await openCluster(input, io).stop(id, { signal: io.signal });
  if (isTerminal(details)) {
    io.err(`the job ${id} has ended: ${details.status}\n`);
    return EXIT_OK;
  }
  const why =
    details.status === "PENDING"
      ? "it still waits for resources or its environment, and Ray does not stop such a job (PENDING). It ends when they are there, or after 15 minutes"
      : `it has not ended yet (${details.status}). Look again with grpu jobs show ${id}`;
  io.err(`grpu: Cannot stop the job ${id} at once: ${why}.\n`);
  return EXIT_FAILED;
}

export async function deleteJobs(input: Input, io: Io): Promise<undefined> {
  if (input.args.length === 0) idOf(input);
  const jobs = openCluster(input, io);
  for (const id of input.args) {
    await jobs.delete(id, io.signal);
    io.err(`deleted ${id}\n`);
  }
}

function idOf({ args }: Input): string {
  const [id, more] = args;
  if (id === undefined || more !== undefined)
    throw new ConfigError(
      `Cannot choose a job: ${id === undefined ? "no id is given" : "more than one id is given"} (${args.join(" ")}). Give one, see grpu jobs list.`,
    );
  return id;
}

function openCluster({ options }: Input, io: Io): RayJobs {
  const headers = ((options.header as readonly string[] | undefined) ?? []).map((each): [string, string] => {
    const at = each.indexOf(":");
    if (at > 0) return [each.slice(0, at).trim().toLowerCase(), each.slice(at + 1).trim()];
    throw new ConfigError(
      `Cannot use the header: it has no colon (${each.slice(0, 20)}). Write --header "name: value".`,
    );
  });
  return openRay(io, { address: options.address as string | undefined, headers: Object.fromEntries(headers) });
}

function cells(job: JobDetails): string[] {
  const { submission_id, status, start_time, end_time, entrypoint } = job;
  const took = start_time === undefined ? "-" : duration((end_time ?? Date.now()) - start_time);
  return [
    submission_id || "(a driver)",
    status,
    start_time === undefined ? "-" : timeOf(start_time),
    took,
    entrypoint || "-",
  ];
}

/** UTC, to the second. */
const timeOf = (ms: number) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");

/** `2 h 5 min`, `5 min 3 s`, `3 s`. */
function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

/** Columns as wide as their widest cell. */
function table(rows: readonly (readonly string[])[]): string {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => (row[column] ?? "").length)));
  const line = (row: readonly string[]) => row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join("  ");
  return rows.map((row) => `${line(row).trimEnd()}\n`).join("");
}
