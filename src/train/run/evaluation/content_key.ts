/** The key of an evaluation's attempts: a hash of everything that they follow from, apart from the tasks. */

import { createHash } from "node:crypto";
import { createReadStream, existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { folderKind } from "../../../engine/model/files/open_folder.ts";
import { readAdapterShape } from "../../../engine/model/files/peft.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import { setting } from "../../config/schema.ts";
import { leaves, type Tree } from "../../config/yaml/tree.ts";
import { agents, environments, evaluators, rewards, workflows } from "../../task/registered.ts";

/** Identity of one evaluated model. */
export interface KeyParts {
  readonly version: string;
  readonly config: Tree;
  /** Folder of the weights; undefined for a new model, whose weights follow from the configuration. */
  readonly folder: string | undefined;
  /** Modules of the user's. */
  readonly imports: readonly string[];
}

/** 128 bits in hex. */
export async function contentKey({ version, config, folder, imports }: KeyParts): Promise<string> {
  const parts = {
    version,
    weights: folder === undefined ? null : await weightsHash(folder, config),
    settings: [...leaves(config)].filter(([path]) => !WITHOUT_EFFECT.test(path)),
    modules: sourcesOf(imports).map((file) => hashOf(readFileSync(file))),
    functions: functionTexts(config),
  };
  return hashOf(stringifyJson(parts)).slice(0, 32);
}

/** Settings that change no attempt of a validation: of training, of logs, and those whose effect is in another part of the key. */
const WITHOUT_EFFECT = new RegExp(
  `^(${[
    "rllm\\.(trainer|algorithm|stepwise_advantage|async_training|rejection_sample|episode_logging|sdk|gateway)\\.",
    "rllm\\.rollout\\.(n|n_val|train\\..*)$",
    "rllm\\.workflow\\.(n_parallel_tasks|retry_limit|raise_on_error|warm_queue_size)$",
    "rllm\\.data\\.(train|val)_batch_size$",
    "rllm\\.(filter_token_mismatch|mask_truncated_samples|compact_filtering\\..*|transform\\..*)$",
    "data\\.(train|val)_(files|batch_size)$",
    "training\\.(?!seed$)",
    "validation\\.group_size$",
    "(warmup|pipeline|distillation)\\.",
    "model\\.name$",
    "memory_budget_bytes$",
  ].join("|")})`,
);

const MODEL_FILES =
  /^((config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|adapter_config)\.json|merges\.txt|tokenizer\.model|chat_template\.jinja|(model|adapter_model).*\.safetensors|.*\.gguf)$/;

/** Returns a hash of a folder's weights; for an adapter's folder with the files of its base. */
async function weightsHash(folder: string, config: Tree): Promise<string> {
  if (statSync(folder).isFile()) return hashOfFile(folder);
  const files = readdirSync(folder)
    .filter((name) => MODEL_FILES.test(name))
    .sort();
  const hashes = await Promise.all(files.map(async (name) => [name, await hashOfFile(join(folder, name))]));
  if ((await folderKind(folder)) !== "adapter") return hashOf(stringifyJson(hashes));
  const base = setting(config, "model.name") ?? (await readAdapterShape(folder)).base;
  const below = base !== undefined && existsSync(base) ? await weightsHash(base, config) : (base ?? null);
  return hashOf(stringifyJson([hashes, below]));
}

async function hashOfFile(path: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const part of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(part as Uint8Array);
  return hash.digest("hex");
}

function hashOf(content: string | Uint8Array): string {
  return createHash("sha256").update(content).digest("hex");
}

/** The modules and the files that they import by a relative path, each once. */
function sourcesOf(imports: readonly string[]): string[] {
  const found = new Set<string>();
  const visit = (path: string) => {
    const file = ["", ".ts", ".js", ".mjs", "/index.ts", "/index.js"].map((end) => path + end).find(isFile);
    if (file === undefined || found.has(file)) return;
    found.add(file);
    for (const [, relative] of readFileSync(file, "utf8").matchAll(RELATIVE_IMPORT))
      visit(resolve(dirname(file), relative!));
  };
  for (const path of imports) visit(resolve(path));
  return [...found];
}

const RELATIVE_IMPORT = /(?:from|import)\s*\(?\s*["'](\.[^"']*)["']/g;

const isFile = (path: string) => statSync(path, { throwIfNoEntry: false })?.isFile() === true;

/** The text of the functions that play and judge, for those that a program registers itself. */
function functionTexts(config: Tree): string[] {
  const environment = environments.get(setting(config, "task.name") ?? "single_turn");
  const named = [
    environment?.reward,
    environment?.rollout,
    environment?.play,
    rewards.get(setting(config, "task.reward") ?? ""),
    evaluators.get(setting(config, "task.evaluator") ?? ""),
    agents.get(setting(config, "rllm.agent.name")),
    workflows.get(setting(config, "rllm.workflow.name"))?.rollout,
  ];
  return named.map((each) => String(each));
}
