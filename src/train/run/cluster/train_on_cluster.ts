/**
 * `grpu train` with a trainer on a Ray cluster: this process judges and plays, a job there samples and trains, and its metrics
 * come back into the run's folder.
 */
import { join } from "node:path";
import type { RayJobs } from "../../../cluster/ray/jobs.ts";
import { checkReachable } from "../../../cluster/ray/probe.ts";
import type { JobPlan } from "../../../cluster/ray/trainer.ts";
import { openService, type Service, type ServiceOptions } from "../../../cluster/rewards/service.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { isClusterBackend } from "../../config/fields/backend_fields.ts";
import { setting } from "../../config/schema.ts";
import { getAt, type Tree } from "../../config/yaml/tree.ts";
import { packagedText } from "../files.ts";
import type { RunIo } from "../io.ts";
import { openRay } from "../net/ray_cluster.ts";
import { checkLoggers, openLoggers } from "../place/open_loggers.ts";
import { readRun, writeReport } from "../place/write_report.ts";
import type { Line, TraceOptions } from "../recipe.ts";
import type { RunHead } from "../run_recipe.ts";
import { servedRun } from "../serve/served_run.ts";
import { type Composition, openTask, type RunSession, runFolder } from "../session.ts";
import { ClusterFolder } from "./cluster_folder.ts";
import { planJob, submissionId, writeJobFolder } from "./job_plan.ts";
import { type JobRecord, readJobRecord, writeJobRecord } from "./job_record.ts";
import { SampledEpisodes } from "./sampled_episodes.ts";
import { type ClusterSettings, clusterSettings } from "./settings.ts";
import { CLUSTER_TRAINERS, type ClusterTrainer } from "./trainers.ts";
import { type JobEnd, type LeaveOrStop, watchJob } from "./watch_job.ts";

/** Shows a run on a cluster to people. */
export interface ClusterView {
  /** Called instead of a run. */
  dryRun(made: { readonly plan: JobPlan; readonly dir: string }): void;
  /** Called when the job is submitted, or attached to. */
  begin(head: RunHead): void;
  end(ending: ClusterEnding): void;
}

export interface ClusterEnding extends JobEnd {
  readonly config: Tree;
  readonly record: JobRecord;
  readonly dir: string;
  readonly report: string | undefined;
}

/** A configuration of a cluster's trainer. */
export interface ClusterComposition extends Composition {
  readonly traces: TraceOptions;
}

export interface ClusterOptions {
  /** Writes the job into a folder and submits nothing. */
  readonly isDryRun: boolean;
  /** Folder of a dry run. Default: `job` in the run's folder. */
  readonly jobFolder: string | undefined;
  /** Follows the job that the run's folder names. */
  readonly isAttached: boolean;
  readonly io: RunIo;
  readonly view: ClusterView;
  readonly leaveOrStop: LeaveOrStop;
}

/** @throws {ConfigError} for what the trainer or the cluster would refuse; RemoteError for a cluster that cannot be reached */
export async function trainOnCluster(composition: ClusterComposition, options: ClusterOptions): Promise<void> {
  const { io } = options;
  const { backend } = composition.composed;
  if (!isClusterBackend(backend)) throw new Error(`${backend} does not train on a cluster`);
  const trainer = CLUSTER_TRAINERS[backend];
  checkFlags(composition, { trainer, options });
  checkLoggers(composition.config, io);
  const settings = clusterSettings(composition.config);
  const session = await openTask(composition);
  if (options.isDryRun) return dryRun({ trainer, composition, session, settings, options, io });
  const folder = await ClusterFolder.open(composition, io);
  try {
    const attached = options.isAttached ? readJobRecord(folder.dir, undefined) : undefined;
    await runIn(folder, { trainer, composition, session, settings, attached, options, io });
  } finally {
    await folder.close();
  }
}

interface Begun {
  readonly trainer: ClusterTrainer;
  readonly composition: Composition;
  readonly session: RunSession;
  readonly settings: ClusterSettings;
  readonly options: ClusterOptions;
  readonly io: RunIo;
}

function checkFlags(
  { traces }: ClusterComposition,
  { trainer, options }: { readonly trainer: ClusterTrainer; readonly options: ClusterOptions },
): void {
  if (traces.file !== undefined || traces.isLatest)
    throw new ConfigError(
      `Cannot train on traces with rllm/backend=${trainer.system}: its trainer samples by itself. Choose rllm/backend=local.`,
      { kind: "usage" },
    );
  if (options.isDryRun && options.isAttached)
    throw new ConfigError("Cannot use --dry-run with --attach: that job runs already. Leave out one of the two.", {
      kind: "usage",
    });
}

function dryRun(run: Begun): void {
  const { composition, session, settings, options } = run;
  const { url = `http://${settings.service.host}:${settings.service.port || "PORT"}` } = settings.service;
  const id = submissionId(setting(session.config, "rllm.trainer.experiment_name"));
  const plan = planJob({ ...run, id, service: { url, token: "" } });
  const dir = options.jobFolder ?? join(runFolder(composition.config), "job");
  writeJobFolder(plan, dir);
  options.view.dryRun({ plan, dir });
}

interface Run extends Begun {
  /** Record of the job, with `--attach`. */
  readonly attached: JobRecord | undefined;
}

