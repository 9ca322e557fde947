/** The model card of a folder that has none: what it is, and what the run that trained it measured and was set to. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ConfigError } from "../../errors.ts";
import type { RunData } from "../../log/page/page_data.ts";
import { isRepoName } from "./repo_name.ts";

/** Settings that a reader compares runs by. Others can hold paths and addresses of the machine. */
const SETTINGS = [
  "rllm.algorithm.adv_estimator",
  "rllm.algorithm.loss_fn",
  "rllm.data.train_batch_size",
  "rllm.rollout.n",
  "rllm.trainer.total_batches",
  "training.learning_rate",
  "model.lora_rank",
];
const MOST_METRICS = 12;

/**
 * @param dir the folder that is pushed
 * @param options.name of the repository
 * @param options.run the run that trained it
 */
export function modelCard(dir: string, { name, run }: { name: string; run?: RunData | undefined }): string {
  const isAdapter = existsSync(join(dir, "adapter_config.json"));
  const base = baseOf(dir);
  const header = [
    `library_name: ${isAdapter ? "peft" : "transformers"}`,
    // A local folder's path says nothing to others.
    ...(base !== undefined && isRepoName(base) && !existsSync(base) ? [`base_model: ${base}`] : []),
    "tags:",
    "- grpu",
    "- reinforcement-learning",
  ];
  const metrics = run === undefined ? [] : lastMetrics(run);
  const settings = SETTINGS.flatMap((path) => {
    const value = run?.settings[path];
    return value === undefined ? [] : [[path, value] as const];
  });
  return [
    `---\n${header.join("\n")}\n---`,
    `# ${name}`,
    `${isAdapter ? "A LoRA adapter" : "A language model"}, uploaded with grpu.`,
    ...table("Metrics", metrics),
    ...table("Settings", settings),
  ]
    .join("\n\n")
    .concat("\n");
}

function baseOf(dir: string): string | undefined {
  const file = join(dir, "adapter_config.json");
  if (!existsSync(file)) return undefined;
  try {
    const { base_model_name_or_path: base } = JSON.parse(readFileSync(file, "utf8")) as Record<string, unknown>;
    return typeof base === "string" ? base : undefined;
  } catch {
    throw new ConfigError("Cannot push: adapter_config.json is no JSON object. Export the adapter again.", { file });
  }
}

/** The last value of each validation metric, and the training reward. */
function lastMetrics({ curves }: RunData): (readonly [string, string])[] {
  const all = [...Object.entries(curves.val), ...Object.entries(curves.train).filter(([name]) => name === "reward")];
  return all.slice(0, MOST_METRICS).map(([name, { last }]) => [name, String(Number(last.toPrecision(4)))]);
}

function table(title: string, rows: readonly (readonly [string, string])[]): string[] {
  if (rows.length === 0) return [];
  const lines = rows.map((row) => `| ${row.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`);
  return [`## ${title}`, ["| name | value |", "| --- | --- |", ...lines].join("\n")];
}
