/** Opens the local backend: a device, and a model from a folder or a new one. */

import type { Device } from "../../../engine/compute/device.ts";
import { type OpenDeviceOptions, openDevice } from "../../../engine/compute/open.ts";
import type { RewardScorer } from "../../../engine/contract/reward_model.ts";
import type { Teacher } from "../../../engine/contract/teacher.ts";
import { openModelFolder, openTokenizer } from "../../../engine/model/files/folder.ts";
import { folderKind } from "../../../engine/model/files/open_folder.ts";
import { readAdapterShape } from "../../../engine/model/files/peft.ts";
import { LanguageModel } from "../../../engine/model/language_model.ts";
import { shapeOf } from "../../../engine/model/model_shape.ts";
import { loadModel, openBase, openModel } from "../../../engine/model/open_model.ts";
import { UnsupportedError } from "../../../leaves/errors.ts";
import { LocalBackend } from "../../backend/local/backend.ts";
import { criticOf } from "../../backend/local/critic.ts";
import { fittingOptions } from "../../backend/local/plan/fit.ts";
import { DEFAULT_SHAPE } from "../../backend/local/plan/run_shape.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { ModelSession } from "../session.ts";
import { withTemplate } from "./chat_template.ts";
import { plannedCritic, readCritic } from "./critic_settings.ts";
import { deviceOptions, readLora, templateOf } from "./model_settings.ts";
import { checkTokenizer, createLocalModel } from "./new_model.ts";
import { plannedWork } from "./plan_settings.ts";
import { newContextLength, recording, trainable } from "./trained_model.ts";

export interface OpenedBackend {
  readonly backend: LocalBackend;
  readonly device: Device;
  /** Teacher that {@link LocalOpenOptions.teacher} opened. */
  readonly teacher?: Teacher | undefined;
  /** Reward model that {@link LocalOpenOptions.rewardModel} opened. */
  readonly rewardModel?: RewardScorer | undefined;
}

export interface LocalOpenOptions {
  /** Folder of weights to continue from. They fix what is opened; the configuration must not contradict them. */
  readonly checkpoint?: string | undefined;
  /** False to sample and score only, which needs neither an optimiser's files nor its memory. Default true. */
  readonly isTrained?: boolean;
  /** Opens the teacher on the device, before the student, whose plan counts what the teacher holds. */
  readonly teacher?: ((device: Device) => Promise<Teacher | undefined>) | undefined;
  /** The same for the reward model. */
  readonly rewardModel?: ((device: Device) => Promise<RewardScorer | undefined>) | undefined;
}

/** @throws ConfigError for a model folder that cannot be read; UnsupportedError where the device asked for is missing. */
export async function openLocalBackend(session: ModelSession, options: LocalOpenOptions = {}): Promise<OpenedBackend> {
  const { config } = session;
  const wanted = setting(config, "rllm.backend");
  if (wanted !== "local") {
    throw new UnsupportedError(
      `Cannot train on the backend ${wanted}: this version has no such backend. Use rllm/backend=local.`,
      {
        part: "cli",
        capability: `rllm/backend=${wanted}`,
      },
    );
  }
  const device = await openDevice(deviceOptions(config));
  return closingOnError(device, async () => {
    const teacher = await options.teacher?.(device);
    const rewardModel = await options.rewardModel?.(device);
    return { backend: await openOn(device, session, options), teacher, rewardModel };
  });
}

