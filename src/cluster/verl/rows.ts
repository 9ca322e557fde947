/** Tasks as rows of verl's data sets, which Trinity-RFT's tasksets read as well. What a reward or an agent knows of a task stays here: a row carries its number. */

import type { ChatMessage } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { stringifyJson } from "../../leaves/json.ts";
import type { Task } from "../../train/data/types.ts";

export interface VerlRowOptions {
  readonly split: "train" | "val";
  /** The trainer that reads them, for messages. Default: verl. */
  readonly system?: string;
  /** The agent loop that makes the rollouts; absent: verl samples one reply to the prompt. */
  readonly agentName?: string | undefined;
}

/** One row. Every row has these fields and no others, because the reader of JSON lines infers one type for all. */
interface VerlRow {
  readonly data_source: string;
  readonly prompt: readonly { readonly role: string; readonly content: string }[];
  readonly ability: string;
  readonly reward_model: { readonly style: "rule"; readonly ground_truth: string };
  readonly extra_info: { readonly split: string; readonly index: number; readonly grpu_task: number };
  readonly agent_name?: string | undefined;
}

/**
 * JSON lines, one a task, in order; `extra_info.grpu_task` is the task's place in `tasks`. A prompt that is plain text
 * becomes one user message.
 *
 * @throws {ConfigError} for a task without a prompt, or with one that verl's rows cannot hold, naming it
 */
export function verlRows(tasks: readonly Task[], options: VerlRowOptions): string {
  if (tasks.length === 0)
    throw new ConfigError(
      `Cannot send the ${options.split} tasks to ${options.system ?? "verl"}: there are none. Add some.`,
    );
  return tasks.map((task, index) => `${stringifyJson(rowOf(task, { ...options, index }))}\n`).join("");
}

function rowOf(task: Task, { split, agentName, index, system = "verl" }: VerlRowOptions & { index: number }): VerlRow {
  const { data_source, ability } = task.metadata;
  const row: VerlRow = {
    data_source: typeof data_source === "string" && data_source !== "" ? data_source : "grpu",
    prompt: promptOf(task, { split, agentName, index, system }),
    ability: typeof ability === "string" ? ability : "",
    reward_model: { style: "rule", ground_truth: "" },
    extra_info: { split, index, grpu_task: index },
    agent_name: agentName,
  };
  if (/\p{Surrogate}/u.test(row.data_source + row.ability + row.prompt.map(({ content }) => content).join("\n")))
    throw refusal(task, {
      split,
      index,
      system,
      why: "its text holds half of a surrogate pair, which is not Unicode. Remove it",
    });
  return row;
}

function promptOf(task: Task, at: VerlRowOptions & { index: number }): VerlRow["prompt"] {
  const messages: readonly ChatMessage[] = task.messages ?? [{ role: "user", content: task.instruction }];
  if (messages.every(({ content }) => content === ""))
    throw refusal(task, { ...at, why: "it has no prompt. Give it an instruction or messages" });
  return messages.map(({ role, content, ...others }) => {
    const further = Object.keys(others).find((name) => others[name] !== undefined && others[name] !== null);
    // An agent has the whole task: the row's prompt is not what the model sees.
    if (further === undefined || at.agentName !== undefined) return { role, content };
    const why = `a message has ${further}, and rows of ${at.system ?? "verl"} hold role and content alone. Make the rollouts with an agent`;
    throw refusal(task, { ...at, why });
  });
}

function refusal(
  { id }: Task,
  { split, index, system = "verl", why }: VerlRowOptions & { index: number; why: string },
): ConfigError {
  return new ConfigError(`Cannot send ${split} task ${index} (${id}) to ${system}: ${why}.`);
}
