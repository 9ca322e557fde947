/** What `grpu train` does: opens the parts, trains, writes the report, says what to do next. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { readYaml } from "../config/read.ts";
import { setting } from "../config/schema.ts";
import { maskTree } from "../config/secret.ts";
import { toYaml } from "../config/show.ts";
import { equalValues, flatten, type Tree } from "../config/tree.ts";
import { UnsupportedError } from "../errors.ts";
import { type BestCheckpoint, FolderCheckpoints, setAside } from "../log/checkpoints.ts";
import { ConsoleLogger } from "../log/console.ts";
import { EpisodeFiles } from "../log/episodes.ts";
import { labelled, shortNumber } from "../log/format.ts";
import { GroupsFile, MetricsFile, type MetricsLine, readLines, SamplesFile } from "../log/jsonl.ts";
import type { Logger } from "../log/logger.ts";
import { registeredLogger } from "../log/registry.ts";
import { renderPage } from "../log/report.ts";
import { GROUPS_FILE, METRICS_FILE, RUN_FILE, type RunFacts, SAMPLES_FILE } from "../log/run_folder.ts";
import { EVENTS_FILE, TensorBoardFile } from "../log/tensorboard.ts";
import { checkWandb, openWandb, type WandbOptions } from "../log/wandb.ts";
import { estimateAdvantagesOn } from "../loop/estimate.ts";
import { settingsFromConfig } from "../loop/settings_config.ts";
import type { LoopState } from "../loop/state.ts";
import { totalSteps } from "../loop/state.ts";
import { type TrainOutcome, train } from "../loop/train.ts";
import { openBackend } from "./backend.ts";
import type { Input, Io } from "./command.ts";
import { EXIT_INTERRUPTED, EXIT_OK } from "./front.ts";
import { deviceFlag, deviceOverride, importsOf } from "./options.ts";
import { openRuns } from "./runs.ts";
import { openSession, runFolder, type Session } from "./session.ts";

const REPORT_FILE = "report.html";

export async function runTraining(input: Input, io: Io): Promise<number> {
  const session = await openSession(
    {
      args: input.args,
      imports: importsOf(input),
      overrides: deviceOverride(input),
      allowUnsupported: input.options.allowUnsupported === true,
    },
    io,
  );
  const { config } = session;
  const settings = settingsFromConfig(config);
  checkLoggers(config, io);
  const dir = runFolder(config);
  const checkpoints = await prepareFolder(config, io);
  const { backend, device, description } = await openBackend(session, io);
  try {
    announce({ session, device: description, parameters: backend.model.trainableParameters, dir, io });
    const facts = writeFacts(
      {
        title: setting(config, "rllm.trainer.experiment_name"),
        subtitle: describeRun(session, description),
        total_steps: totalSteps(session.tasks.train, settings),
        started: new Date().toISOString(),
      },
      dir,
    );
    const outcome = await train({
      ...session,
      backend,
      settings,
      ...(device && { estimate: estimateAdvantagesOn(device) }),
      loggers: openLoggers({ config, dir, io }),
      checkpoints,
      signal: io.signal,
    });
    writeFacts({ ...facts, ended: new Date().toISOString(), complete: outcome.isComplete }, dir);
    const report = writeReport(config, dir);
    const latest = await checkpoints.latest();
    const best = await checkpoints.best();
    const model = latest === undefined ? undefined : join(dir, latest);
    const ending = { outcome, dir, model, best, report };
    if (input.options.json) io.out(`${JSON.stringify(summary(ending))}\n`);
    farewell({ ...ending, session, input, io });
    return io.signal.aborted ? EXIT_INTERRUPTED : EXIT_OK;
  } finally {
    backend.close();
  }
}

/** The folder of the run, with an earlier run out of the way unless this one continues it. */
async function prepareFolder(config: Tree, io: Io): Promise<FolderCheckpoints<LoopState>> {
  const dir = runFolder(config);
  const resumeMode = setting(config, "training.resume_mode");
  mkdirSync(dir, { recursive: true });
  const resumeFrom = setting(config, "training.resume_from_path") ?? undefined;
  const checkpoints = new FolderCheckpoints<LoopState>(dir, {
    resumeMode,
    resumeFrom,
    keep: setting(config, "training.max_ckpt_to_keep") ?? undefined,
    onSkip: (message) => io.err(`warning: ${message}\n`),
  });
  const from = await checkpoints.find();
  if (from) {
    io.err(`Continuing from ${resumeMode === "auto" ? basename(from.dir) : from.dir}\n`);
    warnOfChanges(config, { file: join(dir, "config.yaml"), io });
  } else await clearPlace(dir, io);
  writeFileSync(join(dir, "config.yaml"), toYaml(config));
  return checkpoints;
}

