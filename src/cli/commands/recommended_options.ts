/** The sampling that a model's generation_config.json recommends, in place of flags that are not options. */
import { describeSampling, type SamplingDefaults } from "../../engine/model/files/generation_config.ts";
import { generationConfigOf } from "../../train/run/model/recommended_sampling.ts";
import type { Input, Io } from "../command.ts";

const FLAGS = { temperature: "temperature", top_p: "topP", top_k: "topK" } as const;

/**
 * The recommended values for flags that are not options. Standard error tells which of them are used, and which
 * recommendations this version does not know.
 */
export async function recommendedSampling(
  folder: string,
  { base, options, io }: { base: string | undefined; options: Input["options"]; io: Io },
): Promise<SamplingDefaults> {
  const { file, sampling, ignored } = await generationConfigOf(folder, base);
  const used = Object.fromEntries(
    Object.entries(sampling).filter(([key]) => options[FLAGS[key as keyof typeof FLAGS]] === undefined),
  );
  if (Object.keys(used).length > 0) io.err(`${describeSampling(used)} (${file}; flags override them)\n`);
  if (sampling.temperature === undefined && options.temperature === undefined)
    io.err("temperature 1, because the model recommends none (--temperature sets it)\n");
  if (ignored.length > 0) io.err(`warning: ${ignored.join(", ")} of ${file} has no counterpart here and is left out\n`);
  return used;
}
