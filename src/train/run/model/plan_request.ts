/** Plans of `grpu plan`: the work of a configuration on this machine's device, or on a GPU of a given size. */

import { TYPICAL_GPU } from "../../../engine/compute/counting.ts";
import type { DeviceInfo } from "../../../engine/compute/device.ts";
import { openDevice } from "../../../engine/compute/open.ts";
import { folderKind } from "../../../engine/model/files/open_folder.ts";
import { readAdapterShape } from "../../../engine/model/files/peft.ts";
import { type ModelShape, openModelShape } from "../../../engine/model/model_shape.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import type { PlanRequest } from "../../backend/local/plan/rehearsal.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { RunSessionOptions } from "../compose_files.ts";
import type { RunIo } from "../io.ts";
import { type Composition, composeRun, openTask } from "../session.ts";
import { checkpointDir } from "./checkpoint_dir.ts";
import { plannedCritic, readCritic } from "./critic_settings.ts";
import { deviceOptions, readLora } from "./model_settings.ts";
import { describeNewModel } from "./new_model.ts";
import { plannedWork } from "./plan_settings.ts";
import { rewardModelFolder } from "./reward_scorer.ts";
import { localTeacherFolder } from "./teacher.ts";
import { FIXED_OF_NEW_MODELS } from "./trained_model.ts";

export interface PlanInput extends RunSessionOptions {
  /** `8GiB`; absent: the budget of this machine's device. */
  readonly memory: string | undefined;
  /** Whether `--device` names this machine's device, for a plan with another budget. */
  readonly isDeviceNamed: boolean;
}

/** @throws ConfigError for a setting, a size or a model folder that cannot be read. */
export async function readPlanRequest(
  input: PlanInput,
  io: RunIo,
): Promise<{ request: PlanRequest; model: string; budgetSource: string }> {
  const composed = await composeRun(input, io);
  const { config } = composed;
  const backend = setting(config, "rllm.backend");
  if (backend !== "local")
    throw new UnsupportedError(
      `Cannot plan a run on the backend ${backend}: its memory is not this machine's. Use rllm/backend=local.`,
      { part: "cli", capability: `rllm/backend=${backend}` },
    );
  const model = await modelShape(composed);
  const isTrained = !setting(config, "rllm.trainer.val_only");
  const lora = isTrained ? readLora(config, model.config) : undefined;
  const name = setting(config, "model.name");
  const fixedSettings = name === null ? FIXED_OF_NEW_MODELS : undefined;
  const critic = isTrained ? await plannedCritic(readCritic(config)) : undefined;
  const work = plannedWork(config, { model, lora, isTrained, fixedSettings, critic });
  const folder = rewardModelFolder(config);
  const rewardModel =
    folder === undefined ? undefined : await wholeShape(await checkpointDir(folder, io), PATH_OF_REWARDS);
  const taught = localTeacherFolder(config);
  const teacher = taught === undefined ? undefined : await wholeShape(await checkpointDir(taught, io), PATH_OF_TEACHER);
  const { budgetSource, ...device } = await describedDevice(config, input);
  return { request: { ...work, ...device, rewardModel, teacher }, model: name ?? "a new model", budgetSource };
}

async function modelShape(composed: Composition): Promise<ModelShape> {
  const folder = setting(composed.config, "model.name");
  if (folder === null) return { config: await describeNewModel(await openTask(composed)), typeOf: () => undefined };
  const { adapters: _, ...base } = await wholeShape(folder, "model.name");
  // A run trains an adapter of its own.
  return base;
}

const PATH_OF_TEACHER = "distillation.teacher_models.teacher_model.model_path";
const PATH_OF_REWARDS = "reward_model.model.path";

/** The shape of a model, or of an adapter with its base. */
export async function wholeShape(folder: string, path: string): Promise<ModelShape> {
  if ((await folderKind(folder)) === "model") return openModelShape(folder);
  const { base, ...adapter } = await readAdapterShape(folder);
  if (base !== undefined) {
    const shape = await wholeShape(base, path);
    return { ...shape, adapters: [...(shape.adapters ?? []), adapter] };
  }
  throw new ConfigError("Cannot plan for the adapter: it does not name its base model. Give that model's folder.", {
    path,
  });
}

async function describedDevice(
  config: Tree,
  { memory, isDeviceNamed }: PlanInput,
): Promise<{ info: DeviceInfo; budget: number; budgetSource: string }> {
  const bytes = memory === undefined ? setting(config, "memory_budget_bytes") : readMemorySize(memory);
  if (memory !== undefined && !isDeviceNamed) return { info: TYPICAL_GPU, budget: bytes!, budgetSource: "--memory" };
  const device = await openDevice({ ...deviceOptions(config), memoryBudgetBytes: bytes ?? undefined });
  try {
    const { budget, budgetSource } = device.memory;
    return { info: device.info, budget, budgetSource: memory === undefined ? budgetSource : "--memory" };
  } finally {
    device.destroy();
  }
}

const UNITS: Readonly<Record<string, number>> = {
  "": 1,
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40,
};

/** Bytes of `--memory`. @throws ConfigError as {@link readSize} */
export function readMemorySize(text: string): number {
  return readSize(text, "--memory");
}

/** `8GiB`, `7.5 GB`, `8589934592`. @throws ConfigError for another form. */
export function readSize(text: string, flag: string): number {
  const [, number = "", unit = ""] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text) ?? [];
  const bytes = Number(number) * (UNITS[unit.toLowerCase()] ?? Number.NaN);
  if (number !== "" && bytes >= 1) return Math.floor(bytes);
  throw new ConfigError(`Cannot read ${flag}: it is no size (${text}). Write for instance 8GiB, 512MiB or 8589934592.`);
}
