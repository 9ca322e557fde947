/** Prompts that are too long for a rollout, found before the run starts. */
import { encodeText } from "../../../chat/seams.ts";
import { Transcript } from "../../../chat/transcript.ts";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import type { Task } from "../../data/types.ts";
import { promptOf } from "../../task/rollout.ts";

/** The most tokens that a tokenizer adds to a text (`<s>`, for example). */
const ADDED = 8;

export interface PromptLimits {
  readonly tokenizer: Tokenizer;
  /** `data.max_prompt_length`. */
  readonly longest: number;
  /** Context length of the model; a prompt must leave room for one token. */
  readonly contextLength: number;
}

/**
 * Counts the prompts that are too long.
 * @throws {ConfigError} when all are; the first error of the chat template when it fails for every prompt
 */
export function countOverlong(
  tasks: readonly Task[],
  { split, ...limits }: PromptLimits & { readonly split: "train" | "val" },
): number {
  const limit = Math.min(limits.longest, limits.contextLength - 1);
  const checked = tasks.map((task) => isLonger(task, limit, limits.tokenizer));
  // A single prompt's error stays for its rollout, which names the task.
  if (checked.length > 0 && checked.every((each) => each instanceof Error)) throw checked[0];
  const overlong = checked.filter((each) => each === true).length;
  if (overlong === 0 || overlong < tasks.length) return overlong;
  const name = limit < limits.longest ? "the model's context" : "rllm.data.max_prompt_length";
  throw new ConfigError(
    `Cannot use the ${split} prompts: all ${tasks.length} are longer than ${name} (${limit} tokens). ` +
      "Raise rllm.data.max_prompt_length, or shorten the prompts.",
    { path: "rllm.data.max_prompt_length" },
  );
}

/** An error where the conversation cannot be formatted. */
function isLonger(task: Task, limit: number, tokenizer: Tokenizer): boolean | Error {
  const prompt = promptOf(task);
  // A token holds at least one byte, and a UTF-16 unit at most 3 bytes.
  if (typeof prompt === "string" && prompt.length * 3 + ADDED <= limit) return false;
  try {
    const ids =
      typeof prompt === "string" ? encodeText(tokenizer, prompt) : new Transcript({ tokenizer }).prompt(prompt).ids;
    return ids.length > limit;
  } catch (error) {
    // The rollout of a text throws the same error, with the task's name.
    return typeof prompt === "string" ? false : (error as Error);
  }
}
