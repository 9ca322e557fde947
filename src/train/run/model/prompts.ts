/** Prompts that are too long for the model or the settings, reported before anything starts. */

import type { Backend } from "../../../engine/contract/backend.ts";
import { setting } from "../../config/schema.ts";
import { countOverlong } from "../../loop/rollout/prompt_lengths.ts";
import type { RunIo } from "../io.ts";
import type { RunSession } from "../session.ts";

/**
 * Says how many prompts are too long. An agent may shorten its task, so only plain prompts are counted.
 * @throws {ConfigError} when all prompts of a split are.
 */
export function checkPrompts(
  { config, tasks, asksPrompt }: RunSession,
  context: { backend: Backend; io: RunIo },
): void {
  const { tokenizer, model } = context.backend;
  if (!asksPrompt || !tokenizer) return;
  const longest = setting(config, "rllm.data.max_prompt_length");
  for (const split of ["train", "val"] as const) {
    const limits = { tokenizer, longest, contextLength: model.contextLength, split };
    const count = countOverlong(tasks[split], limits);
    if (count === 0) continue;
    const [what, effect] = split === "train" ? ["training", "train nothing"] : ["held-out", "count as wrong"];
    context.io.err(
      `warning: ${count} of ${tasks[split].length} ${what} prompts are longer than rllm.data.max_prompt_length=${longest} or the model's context: they ${effect}\n`,
    );
  }
}
