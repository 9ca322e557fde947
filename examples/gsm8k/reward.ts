/**
 * A reward for word problems: 1 for the right number, and 0.2 for a reply that ends as the prompt asks, with the answer
 * alone after ####. A model that solves nothing yet learns the format first.
 *
 *     grpu train examples/gsm8k_qwen/run.yaml model.name=DIR --import examples/gsm8k/reward.ts
 */
import { answerOf, type RewardFunction, registerReward } from "grpu";

const ENDING = /####\s*(-?[\d,]*\.?\d+)\s*$/;

/** The number after the last `####`; NaN where there is none. */
function numberOf(text: string): number {
  const [, digits] = ENDING.exec(text) ?? [];
  return digits === undefined ? Number.NaN : Number(digits.replaceAll(",", ""));
}

const numberAndFormat: RewardFunction = (response, task) => {
  const answer = numberOf(response);
  const isFormatted = !Number.isNaN(answer);
  const isRight = isFormatted && answer === numberOf(answerOf(task));
  return {
    reward: (isRight ? 1 : 0) + (isFormatted ? 0.2 : 0),
    is_correct: isRight,
    metrics: { is_formatted: Number(isFormatted) },
  };
};

// Rows whose answer has no such number are an error before the first step.
const needsAnswer = (answer: string) => !Number.isNaN(numberOf(answer));

registerReward("number_and_format", Object.assign(numberAndFormat, { needsAnswer }));
