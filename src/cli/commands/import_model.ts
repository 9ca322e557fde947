/** `grpu import`: a model of another program's file, as a folder in Hugging Face's layout. */
import type { Command, Input, Io } from "../command.ts";
import { integerOption } from "./model_options.ts";

export const importCommand: Command = {
  path: "import",
  writesForOthers: true,
  summary: "write a GGUF file as a folder in Hugging Face's layout",
  args: "<FILE.gguf>",
  options: [
    { flag: "--out", value: "DIR", describe: "the folder to write; empty, or not there yet", required: true },
    {
      flag: "--dtype",
      value: "TYPE",
      describe: "of the weights; float32 holds quantised ones exactly",
      choices: ["bfloat16", "float32"],
      default: "bfloat16",
    },
    {
      flag: "--max-shard-bytes",
      value: "N",
      describe: "weights above this size are written as several files",
      default: "5000000000",
    },
    { flag: "--json", describe: "print what was written as one JSON object" },
  ],
  examples: [
    "grpu import SmolLM2-135M-Instruct.Q4_1.gguf --out ./smollm2",
    "grpu import model-00001-of-00003.gguf --out ./model --dtype float32",
  ],
  notes:
    "Nothing needs it: wherever a model's folder is taken, the file is taken too. No device is opened, and one tensor at a time is in memory.",
  run: importModel,
};

async function importModel({ args, options }: Input, io: Io): Promise<void> {
  const maxShardBytes = integerOption(options.maxShardBytes, { flag: "--max-shard-bytes", least: 1 });
  const { importGguf } = await import("../../engine/model/export.ts");
  const dtype = options.dtype as "bfloat16" | "float32";
  const written = await importGguf(args[0]!, { out: String(options.out), dtype, maxShardBytes });
  if (options.json) io.out(`${JSON.stringify({ out: options.out, ...written })}\n`);
  else io.out(`${options.out}\n`);
  io.err(`wrote the model in ${written.dtype}: ${written.files.join(", ")}\n`);
}
