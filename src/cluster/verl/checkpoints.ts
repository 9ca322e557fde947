/** Checkpoints of verl: where they lie, how a run continues from one, and how one becomes a model folder. */
import { ConfigError } from "../../leaves/errors.ts";
import { quoteWord } from "../ray/shell_word.ts";

/** Files of a checkpoint folder, as verl lays them. */
export const LATEST_FILE = "latest_checkpointed_iteration.txt";

/** The folder of a step: it holds `actor/`, `critic/` where one is trained, and `data.pt`. */
export function stepFolder(root: string, step: number): string {
  return `${root.replace(/\/+$/, "")}/global_step_${step}`;
}

/** The step of a checkpoint folder; undefined for another folder. */
export function verlCheckpointStep(folder: string): number | undefined {
  const step = /(?:^|\/)global_step_(\d+)\/?$/.exec(folder)?.[1];
  return step === undefined ? undefined : Number(step);
}

/** Overrides with which the same command continues: from the newest checkpoint of its folder, or from one of them. */
export function resumeOverrides(from: "newest" | { readonly folder: string }): string[] {
  if (from === "newest") return ["trainer.resume_mode=auto"];
  return ["trainer.resume_mode=resume_path", `trainer.resume_from_path=${from.folder}`];
}

export interface MergeOptions {
  /** Folder of a step. */
  readonly folder: string;
  readonly target: string;
  /** `actor_rollout_ref.actor.strategy`. */
  readonly strategy: string;
}

const MERGED_AS: Readonly<Record<string, string>> = { fsdp: "fsdp", fsdp2: "fsdp", megatron: "megatron" };

/**
 * The shell command that joins the shards of a step's actor to a Hugging Face folder; it runs where verl is installed.
 *
 * @throws {ConfigError} for a training engine whose shards verl's merger does not read.
 */
export function mergeCommand({ folder, target, strategy }: MergeOptions): string {
  const backend = MERGED_AS[strategy];
  if (backend === undefined) {
    throw new ConfigError(
      `Cannot merge a checkpoint of ${strategy}: verl's model_merger reads ${Object.keys(MERGED_AS).join(", ")}. Train with hf_model in actor_rollout_ref.actor.checkpoint.save_contents.`,
    );
  }
  const words = [
    ...["python3", "-m", "verl.model_merger", "merge", "--backend", backend],
    ...["--local_dir", `${folder}/actor`, "--target_dir", target],
  ];
  return words.map(quoteWord).join(" ");
}