/** What an earlier run left without a checkpoint to go on from must not be appended to. */
async function clearPlace(dir: string, io: Io): Promise<void> {
  const place = await setAside(dir);
  if (place) io.err(`The earlier run in ${dir} is now in ${place}\n`);
  mkdirSync(dir, { recursive: true });
}

/** Settings that may differ between the parts of a run: how long it is, where it stops, what it prints. */
const FREE_TO_CHANGE = /^(training\.resume_|rllm\.trainer\.|device$|memory_budget_bytes$)/;

/** A resumed run with other settings is allowed, and no longer the run that was begun: the person is told. */
function warnOfChanges(config: Tree, { file, io }: { file: string; io: Io }): void {
  const before = existsSync(file) ? flatten(readYaml(readFileSync(file, "utf8"), file).tree) : undefined;
  if (!before) return;
  for (const [path, value] of flatten(config)) {
    if (FREE_TO_CHANGE.test(path) || equalValues(value, before.get(path))) continue;
    io.err(`warning: ${path} was ${JSON.stringify(before.get(path))} and is now ${JSON.stringify(value)}\n`);
  }
}

const LOGGERS = ["console", "jsonl", "report", "tensorboard", "wandb"];

/** Before a folder is touched or a device opened. */
function checkLoggers(config: Tree, io: Io): void {
  const names = setting(config, "rllm.trainer.logger");
  if (names.includes("wandb") && !registeredLogger("wandb")) checkWandb(io.env);
  const other = names.find((name) => !LOGGERS.includes(name) && !registeredLogger(name));
  if (!other) return;
  throw new UnsupportedError(
    `Cannot log to ${other} as there is no such logger yet: use ${LOGGERS.join(", ")}`,
    { part: "log", capability: other },
  );
}

function openLoggers({ config, dir, io }: { config: Tree; dir: string; io: Io }): Logger[] {
  const names = setting(config, "rllm.trainer.logger");
  const own = names.flatMap((name) => registeredLogger(name) ?? []);
  const hasFiles = names.includes("jsonl") || names.includes("report");
  return [
    names.includes("console") ? new ConsoleLogger(io) : warningsOnly(io),
    ...(hasFiles
      ? [
          new MetricsFile(join(dir, METRICS_FILE)),
          new SamplesFile(join(dir, SAMPLES_FILE)),
          new GroupsFile(join(dir, GROUPS_FILE)),
        ]
      : []),
    ...(names.includes("tensorboard") ? [new TensorBoardFile(join(dir, "tensorboard", EVENTS_FILE))] : []),
    ...(names.includes("wandb") && !registeredLogger("wandb")
      ? openWandb(wandbRun({ config, dir, io }))
      : []),
    ...own.map((open) => open({ dir })),
    ...(setting(config, "rllm.episode_logging.log_episodes")
      ? [new EpisodeFiles(setting(config, "rllm.episode_logging.episode_log_dir"))]
      : []),
  ];
}

function wandbRun({ config, dir, io }: { config: Tree; dir: string; io: Io }): WandbOptions {
  return {
    dir,
    env: io.env,
    tell: (message) => io.err(`${message}\n`),
    project: setting(config, "rllm.trainer.project_name"),
    name: setting(config, "rllm.trainer.experiment_name"),
    config: maskTree(config),
    warmupSteps: setting(config, "warmup.steps") ?? 0,
  };
}

/** Warnings are for people even where the progress is not. */
function warningsOnly(io: Io): Logger {
  return { name: "console", log() {}, warn: (message) => io.err(`warning: ${message}\n`) };
}

interface Announcement {
  readonly session: Session;
  readonly device: string;
  readonly parameters: number;
  readonly dir: string;
  readonly io: Io;
}

function announce({ session, device, parameters, dir, io }: Announcement): void {
  const { tasks, environment, config } = session;
  const steps = totalSteps(tasks.train, settingsFromConfig(config));
  const width = io.isTerminal ? io.columns : Number.POSITIVE_INFINITY;
  const say = (label: string, text: string) => io.err(labelled(label, text, width));
  const counts = `${tasks.train.length} training, ${tasks.val.length} held out`;
  say("task", `${environment.name}: ${environment.describe} (${counts})`);
  // A service does not tell how many.
  const size = parameters > 0 ? `, ${shortNumber(parameters)} trainable parameters` : "";
  say("model", `${setting(config, "model.name") ?? "new"}${size}`);
  say("device", device);
  say("run", `${steps} steps, written to ${dir}`);
  const isWatchable = setting(config, "rllm.trainer.logger").some((name) => /^(jsonl|report)$/.test(name));
  if (isWatchable) say("watch", `${commandName(io)} view ${quoted(dir)}`);
  io.err("\n");
}

