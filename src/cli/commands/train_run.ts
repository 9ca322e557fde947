/** `grpu train`: opens the parts, trains, writes the report, prints what to do next. */
import { join } from "node:path";
import type { MemoryUse } from "../../compute/device.ts";
import { formatBytes } from "../../compute/memory.ts";
import { isClusterBackend } from "../../config/fields/backend_fields.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { Teacher } from "../../contract/teacher.ts";
import { ConfigError } from "../../errors.ts";
import { labelled, shortNumber } from "../../log/format.ts";
import type { LoopSettings } from "../../loop/settings.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";
import { estimateAdvantagesOn } from "../../loop/stages/estimate.ts";
import { totalSteps } from "../../loop/state.ts";
import { train } from "../../loop/train.ts";
import type { Input, Io } from "../command.ts";
import { deviceOverride, importsOf } from "../options.ts";
import { EXIT_OK, interruptedStatus } from "../process/exit.ts";
import { openBackend } from "../run/backend.ts";
import { commandName, quoted } from "../run/command_line.ts";
import { gatewaySettings } from "../run/gateway_settings.ts";
import { checkLoggers, openLoggers } from "../run/open_loggers.ts";
import { startProfile } from "../run/profiled.ts";
import { checkPrompts } from "../run/prompts.ts";
import { openRecording, type Recording } from "../run/recorded_rollout.ts";
import { RunPlace } from "../run/run_place.ts";
import { composeRun, openTask, type RunSession } from "../run/session.ts";
import { checkTraceOptions, type TraceTraining, withTraces } from "../run/train_traces.ts";
import { readRun, writeReport } from "../run/write_report.ts";
import { outcomeJson, printTrainEnd } from "./train_end.ts";

