/** `grpu model show`: what is in a model's folder, without its weights. */
import type { ModelFolder } from "../../engine/model/files/folder.ts";
import type { GenerationConfig } from "../../engine/model/files/generation_config.ts";
import type { AdapterShape } from "../../engine/model/files/peft.ts";
import type { Command, Input, Io } from "../command.ts";

export const modelShowCommand: Command = {
  path: "model show",
  summary: "show a model's shape, types, sizes, template and stop tokens",
  args: "<DIR>",
  options: [{ flag: "--json", describe: "print one JSON object" }],
  examples: ["grpu model show ./Qwen3-0.6B", "grpu model show checkpoints/grpu/gsm8k --json"],
  notes:
    "DIR is a model folder, an adapter, a run (its latest step) or a checkpoint. Every header is checked; no weight is read.",
  run: show,
};

type Facts = Readonly<Record<string, unknown>>;

async function show({ args, options }: Input, io: Io): Promise<void> {
  const { checkpointDir } = await import("../../train/run/model/checkpoint_dir.ts");
  const facts = await factsOf(await checkpointDir(args[0]!, io));
  if (options.json) io.out(`${JSON.stringify(facts)}\n`);
  else for (const [name, value] of Object.entries(facts)) io.out(`${name.padEnd(WIDTH)} ${text(value)}\n`);
}

const WIDTH = 20;

function text(value: unknown): string {
  if (value === null || value === undefined) return "none";
  if (typeof value !== "object") return String(value);
  if (Array.isArray(value)) return value.map(text).join(", ") || "none";
  const parts = Object.entries(value).map(
    ([name, each]) => `${name}=${typeof each === "object" ? JSON.stringify(each) : each}`,
  );
  return parts.join(" ") || "none";
}

async function factsOf(folder: string): Promise<Facts> {
  const { folderKind } = await import("../../engine/model/files/open_folder.ts");
  const { readAdapterShape } = await import("../../engine/model/files/peft.ts");
  const { openModelFolder } = await import("../../engine/model/files/folder.ts");
  const { generationConfigOf } = await import("../../train/run/model/recommended_sampling.ts");
  if ((await folderKind(folder)) === "adapter") return adapterFacts(folder, await readAdapterShape(folder));
  return modelFacts(await openModelFolder(folder), await generationConfigOf(folder));
}

function adapterFacts(folder: string, { rank, alpha, targets, modules, base, fingerprint }: AdapterShape): Facts {
  return { folder, kind: "adapter", base, rank, alpha, targets, modules: modules.size, fingerprint };
}

async function modelFacts(files: ModelFolder, { sampling, ignored }: GenerationConfig): Promise<Facts> {
  const { parameterCount } = await import("../../engine/model/layers.ts");
  const { toolFormatOf } = await import("../../chat/reply.ts");
  const { architecture, eosTokenIds, bosTokenId, padTokenId, contextLength, vocabSize, tied, ...shape } = files.config;
  const { tokenizer } = files;
  const template = tokenizer?.chatTemplate;
  return {
    folder: files.name,
    kind: "model",
    architecture,
    parameters: parameterCount(files.config),
    ...weightFacts(files),
    layers: shape.layers,
    hidden_size: shape.hiddenSize,
    intermediate_size: shape.intermediateSize,
    heads: `${shape.heads} query, ${shape.kvHeads} key-value, ${shape.headDim} wide`,
    vocabulary: vocabSize,
    tied_embedding: tied,
    context: contextLength,
    tokenizer: tokenizer ? `${tokenizer.vocabSize} tokens` : null,
    stop_tokens: eosTokenIds.map((id) => `${id} ${nameOf(tokenizer, id)}`.trim()),
    bos_token: bosTokenId ?? null,
    chat_template: template === undefined ? null : `${template.length} characters`,
    tool_calls: template === undefined ? null : (toolFormatOf(template) ?? null),
    assistant_masks:
      template === undefined ? null : template.includes("endgeneration") ? "generation blocks" : "by turns",
    sampling,
    sampling_left_out: ignored,
  };
}

function nameOf(tokenizer: ModelFolder["tokenizer"], id: number): string {
  return tokenizer?.decode([id], { skipSpecialTokens: false }) ?? "";
}

/** Types with their share of the bytes, and the files that hold them. */
function weightFacts({ tensors }: ModelFolder): Facts {
  const bytes: Record<string, number> = {};
  for (const { dtype, byteLength } of tensors.values()) bytes[dtype] = (bytes[dtype] ?? 0) + byteLength;
  const files = new Set(Array.from(tensors.values(), ({ file }) => file));
  const total = Object.values(bytes).reduce((sum, each) => sum + each, 0);
  return { bytes: total, dtype: Object.keys(bytes), bytes_by_dtype: bytes, tensors: tensors.size, files: files.size };
}
