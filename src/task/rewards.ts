/** Built-in rewards. */
import type { Task } from "../data/types.ts";
import { answersEqual } from "./answers/equal.ts";
import { gsm8kNumber, mathAnswer, numbersIn } from "./answers/extract.ts";
import { jsonSchema } from "./answers/json_schema.ts";
import { normalizeAnswer } from "./answers/normalize.ts";
import { registerReward } from "./registered.ts";
import type { Evaluation } from "./rollout.ts";

/** 1 when the response equals the row's `answer`; ignores surrounding white space. */
export function exactMatch(response: string, task: Task): number {
  return response.trim() === String(task.metadata.answer).trim() ? 1 : 0;
}

/** 1 when the last number in the response equals the number after `####` (or alone) in the row's `answer`. */
export function lastNumber(response: string, task: Task): number {
  const wanted = numbersIn(String(task.metadata.answer).split("####").at(-1) ?? "").at(-1);
  const got = numbersIn(response).at(-1);
  return wanted !== undefined && got === wanted ? 1 : 0;
}

/** 1 when the number after the response's last `####`, else its last number, equals that of the row's `answer`. */
export function gsm8k(response: string, task: Task): Evaluation {
  const wanted = gsm8kNumber(String(task.metadata.answer));
  const got = gsm8kNumber(response);
  return { reward: wanted !== undefined && got === wanted ? 1 : 0, ...(got !== undefined && { answer: String(got) }) };
}

/**
 * 1 when the response's last boxed answer (else the one it states) equals that of the row's `answer` or `solution`: as normalised
 * LaTeX, as sets, tuples and intervals, or by value.
 */
export async function math(response: string, task: Task): Promise<Evaluation> {
  const { answer, solution } = task.metadata;
  const wanted = mathAnswer(String(answer ?? solution ?? "")) ?? String(answer ?? "");
  const got = mathAnswer(response);
  if (got === undefined) return { reward: 0 };
  return { reward: (await answersEqual(got, wanted)) ? 1 : 0, answer: normalizeAnswer(got) };
}

registerReward("exact_match", exactMatch);
registerReward("last_number", lastNumber);
registerReward("gsm8k", gsm8k);
registerReward("math", math);
registerReward("json_schema", jsonSchema);
