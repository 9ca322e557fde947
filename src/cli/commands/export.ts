/** `grpu export`: a folder for other programs, of a run, a checkpoint, an adapter or a model. */

import { GGUF_FORMS, type GgufForm } from "../../engine/model/gguf/form.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { Command, Input, Io } from "../command.ts";
import { BASE, integerOption } from "./model_options.ts";

export const exportCommand: Command = {
  path: "export",
  writesForOthers: true,
  summary: "write a model or an adapter as transformers, PEFT, vLLM and llama.cpp read it",
  args: "<DIR>",
  options: [
    { flag: "--out", value: "DIR", describe: "the folder to write; empty, or not there yet", required: true },
    { flag: "--merge", describe: "add an adapter to its base's weights; without it the adapter is written alone" },
    {
      flag: "--dtype",
      value: "TYPE",
      describe: "of the weights; default: the base's where it is bfloat16, else float32",
      choices: ["bfloat16", "float32"],
    },
    {
      flag: "--gguf",
      value: "TYPE",
      describe: "write one GGUF file for llama.cpp, with matrices of this type",
      choices: Object.keys(GGUF_FORMS),
    },
    BASE,
    {
      flag: "--max-shard-bytes",
      value: "N",
      describe: "weights above this size are written as several files",
      default: "5000000000",
    },
    { flag: "--json", describe: "print what was written as one JSON object" },
  ],
  examples: [
    "grpu export checkpoints/grpu/gsm8k --out ./gsm8k-merged --merge",
    "grpu export checkpoints/grpu/gsm8k/global_step_100 --out ./gsm8k-adapter",
    "grpu export checkpoints/grpu/gsm8k --merge --gguf q8_0 --out ./gsm8k-gguf",
    "grpu export ./adapter --base ./Qwen3-0.6B --merge --dtype float32 --out ./merged",
  ],
  notes:
    "DIR is a run (its latest step), a checkpoint, an adapter in PEFT's form or a model folder. No device is opened, and one tensor at a time is in memory.",
  run: exportModel,
};

async function exportModel({ args, options }: Input, io: Io): Promise<void> {
  const maxShardBytes = integerOption(options.maxShardBytes, { flag: "--max-shard-bytes", least: 1 });
  const { checkpointDir } = await import("../../train/run/model/checkpoint_dir.ts");
  const { exportFolder } = await import("../../engine/model/export.ts");
  const out = String(options.out);
  if (options.gguf !== undefined && options.dtype !== undefined)
    throw new ConfigError(
      `Cannot export: --gguf ${options.gguf} and --dtype ${options.dtype} both name a type. Leave one out.`,
      { kind: "usage" },
    );
  const { kind, dtype, files } = await exportFolder(await checkpointDir(args[0]!, io), {
    out,
    merge: options.merge === true,
    dtype: options.dtype as "bfloat16" | "float32" | undefined,
    gguf: options.gguf as GgufForm | undefined,
    base: options.base as string | undefined,
    maxShardBytes,
  });
  if (options.json) io.out(`${JSON.stringify({ out, kind, dtype, files })}\n`);
  else io.out(`${out}\n`);
  io.err(`wrote ${kind === "model" ? "the model" : "the adapter"} in ${dtype}: ${files.join(", ")}\n`);
}
