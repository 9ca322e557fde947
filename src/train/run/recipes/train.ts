/** Reinforcement learning on a task, or on recorded sessions of one: the recipe of `grpu train`. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { formatBytes } from "../../../engine/compute/memory.ts";
import type { Teacher } from "../../../engine/contract/teacher.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { LoopSettings } from "../../loop/settings.ts";
import { settingsFromConfig } from "../../loop/settings_config.ts";
import { estimateAdvantagesOn } from "../../loop/stages/estimate.ts";
import { totalSteps } from "../../loop/state.ts";
import { train } from "../../loop/train.ts";
import { howGood, type Left, modelText, valueChange } from "../ending.ts";
import { gatewaySettings } from "../gateway/gateway_settings.ts";
import { openRecording } from "../gateway/recorded_rollout.ts";
import { type OpenedTrainer, openBackend } from "../model/backend.ts";
import { checkPrompts } from "../model/prompts.ts";
import type { ComposedRun, Conclusion, Line, OpenedRun, Recipe, TraceOptions } from "../recipe.ts";
import { type Composition, composeRun, openTask, type RunSession } from "../session.ts";
import { checkTraceOptions, openRecorded, type TraceTraining } from "../train_traces.ts";

export interface ComposedTraining extends ComposedRun, Composition {
  readonly traces: TraceOptions;
}

export interface TrainingData {
  readonly session: RunSession;
  readonly settings: LoopSettings;
  readonly traces: TraceOptions;
}

export interface OpenedTraining extends OpenedRun, OpenedTrainer<RunSession> {
  readonly settings: LoopSettings;
  readonly recorded: TraceTraining | undefined;
}

const WITHOUT_TRACES: TraceOptions = { file: undefined, isLatest: false };

export const trainRecipe: Recipe<ComposedTraining, TrainingData, OpenedTraining> = {
  name: "train",

  async compose({ traces = WITHOUT_TRACES, ...options }, io) {
    return { ...(await composeRun({ ...options, isRecorded: traces.file !== undefined }, io)), traces };
  },

  async read({ traces, ...composition }) {
    const session = await openTask(composition, { isRecorded: traces.file !== undefined });
    const settings = settingsFromConfig(session.config);
    checkTraceOptions(traces, settings);
    if (traces.file === undefined) totalSteps(session.tasks.train, settings);
    return { session, settings, traces };
  },

  async open(data, opening) {
    const { io, checkpoint, onClose } = opening;
    const recorded = await openRecorded(data, opening);
    const isTrained = !data.settings.trainer.val_only;
    const opened = await openBackend(recorded?.session ?? data.session, { io, checkpoint, isTrained });
    onClose(() => opened.backend.close());
    onClose(() => opened.rewardModel?.close());
    onClose(() => opened.teacher?.close());
    const { session } = opened;
    return { ...opened, config: session.config, kept: session, settings: data.settings, recorded };
  },

  async prepare(opened, { io, onClose }) {
    const { session, backend, device, teacher, rewardModel, settings, recorded } = opened;
    const notify = (line: string) => io.err(`gateway: ${line}\n`);
    onClose(() => session.gateway?.close());
    const gateway = await session.gateway?.open(notify);
    const recording = await openRecording(gatewaySettings(session.config), notify);
    onClose(() => recording?.close());
    if (recorded) recorded.check(backend);
    else checkPrompts(session, { backend, io });
    return {
      steps: totalSteps(session.tasks.train, settings),
      title: session.environment.describe,
      parts: partsOf(opened, gateway),
      drive: (watched) =>
        train({
          ...session,
          ...watched,
          rollout: recording?.wrap(session.rollout) ?? session.rollout,
          backend,
          teacher,
          rewardModel,
          settings,
          source: recorded?.source,
          ...(device && { estimate: estimateAdvantagesOn(device) }),
        }),
      conclude: (left) => conclude(left, session),
    };
  },
};

/** @param gateway where the agents of `task.agent` find the model */
function partsOf(
  { session, recorded, backend, device, description, teacher, rewardModel }: OpenedTraining,
  gateway: string | undefined,
): Line[] {
  const { tasks, environment, config } = session;
  const lines: [label: string, text: string | undefined][] = [
    [
      "task",
      `${environment.name}: ${environment.describe} (${recorded ? "" : `${tasks.train.length} training, `}${tasks.val.length} held out)`,
    ],
    ["traces", recorded?.description],
    ["model", modelText(config, backend.model.trainableParameters)],
    ["teacher", teacherName(config, teacher)],
    ["rewards", rewardModel?.name],
    ["device", description],
    ["agents", gateway && `${[setting(config, "task.agent") ?? []].flat().join(", ")}; gateway ${gateway}`],
    ["memory", device && `at most ${formatBytes(device.memory.budget)} (${device.memory.budgetSource})`],
  ];
  return lines.filter((line): line is [string, string] => line[1] !== undefined);
}

/** Undefined without distillation. */
function teacherName(config: Tree, teacher: Teacher | undefined): string | undefined {
  if (!setting(config, "distillation.enabled")) return undefined;
  const weights = setting(config, "distillation.teacher_weights");
  const mode = setting(config, "distillation.distillation_loss.loss_mode");
  return `${teacher?.name ?? `the student itself, ${weights} weights`}, ${mode}`;
}

function conclude(left: Left, { config, tasks }: RunSession): Conclusion {
  const { model } = left;
  const isModel = model !== undefined && MODEL_FILES.some((file) => existsSync(join(model, file)));
  const [first] = tasks.val;
  const words = { reached: reachedBy(left, config), resume: "training.resume_mode=auto" };
  if (!isModel || !first) return words;
  const prompt = `${first.messages ? "--chat " : ""}--prompt ${JSON.stringify(first.instruction)}`;
  return { ...words, command: ["sample", `sample --model ${model} ${prompt}`] };
}

const MODEL_FILES = ["config.json", "adapter_config.json"];

function reachedBy({ dir, best, run }: Left, config: Tree): Line[] {
  const accuracy = valueChange(run, /\/pass@1$/);
  const reward = valueChange(run, /^val\/reward\/.*\/mean$/);
  const lines: Line[] = [];
  if (accuracy) lines.push(["accuracy", `${accuracy} on held-out tasks`]);
  // The same thing where rewards are right or wrong; what there is to see where they are not.
  if (reward && reward !== accuracy) lines.push(["reward", `${reward} on held-out tasks`]);
  if (best) {
    const isGreaterBetter = setting(config, "training.greater_is_better");
    lines.push(["best", `${join(dir, best.checkpoint)} (${howGood(best, { run, isGreaterBetter })})`]);
  } else if (setting(config, "training.metric_for_best_model"))
    lines.push(["best", "none: no validation ran after the first step"]);
  return lines;
}
