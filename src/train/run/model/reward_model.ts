/** Opens the reward model that a configuration trains: a new one, one from a folder, or one from a checkpoint. */

import type { Device } from "../../../engine/compute/device.ts";
import { openDevice } from "../../../engine/compute/open.ts";
import type { RewardModel } from "../../../engine/contract/reward_model.ts";
import { openTokenizer } from "../../../engine/model/files/folder.ts";
import { folderKind } from "../../../engine/model/files/open_folder.ts";
import { readAdapterShape } from "../../../engine/model/files/peft.ts";
import type { TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import type { LoraConfig } from "../../../engine/model/lora.ts";
import { type ModelShape, shapeOf } from "../../../engine/model/model_shape.ts";
import { type OpenedModel, openBase, openModel } from "../../../engine/model/open_model.ts";
import { ValueModel, type ValueModelOptions } from "../../../engine/model/value_model.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { fittingOptions } from "../../backend/local/plan/fit.ts";
import { LocalRewardModel, refusedAdapter } from "../../backend/local/reward_model.ts";
import { setting } from "../../config/schema.ts";
import type { ModelSession } from "../session.ts";
import type { OpenedTrainer } from "./backend.ts";
import { withTemplate } from "./chat_template.ts";
import { adoptCheckpoint } from "./checkpoint_shape.ts";
import { deviceOptions, readLora, templateOf } from "./model_settings.ts";
import { checkTokenizer, tokenizerOf } from "./new_model.ts";
import { plannedWork } from "./plan_settings.ts";
import { FIXED_OF_NEW_MODELS, newModelShape } from "./trained_model.ts";

/**
 * @param options.checkpoint folder of the weights to continue from, whose shape is taken
 * @throws {ConfigError} for a folder that cannot be read, an adapter in place of a model, and settings that contradict the checkpoint
 */
export async function openRewardModel<S extends ModelSession>(
  session: S,
  { checkpoint }: { readonly checkpoint: string | undefined },
): Promise<OpenedTrainer<S, RewardModel>> {
  const adopted = checkpoint === undefined ? session : await adoptCheckpoint(session, checkpoint);
  const device = await openDevice(deviceOptions(adopted.config));
  try {
    const backend = await openOn(device, adopted, checkpoint);
    return { backend, device, description: `${device.info.kind}: ${device.info.description}`, session: adopted };
  } catch (error) {
    device.destroy();
    throw error;
  }
}

async function openOn(device: Device, session: ModelSession, checkpoint: string | undefined): Promise<RewardModel> {
  const { config } = session;
  const folder = setting(config, "model.name");
  if (checkpoint !== undefined && (await folderKind(checkpoint)) === "adapter") {
    const opened = await openBase(checkpoint, { base: folder ?? undefined });
    const tokenizer = await openTokenizer(checkpoint, opened.files.config.eosTokenIds);
    const lora = await readAdapterShape(checkpoint);
    return fromFiles(device, { session, opened, tokenizer: tokenizer ?? opened.tokenizer, lora });
  }
  if (checkpoint !== undefined) {
    const opened = await openModel(checkpoint);
    if (folder === null) await checkTokenizer(session, { tokenizer: opened.tokenizer, checkpoint });
    return fromFiles(device, { session, opened, tokenizer: opened.tokenizer, name: folder ?? "new model" });
  }
  if (folder === null) return newRewardModel(device, session);
  const opened = await openModel(folder);
  const lora = readLora(config, opened.files.config);
  return fromFiles(device, { session, opened, tokenizer: opened.tokenizer, lora });
}

interface FromFiles {
  readonly session: ModelSession;
  readonly opened: OpenedModel;
  readonly tokenizer: TextTokenizer | undefined;
  readonly lora?: LoraConfig | undefined;
  /** Default: the folder's. */
  readonly name?: string;
}

async function fromFiles(device: Device, of: FromFiles): Promise<RewardModel> {
  const { session, opened, lora, name = opened.mark.folder } = of;
  const { files, adapters, mark } = opened;
  if (adapters.length > 0) throw refusedAdapter(mark.folder);
  const options = await fitting(device, session, { model: shapeOf(files), lora });
  const remake = () => ValueModel.load(device, files, { ...options, lora });
  const tokenizer = of.tokenizer && withTemplate(of.tokenizer, templateOf(session.config));
  return new LocalRewardModel({ model: await remake(), remake, tokenizer, name, base: mark });
}

async function newRewardModel(device: Device, session: ModelSession): Promise<RewardModel> {
  const { config } = session;
  if (readLora(config))
    throw new ConfigError("Cannot train an adapter on a new model: set model.lora_rank=0, or model.path to a folder.", {
      path: "model.lora_rank",
    });
  const tokenizer = await tokenizerOf(session);
  const shape = newModelShape(config, tokenizer);
  const options = await fitting(device, session, { model: { config: shape, typeOf: () => undefined } });
  const remake = async () => ValueModel.create(device, shape, options);
  return new LocalRewardModel({ model: await remake(), remake, tokenizer, name: "new model" });
}

/**
 * How weights are held and passes are cut. The plan is that of a language model of the shape, which holds an output matrix and its
 * logits too: a reward model needs less.
 */
async function fitting(
  device: Device,
  { config }: ModelSession,
  { model, lora }: { readonly model: ModelShape; readonly lora?: LoraConfig | undefined },
): Promise<ValueModelOptions> {
  const fixedSettings = setting(config, "model.name") === null ? FIXED_OF_NEW_MODELS : undefined;
  const policy = { ...model, config: { ...model.config, scoreHead: undefined } };
  const work = plannedWork(config, { model: policy, lora, isTrained: true, fixedSettings });
  const { dtype, quantization, maxTokensPerPass, gradientCheckpointing } = await fittingOptions(device, work);
  const held = lora ? { dtype, quantization } : {};
  return { ...held, maxTokensPerPass, gradientCheckpointing, seed: setting(config, "training.seed"), label: "weights" };
}
