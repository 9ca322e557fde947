/** What a model's generation_config.json recommends, offered to the person who samples it. */
import { existsSync } from "node:fs";
import { setting } from "../../config/schema.ts";
import { getAt } from "../../config/yaml/tree.ts";
import { type GenerationConfig, readGenerationConfig } from "../../model/files/generation_config.ts";
import { folderKind } from "../../model/files/open_folder.ts";
import { describeAdapter } from "../../model/files/peft.ts";
import type { RunIo } from "../io.ts";
import type { Session } from "../session.ts";

/**
 * For `grpu eval`, which samples as the configuration says, so that its scores compare with the run's own validation:
 * names the recommended values that differ from defaults of the configuration.
 */
export async function offerSampling(
  { config, isGiven }: Pick<Session, "config" | "isGiven">,
  { folder, io }: { folder: string; io: RunIo },
): Promise<void> {
  const { file, sampling } = await generationConfigOf(folder, setting(config, "model.name") ?? undefined);
  const offers = Object.entries(sampling).flatMap(([key, value]) => {
    const path = `rllm.rollout.val.${key}`;
    return isGiven(path) || getAt(config, path) === value ? [] : [`${path}=${value}`];
  });
  if (offers.length > 0) io.err(`${file} recommends ${offers.join(" ")}; these scores are sampled without\n`);
}

/** Of a model folder, or of an adapter's base. */
export async function generationConfigOf(folder: string, base?: string): Promise<GenerationConfig> {
  if ((await folderKind(folder)) === "model") return readGenerationConfig(folder);
  const below = base ?? (await describeAdapter(folder)).base;
  // The adapter may record a name of the Hub, or a folder of another machine.
  return below !== undefined && existsSync(below) ? generationConfigOf(below) : readGenerationConfig(folder);
}
