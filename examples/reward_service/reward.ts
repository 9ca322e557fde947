/** Full marks for the sum, a part of them for one that is close. */
import { answerOf, type RewardFunction, registerReward } from "grpu";

const close: RewardFunction = (response, task) => {
  const given = Number(response.trim());
  if (response.trim() === "" || !Number.isFinite(given)) return 0;
  const off = Math.abs(given - Number(answerOf(task)));
  return { reward: 1 / (1 + off), is_correct: off === 0, metrics: { off: Math.min(off, 1000) } };
};

// Rows whose answer is no number are an error before the first step.
const needsAnswer = (answer: string) => Number.isFinite(Number(answer));

registerReward("close", Object.assign(close, { needsAnswer }));
