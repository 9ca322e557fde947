/** Recommendations of a model's generation_config.json, offered to the person who samples it. */
import { existsSync } from "node:fs";
import { type GenerationConfig, readGenerationConfig } from "../../../engine/model/files/generation_config.ts";
import { folderKind } from "../../../engine/model/files/open_folder.ts";
import { readAdapterShape } from "../../../engine/model/files/peft.ts";
import { setting } from "../../config/schema.ts";
import { getAt } from "../../config/yaml/tree.ts";
import type { RunIo } from "../io.ts";
import type { RunSession } from "../session.ts";

/**
 * Names, for `grpu eval`, the recommended values that differ from defaults of the configuration, because it samples as
 * the configuration says, so that its scores compare with the run's own validation.
 */
export async function offerSampling(
  { config, isGiven }: Pick<RunSession, "config" | "isGiven">,
  { folder, io }: { folder: string; io: RunIo },
): Promise<void> {
  const { file, sampling } = await generationConfigOf(folder, setting(config, "model.name") ?? undefined);
  const offers = Object.entries(sampling).flatMap(([key, value]) => {
    const path = `rllm.rollout.val.${key}`;
    return isGiven(path) || getAt(config, path) === value ? [] : [`${path}=${value}`];
  });
  if (offers.length > 0) io.err(`${file} recommends ${offers.join(" ")}; these scores are sampled without\n`);
}

/** Returns the generation config of a model folder, or of an adapter's base. */
export async function generationConfigOf(folder: string, base?: string): Promise<GenerationConfig> {
  if ((await folderKind(folder)) === "model") return readGenerationConfig(folder);
  const below = base ?? (await readAdapterShape(folder)).base;
  // The adapter may record a name of the Hub, or a folder of another machine.
  return below !== undefined && existsSync(below) ? generationConfigOf(below) : readGenerationConfig(folder);
}
