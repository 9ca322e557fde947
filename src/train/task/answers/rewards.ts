/** Rewards that read an answer. They load libraries, and so they are apart from what a page bundles. */
import { answerOf } from "../../data/answer.ts";
import type { Task } from "../../data/types.ts";
import { registerReward } from "../registered.ts";
import type { Evaluation } from "../rollout.ts";
import { answersEqual } from "./equal.ts";
import { gsm8kNumber, mathAnswer } from "./extract.ts";
import { jsonSchema } from "./json_schema.ts";

/** 1 when the number right after the response's last `####`, else its last number, equals that of the row's `answer`. */
export function gsm8k(response: string, task: Task): Evaluation {
  const wanted = gsm8kNumber(answerOf(task));
  const got = gsm8kNumber(response);
  return { reward: wanted !== undefined && got === wanted ? 1 : 0, ...(got !== undefined && { answer: got }) };
}
gsm8k.needsAnswer = (answer: string) => gsm8kNumber(answer) !== undefined;

/**
 * 1 when the response's last boxed answer (else the one it states) equals that of the row: as sets, tuples, intervals and
 * relations, or by value.
 */
export function math(response: string, task: Task): Evaluation {
  const wanted = goldAnswer(answerOf(task));
  const got = mathAnswer(response);
  if (got === undefined) return { reward: 0 };
  return { reward: answersEqual(got, wanted) ? 1 : 0, answer: got };
}
math.needsAnswer = (answer: string) => goldAnswer(answer).length <= LONGEST_ANSWER;

/** A solution without a final answer is not one itself: no reply is equal to a text of that length. */
const LONGEST_ANSWER = 400;

function goldAnswer(text: string): string {
  return mathAnswer(text) ?? text;
}

registerReward("gsm8k", gsm8k);
registerReward("math", math, { equal: answersEqual });
registerReward("json_schema", jsonSchema);
