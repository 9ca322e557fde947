/** Built-in rewards that need no library; those of answers/rewards.ts do. */
import { answerOf } from "../data/answer.ts";
import type { Task } from "../data/types.ts";
import { lastNumeral } from "./answers/numerals.ts";
import { registerReward } from "./registered.ts";

/** 1 when the response equals the row's `answer`; ignores surrounding white space. */
export function exactMatch(response: string, task: Task): number {
  return response.trim() === answerOf(task).trim() ? 1 : 0;
}
exactMatch.needsAnswer = true;

/** 1 when the last number in the response equals the number after `####` (or alone) in the row's `answer`. */
export function lastNumber(response: string, task: Task): number {
  const wanted = markedNumber(answerOf(task));
  const got = lastNumeral(response);
  return wanted !== undefined && got === wanted ? 1 : 0;
}
lastNumber.needsAnswer = (answer: string) => markedNumber(answer) !== undefined;

function markedNumber(answer: string): string | undefined {
  return lastNumeral(answer.split("####").at(-1) ?? "");
}

registerReward("exact_match", exactMatch);
registerReward("last_number", lastNumber);