async function runIn(folder: ClusterFolder, run: Run): Promise<void> {
  const { trainer, session, settings, attached, options, io } = run;
  const { view, leaveOrStop } = options;
  const notify = (text: string) => io.err(`${text}\n`);
  const jobs = openRay(io, { address: attached?.address ?? settings.address, headers: settings.headers });
  const gateway = await session.gateway?.open((line) => notify(`gateway: ${line}`));
  let service: Service | undefined;
  try {
    const token = attached?.service.token ?? newToken();
    const id = attached?.submission_id ?? submissionId(setting(session.config, "rllm.trainer.experiment_name"));
    const samples = new SampledEpisodes();
    service = await openRunService(run, { token, id, samples });
    const record = attached ?? (await submit({ ...run, folder, jobs, service, token, id }));
    view.begin(headOf(run, { record, gateway, service: service.url, dir: folder.dir }));
    const loggers = openLoggers({ config: run.composition.config, dir: folder.dir, io });
    // The log of the job is read from its start.
    if (attached) for (const logger of loggers) await logger.rewind?.(0);
    await folder.describe(factsOf(run, record));
    const onlyValidates = getAt(session.config, "trainer.val_only") === true;
    const watched = { trainer, jobs, service, record, loggers, samples, folder, settings, onlyValidates, io };
    const end = await watchJob({ ...watched, leaveOrStop });
    await folder.end({ complete: end.kind === "succeeded" });
    const { dir } = folder;
    const { config } = session;
    const report = end.step > 0 ? writeReport(config, { dir, run: readRun(dir) }) : undefined;
    view.end({ ...end, config, record, dir, report });
  } finally {
    await service?.close();
    await session.gateway?.close();
  }
}

/** 256 bits. */
function newToken(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(32));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Opens the service of a run; for a job that is attached to on its address and port, because its workers look there. */
async function openRunService(
  { session, settings, attached, io }: Run,
  { token, id, samples }: { readonly token: string; readonly id: string; readonly samples: SampledEpisodes },
): Promise<Service> {
  const { host, port } = attached?.service ?? settings.service;
  const tokenizer = getAt(session.config, "model.tokenizer");
  const served = await servedRun(session, { tokenizer: typeof tokenizer === "string" ? tokenizer : undefined });
  const warn = (message: string) => io.err(`warning: ${message}\n`);
  const onEpisode: ServiceOptions["onEpisode"] = (episode, at) => samples.add(episode, at);
  return openService({ ...served, token, run: id, host, port, warn, onEpisode });
}

interface Submission extends Run {
  readonly folder: ClusterFolder;
  readonly jobs: RayJobs;
  readonly service: Service;
  readonly token: string;
  readonly id: string;
}

async function submit({ folder, jobs, service, token, id, ...run }: Submission): Promise<JobRecord> {
  const { trainer, composition, settings, io } = run;
  const url = settings.service.url ?? service.url;
  const request = { ...run, id, service: { url, token } };
  // Before the cluster is asked, what is wrong with the run itself.
  const draft = planJob(request);
  const script = packagedText("ray/grpu_probe.py") ?? "";
  const { pip, pyExecutable: py_executable } = settings;
  const packages = pip.length > 0 ? [] : [trainer.package];
  const asked = { url, token, run: id, script, packages, py_executable, signal: io.signal };
  const answers = await checkReachable(jobs, asked);
  const warn = (message: string) => io.err(`warning: ${message}\n`);
  const version = trainer.versionOn(answers, { plan: draft, composition, warn });
  const plan = version === draft.job.metadata[trainer.system] ? draft : planJob({ ...request, version });
  await folder.begin(composition);
  const { host } = settings.service;
  const record: JobRecord = {
    submission_id: plan.job.submission_id,
    address: jobs.address,
    system: trainer.system,
    version,
    service: { host, port: Number(new URL(service.url).port), url, token },
    checkpoints: String(getAt(composition.config, "trainer.default_local_dir")),
    submitted: new Date().toISOString(),
  };
  // Before the job: a process that ends right after the submission can be replaced.
  writeJobRecord(folder.dir, record);
  try {
    await jobs.submit(plan.job, io.signal);
  } catch (error) {
    // The cluster may have taken it all the same.
    if (io.signal.aborted) {
      io.err(`stopping the job ${id}\n`);
      await jobs.stop(id).catch(() => {});
    }
    throw error;
  }
  return record;
}

interface Submitted {
  readonly record: JobRecord;
  readonly gateway: string | undefined;
  /** Address at which the service listens. */
  readonly service: string;
  readonly dir: string;
}

function headOf({ trainer, session }: Run, { record, gateway, service, dir }: Submitted): RunHead {
  const { tasks, environment, config, asksPrompt } = session;
  const counts = `${tasks.train.length} training, ${tasks.val.length} held out`;
  const { address, version, submission_id } = record;
  const reached = record.service.url === service ? "" : `, reached as ${record.service.url}`;
  const lines: Line[] = [
    ["task", `${environment.name}: ${environment.describe} (${counts})`],
    ["model", String(getAt(config, "actor_rollout_ref.model.path"))],
    ["cluster", `${address}, ${trainer.title} ${version}, job ${submission_id}`],
    ["service", `${asksPrompt ? "rewards" : "agents"} on ${service}${reached}`],
  ];
  if (gateway !== undefined) lines.push(["gateway", gateway]);
  return { lines: [...lines, ["run", `written to ${dir}`]], dir, isWatchable: true };
}

function factsOf({ trainer, composition: { config }, session }: Run, record: JobRecord) {
  const model = getAt(config, "actor_rollout_ref.model.path");
  return {
    title: setting(config, "rllm.trainer.experiment_name"),
    subtitle: `${session.environment.describe}; ${model}; ${trainer.title} ${record.version} at ${record.address}`,
    total_steps: 0,
    started: record.submitted,
  };
}