async function openOn(device: Device, session: ModelSession, options: LocalOpenOptions): Promise<LocalBackend> {
  const { config } = session;
  const { checkpoint, isTrained = true } = options;
  const folder = setting(config, "model.name");
  const base = folder ?? undefined;
  const template = templateOf(config);
  if (checkpoint !== undefined) {
    const isAdapter = (await folderKind(checkpoint)) === "adapter";
    if (!isTrained) return openFixed(device, { folder: checkpoint, base, template, config });
    if (!isAdapter) return resumeModel(device, { session, checkpoint });
    const lora = await readAdapterShape(checkpoint);
    const opened = await openBase(checkpoint, { base });
    const checkpointTokenizer = await openTokenizer(checkpoint, opened.files.config.eosTokenIds);
    const resumed = { ...opened, tokenizer: checkpointTokenizer ?? opened.tokenizer };
    const tokenizer = resumed.tokenizer && withTemplate(resumed.tokenizer, template);
    return trainable(device, { opened: resumed, tokenizer, lora, config, fixedSettings: FIXED_OF_CHECKPOINTS });
  }
  if (folder === null) return createLocalModel(device, session);
  if (!isTrained) return openFixed(device, { folder, template, config });
  const opened = await openModel(folder);
  const tokenizer = opened.tokenizer && withTemplate(opened.tokenizer, template);
  return trainable(device, { opened, tokenizer, lora: readLora(config, opened.files.config), config });
}

/** A trained model of this configuration's own kind, under the checkpoint's tokenizer. */
async function resumeModel(
  device: Device,
  { session, checkpoint }: { session: ModelSession; checkpoint: string },
): Promise<LocalBackend> {
  const { config } = session;
  const files = await openModelFolder(checkpoint);
  const folder = setting(config, "model.name");
  if (folder === null) await checkTokenizer(session, { tokenizer: files.tokenizer, checkpoint });
  const room = folder === null ? newContextLength(config) : 0;
  const contextLength = Math.max(files.config.contextLength, room);
  const grown = { ...files, config: { ...files.config, contextLength } };
  const its = readCritic(config);
  const work = plannedWork(config, {
    model: shapeOf(grown),
    isTrained: true,
    fixedSettings: FIXED_OF_CHECKPOINTS,
    critic: await plannedCritic(its),
  });
  const fitting = await fittingOptions(device, work);
  const model = await LanguageModel.load(device, grown, fitting);
  const tokenizer = files.tokenizer && withTemplate(files.tokenizer, templateOf(config));
  // The checkpoint may be pruned by then: a state or another checkpoint replaces all weights.
  const remake = async () => LanguageModel.create(device, grown.config, fitting);
  const { generationConfig } = files;
  const critic = await criticOf(model, its, fitting);
  const name = folder ?? "new model";
  return new LocalBackend({ ...recording(config), model, remake, critic, tokenizer, name, generationConfig });
}

/** A checkpoint holds all weights, or an adapter of a rank. */
const FIXED_OF_CHECKPOINTS: readonly string[] = ["model.lora_rank"];

/** Opens a model to sample and score; an adapter is merged into its base. */
async function openFixed(
  device: Device,
  {
    folder,
    base,
    template,
    config,
  }: { folder: string; config?: Tree } & Partial<Record<"base" | "template", string | undefined>>,
): Promise<LocalBackend> {
  const opened = await openModel(folder, { base });
  const shape = { ...DEFAULT_SHAPE, isTrained: false };
  const guess = { model: shapeOf(opened.files), options: { frozen: true }, shape, fixedSettings: "all" } as const;
  const work = config ? plannedWork(config, { model: shapeOf(opened.files), isTrained: false }) : guess;
  const fitting = await fittingOptions(device, work, { isExact: config !== undefined });
  const remake = () => loadModel(device, opened, fitting);
  const tokenizer = opened.tokenizer && withTemplate(opened.tokenizer, template);
  return new LocalBackend({ model: await remake(), remake, tokenizer, name: folder, fixedTo: folder });
}

/**
 * A model folder, an adapter or a checkpoint of `grpu train`, to run and not to train.
 * @param options.on the device
 * @param options.base folder of an adapter's base
 * @param options.template Jinja file in place of the model's chat template, or `plain`
 */
export async function openForInference(
  folder: string,
  { on, ...how }: { on: OpenDeviceOptions; base?: string | undefined; template?: string | undefined },
): Promise<OpenedBackend> {
  const device = await openDevice(on);
  return closingOnError(device, async () => ({ backend: await openFixed(device, { folder, ...how }) }));
}

async function closingOnError(
  device: Device,
  open: () => Promise<Omit<OpenedBackend, "device">>,
): Promise<OpenedBackend> {
  try {
    return { ...(await open()), device };
  } catch (error) {
    device.destroy();
    throw error;
  }
}
