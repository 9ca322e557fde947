/** Opens the teacher of a distillation: a folder on the student's device, or a service. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Device } from "../../../engine/compute/device.ts";
import { openDevice } from "../../../engine/compute/open.ts";
import type { Teacher } from "../../../engine/contract/teacher.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { openTokenizer } from "../../../engine/model/files/folder.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { LocalTeacher } from "../../backend/local/teacher.ts";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { RunIo } from "../io.ts";
import { httpFetch } from "../net/http.ts";
import { checkpointDir } from "./checkpoint_dir.ts";
import { deviceOptions } from "./model_settings.ts";

const MODEL_PATH = "distillation.teacher_models.teacher_model.model_path";
const TINKER_SERVICE = "https://tinker.thinkingmachines.dev/services/tinker-prod";

/**
 * Undefined without distillation, and where the student is its own teacher.
 * @param at.device the student's; absent where that is at a service
 * @throws {ConfigError} for a folder, a key or a tokenizer that is missing; {RemoteError} for a service that refuses
 */
export async function openTeacher(
  config: Tree,
  { io, device }: { readonly io: RunIo; readonly device?: Device | undefined },
): Promise<Teacher | undefined> {
  if (!setting(config, "distillation.enabled")) return undefined;
  const model = setting(config, "distillation.teacher_models.teacher_model.model_path") ?? "";
  const kind = setting(config, "distillation.teacher_kind");
  const baseUrl = setting(config, "distillation.teacher_url");
  if (kind === "tinker") return openTinkerTeacher(config, { io, model, baseUrl });
  if (kind === "openai") {
    const { OpenAiTeacher } = await import("../../backend/openai_teacher.ts");
    const named = setting(config, "distillation.teacher_tokenizer");
    const tokenizer = named === null ? undefined : await teacherTokenizer(config, model);
    return new OpenAiTeacher({ baseUrl: baseUrl!, model, tokenizer, apiKey: io.env.OPENAI_API_KEY, fetch: httpFetch });
  }
  return kind === "local" ? openLocalTeacher(config, { io, model, device }) : undefined;
}

/** The folder of a teacher on the student's device; undefined without one. */
export function localTeacherFolder(config: Tree): string | undefined {
  const isLocal = setting(config, "distillation.enabled") && setting(config, "distillation.teacher_kind") === "local";
  return isLocal ? (setting(config, MODEL_PATH) ?? undefined) : undefined;
}

async function openLocalTeacher(
  config: Tree,
  { io, model, device: openedDevice }: { io: RunIo; model: string; device: Device | undefined },
): Promise<Teacher> {
  const folder = await checkpointDir(model, io);
  if (openedDevice) return LocalTeacher.open(folder, { device: openedDevice });
  const device = await openDevice(deviceOptions(config));
  try {
    const teacher = await LocalTeacher.open(folder, { device });
    const close = () => {
      teacher.close();
      device.destroy();
    };
    return { ...withMethods(teacher), close };
  } catch (error) {
    device.destroy();
    throw error;
  }
}

/** The methods of a teacher as an object's own. */
function withMethods(teacher: LocalTeacher): Omit<Teacher, "close"> {
  const { name, tokenizer, contextLength } = teacher;
  return {
    ...{ name, tokenizer, contextLength },
    logprobs: (rows, options) => teacher.logprobs(rows, options),
    top: (rows, options) => teacher.top(rows, options),
  };
}

async function openTinkerTeacher(
  config: Tree,
  { io, model, baseUrl }: { io: RunIo; model: string; baseUrl: string | null },
): Promise<Teacher> {
  const { TinkerTeacher } = await import("../../backend/tinker/teacher.ts");
  const apiKey = io.env.TINKER_API_KEY;
  if (!apiKey)
    throw new ConfigError(
      "Cannot distil from a Tinker service: TINKER_API_KEY is not set in the environment. Set it; a local server takes any key that begins with tml-.",
    );
  return TinkerTeacher.open({
    baseUrl: (baseUrl ?? (io.env.TINKER_BASE_URL || TINKER_SERVICE)).replace(/\/+$/, ""),
    apiKey,
    fetch: httpFetch,
    sdkVersion: SDK_VERSION,
    model,
    tokenizer: await teacherTokenizer(config, model),
    contextLength: setting(config, "training.max_length"),
    hurry: io.signal,
    notify: (message) => io.err(`teacher: ${message}\n`),
  });
}

/** The version of the official SDK to present. */
const SDK_VERSION = "0.25.0";

/** @throws {ConfigError} where none is found, because the service does not report its tokens */
async function teacherTokenizer(config: Tree, model: string): Promise<Tokenizer> {
  const named = setting(config, "distillation.teacher_tokenizer");
  const folder = named ?? model;
  const tokenizer = existsSync(join(folder, "tokenizer.json")) ? await openTokenizer(folder) : undefined;
  if (tokenizer) return tokenizer;
  throw new ConfigError(
    `Cannot compare the teacher's tokens with the student's: there is no tokenizer.json in ${folder}. Set distillation.teacher_tokenizer to a folder with that of ${model}.`,
    { path: named === null ? MODEL_PATH : "distillation.teacher_tokenizer" },
  );
}