export async function runTraining(input: Input, io: Io): Promise<number> {
  const isRecorded = input.options.fromTraces !== undefined;
  const composition = await composeRun(
    {
      args: input.args,
      imports: importsOf(input),
      overrides: deviceOverride(input),
      allowUnsupported: input.options.allowUnsupported === true,
      isRecorded,
    },
    io,
  );
  if (isClusterBackend(composition.composed.backend)) {
    checkHere(input);
    const { trainOnCluster } = await import("../cluster/train_on_cluster.ts");
    return trainOnCluster(composition, input, io);
  }
  checkNoCluster(input);
  const session = await openTask(composition, { isRecorded });
  const { config } = session;
  const settings = settingsFromConfig(config);
  checkLoggers(config, io);
  checkTraceOptions(input, settings);
  if (input.options.fromTraces === undefined) totalSteps(session.tasks.train, settings);
  const place = await RunPlace.open(config, io);
  try {
    return await withTraces({ session, settings, input, io, place }, (recorded) =>
      trainIn(place, { session: recorded?.session ?? session, recorded, settings, input, io }),
    );
  } finally {
    await place.close();
  }
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

interface Begun {
  readonly session: RunSession;
  /** Recorded groups, with `--from-traces`. */
  readonly recorded: TraceTraining | undefined;
  readonly settings: LoopSettings;
  readonly input: Input;
  readonly io: Io;
}

async function trainIn(
  place: RunPlace,
  { session: runSession, recorded, settings, input, io }: Begun,
): Promise<number> {
  const { dir, checkpoints, checkpoint } = place;
  const isTrained = !settings.trainer.val_only;
  const opened = await openBackend(runSession, { io, checkpoint, isTrained });
  const { backend, device, description, session, teacher, rewardModel } = opened;
  const { config } = session;
  let recording: Recording | undefined;
  try {
    place.use(session);
    const notify = (line: string) => io.err(`gateway: ${line}\n`);
    const gateway = await session.gateway?.open(notify);
    recording = await openRecording(gatewaySettings(config), notify);
    if (recorded) recorded.check(backend);
    else checkPrompts(session, { backend, io });
    const memory = device?.memory;
    const parameters = backend.model.trainableParameters;
    announce({
      session,
      recorded,
      teacher: teacherName(session.config, teacher),
      rewardModel: rewardModel?.name,
      gateway,
      device: description,
      memory,
      parameters,
      dir,
      io,
    });
    await place.begin({
      title: setting(config, "rllm.trainer.experiment_name"),
      subtitle: describeRun(session, description),
      ...(memory && { memory_budget_bytes: memory.budget }),
      total_steps: totalSteps(session.tasks.train, settings),
      started: new Date().toISOString(),
    });
    const profiling = startProfile(input, { device, description });
    const outcome = await train({
      ...session,
      ...profiling?.parts,
      rollout: recording?.wrap(session.rollout) ?? session.rollout,
      backend,
      teacher,
      rewardModel,
      settings,
      source: recorded?.source,
      ...(device && { estimate: estimateAdvantagesOn(device) }),
      loggers: openLoggers({ config, dir, io }).map((logger) => place.logger(logger)),
      checkpoints,
      signal: AbortSignal.any([io.signal, place.signal]),
    });
    await place.end({ complete: outcome.isComplete });
    await profiling?.end(dir, io);
    const run = readRun(dir);
    const report = place.hasBegun ? writeReport(config, { dir, run }) : undefined;
    const latest = await checkpoints.latest();
    const best = await checkpoints.best();
    const model = latest === undefined ? undefined : join(dir, latest);
    const ending = { outcome, dir, model, best, report, run };
    if (input.options.json) io.out(`${JSON.stringify(outcomeJson(ending))}\n`);
    printTrainEnd({ ...ending, session, input, io });
    return io.signal.aborted ? interruptedStatus(io.signal) : EXIT_OK;
  } finally {
    await runSession.gateway?.close();
    await recording?.close();
    teacher?.close();
    rewardModel?.close();
    backend.close();
  }
}

interface Announcement {
  readonly session: RunSession;
  readonly recorded: TraceTraining | undefined;
  /** Address at which the agents of `task.agent` find the model. */
  readonly gateway: string | undefined;
  /** Teacher of a distillation. */
  readonly teacher: string | undefined;
  /** Its folder. */
  readonly rewardModel: string | undefined;
  readonly device: string;
  readonly memory: MemoryUse | undefined;
  readonly parameters: number;
  readonly dir: string;
  readonly io: Io;
}

function announce(announcement: Announcement): void {
  const { session, recorded, teacher, rewardModel, gateway, device, memory, parameters, dir, io } = announcement;
  const { tasks, environment, config } = session;
  const steps = totalSteps(tasks.train, settingsFromConfig(config));
  const width = io.isTerminal ? io.columns : Number.POSITIVE_INFINITY;
  const say = (label: string, text: string) => io.err(labelled(label, text, width));
  const counts = recorded ? "" : `${tasks.train.length} training, `;
  say("task", `${environment.name}: ${environment.describe} (${counts}${tasks.val.length} held out)`);
  if (recorded) say("traces", recorded.description);
  // A service does not report the number.
  const size = parameters > 0 ? `, ${shortNumber(parameters)} trainable parameters` : "";
  say("model", `${setting(config, "model.name") ?? "new"}${size}`);
  if (teacher !== undefined) say("teacher", teacher);
  if (rewardModel !== undefined) say("rewards", rewardModel);
  say("device", device);
  if (gateway !== undefined)
    say("agents", `${[setting(config, "task.agent") ?? []].flat().join(", ")}; gateway ${gateway}`);
  if (memory) say("memory", `at most ${formatBytes(memory.budget)} (${memory.budgetSource})`);
  const what = setting(config, "rllm.trainer.val_only")
    ? "validation only"
    : `${steps} ${steps === 1 ? "step" : "steps"}`;
  say("run", `${what}, written to ${dir}`);
  const isWatchable = setting(config, "rllm.trainer.logger").some((name) => /^(jsonl|report)$/.test(name));
  if (isWatchable) say("watch", `${commandName(io)} view ${quoted(dir)}`);
  io.err("\n");
}

/** Undefined without distillation. */
function teacherName(config: Tree, teacher: Teacher | undefined): string | undefined {
  if (!setting(config, "distillation.enabled")) return undefined;
  const weights = setting(config, "distillation.teacher_weights");
  const mode = setting(config, "distillation.distillation_loss.loss_mode");
  return `${teacher?.name ?? `the student itself, ${weights} weights`}, ${mode}`;
}

function describeRun({ environment, config }: RunSession, device: string): string {
  const model = setting(config, "model.name") ?? "a new model";
  return `${environment.describe}; ${model}; ${device}`;
}