function describeRun({ environment, config }: Session, device: string): string {
  const model = setting(config, "model.name") ?? "a new model";
  return `${environment.describe}; ${model}; ${device}`;
}

/** What the run's page says of it; written again when the run ends. */
function writeFacts(facts: RunFacts, dir: string): RunFacts {
  writeFileSync(join(dir, RUN_FILE), `${JSON.stringify(facts, null, 2)}\n`);
  return facts;
}

function writeReport(config: Tree, dir: string): string | undefined {
  if (!setting(config, "rllm.trainer.logger").includes("report")) return undefined;
  const file = join(dir, REPORT_FILE);
  const [run] = openRuns([dir]);
  run.poll();
  writeFileSync(file, renderPage([run.data()]));
  return file;
}

/** For a shell: as it is, or in single quotes. */
function quoted(word: string): string {
  return /^[\w./=:@,+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** How this program is called here: from a checkout it is an npm script. */
function commandName({ env }: Io): string {
  return env.npm_package_name === "grpu" ? "npm run -s grpu --" : "grpu";
}

interface Ending {
  readonly outcome: TrainOutcome;
  readonly dir: string;
  readonly model: string | undefined;
  readonly best: BestCheckpoint | undefined;
  readonly report: string | undefined;
}

function summary({ outcome, dir, model, best, report }: Ending) {
  const lines = readLines<MetricsLine>(join(dir, METRICS_FILE));
  const last = lines.findLast((line) => line.phase === "val");
  const { step } = outcome.state;
  return {
    complete: outcome.isComplete,
    step,
    dir,
    model: model ?? null,
    best: best ? { ...best, model: join(dir, best.checkpoint) } : null,
    report: report ?? null,
    validation: last ?? null,
  };
}

function farewell(it: Ending & { session: Session; input: Input; io: Io }): void {
  const { outcome, dir, model, best, report, session, input, io } = it;
  const validations = readLines<MetricsLine>(join(dir, METRICS_FILE)).filter(({ phase }) => phase === "val");
  const accuracy = change(validations, /\/pass@1$/);
  const reward = change(validations, /^val\/reward\/.*\/mean$/);
  io.err("\n");
  if (accuracy) io.err(`accuracy ${accuracy} on held-out tasks\n`);
  // The same thing where rewards are right or wrong; what there is to see where they are not.
  if (reward && reward !== accuracy) io.err(`reward   ${reward} on held-out tasks\n`);
  const metric = setting(session.config, "training.metric_for_best_model");
  if (metric && !best) io.err(`best     none: ${metric} was never better than before training\n`);
  if (best) io.err(`best     ${join(dir, best.checkpoint)} (${best.metric} ${best.value.toFixed(3)})\n`);
  if (!outcome.isComplete) {
    const flags = [...importsOf(input).flatMap((file) => ["--import", file]), ...deviceFlag(input)];
    const words = [...input.args, "training.resume_mode=auto", ...flags].map(quoted);
    const resume = `${commandName(io)} train ${words.join(" ")}`;
    io.err(`stopped after step ${outcome.state.step}; go on with:  ${resume}\n`);
  }
  if (report && existsSync(report)) io.err(`report   ${report}\n`);
  const isModel = ["config.json", "adapter_config.json"].some((file) => existsSync(join(model ?? "", file)));
  if (isModel && session.tasks.val.length > 0) {
    const { instruction, messages } = session.tasks.val[0];
    const chat = messages ? "--chat " : "";
    io.err(
      `sample   ${commandName(io)} sample --model ${model} ${chat}--prompt ${JSON.stringify(instruction)}\n`,
    );
  }
}

/** `first -> last` of the first metric of that name, where it was measured more than once. */
function change(lines: readonly MetricsLine[], name: RegExp): string | undefined {
  const values = lines
    .map((line) => Object.entries(line).find(([key]) => name.test(key))?.[1])
    .filter((value) => typeof value === "number");
  if (values.length < 2) return undefined;
  return `${values[0].toFixed(3)} -> ${values[values.length - 1].toFixed(3)}`;
}
