/** The model card of a folder that has none: what it is, and what the run that trained it measured and was set to. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ConfigError } from "../../leaves/errors.ts";
import type { RunData } from "../../train/log/page/page_data.ts";
import { isRepoName } from "./repo_name.ts";

/** A command's kind of training, and how a reader compares its runs. */
interface Kind {
  /** How a setting starts that the runs of no later kind have. */
  readonly mark: string;
  readonly tags: readonly string[];
  readonly what: string;
  /** Settings to show. Others can hold paths and addresses of the machine. */
  readonly settings: readonly string[];
}

const ROW_SETTINGS = ["data.train_batch_size", "optim.lr", "trainer.total_epochs", "trainer.total_training_steps"];

const KINDS: readonly Kind[] = [
  {
    mark: "rllm.",
    tags: ["reinforcement-learning"],
    what: "language model trained by reinforcement learning",
    settings: [
      ...["rllm.algorithm.adv_estimator", "rllm.algorithm.loss_fn", "rllm.data.train_batch_size", "rllm.rollout.n"],
      ...["rllm.trainer.total_batches", "training.learning_rate"],
    ],
  },
  {
    mark: "dpo.",
    tags: ["dpo"],
    what: "language model trained on preferences",
    settings: ["dpo.loss_type", "dpo.beta", ...ROW_SETTINGS],
  },
  {
    mark: "reward_model.",
    tags: ["reward-model"],
    what: "reward model",
    settings: ["reward_model.center_rewards_coefficient", ...ROW_SETTINGS],
  },
  { mark: "data.messages_key", tags: ["sft"], what: "language model fine-tuned on examples", settings: ROW_SETTINGS },
];
/** A folder that no run of this program is known to have trained. */
const UNKNOWN: Omit<Kind, "mark"> = { tags: [], what: "language model", settings: [] };
const MOST_METRICS = 12;

/**
 * @param dir the folder that is pushed
 * @param options.name of the repository
 * @param options.run the run that trained it
 */
export function modelCard(dir: string, { name, run }: { name: string; run?: RunData | undefined }): string {
  const isAdapter = existsSync(join(dir, "adapter_config.json"));
  const base = baseOf(dir);
  const { tags, what, settings: shown } = kindOf(run);
  const header = [
    `library_name: ${isAdapter ? "peft" : "transformers"}`,
    // A local folder's path says nothing to others.
    ...(base !== undefined && isRepoName(base) && !existsSync(base) ? [`base_model: ${base}`] : []),
    "tags:",
    "- grpu",
    ...tags.map((tag) => `- ${tag}`),
  ];
  const metrics = run === undefined ? [] : lastMetrics(run);
  const settings = [...shown, "model.lora_rank"].flatMap((path) => {
    const value = run?.settings[path];
    return value === undefined ? [] : [[path, value] as const];
  });
  return [
    `---\n${header.join("\n")}\n---`,
    `# ${name}`,
    `A ${what}${isAdapter ? ", as a LoRA adapter" : ""}, uploaded with grpu.`,
    ...table("Metrics", metrics),
    ...table("Settings", settings),
  ]
    .join("\n\n")
    .concat("\n");
}

/** The first kind whose settings a run has. */
function kindOf(run: RunData | undefined): Omit<Kind, "mark"> {
  const paths = Object.keys(run?.settings ?? {});
  return KINDS.find(({ mark }) => paths.some((path) => path.startsWith(mark))) ?? UNKNOWN;
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
  const entries = [
    ...Object.entries(curves.val),
    ...Object.entries(curves.train).filter(([name]) => name === "reward"),
  ];
  return entries.slice(0, MOST_METRICS).map(([name, { last }]) => [name, String(Number(last.toPrecision(4)))]);
}

function table(title: string, rows: readonly (readonly [string, string])[]): string[] {
  if (rows.length === 0) return [];
  const lines = rows.map((row) => `| ${row.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`);
  return [`## ${title}`, ["| name | value |", "| --- | --- |", ...lines].join("\n")];
}
