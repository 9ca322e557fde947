/** Built-in environments, small enough for a model of 100,000 parameters to learn in minutes. */

import { readMessages } from "../../chat/messages.ts";
import type { ChatMessage } from "../../engine/contract/text.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { randomStream, seedOf } from "../../leaves/random.ts";
import { answerOf, maybeAnswerOf } from "../data/answer.ts";
import type { Task } from "../data/types.ts";
import { registerEnvironment } from "./registered.ts";
import { exactMatch } from "./rewards.ts";
import { type Example, type Game, promptOf } from "./rollout.ts";

registerEnvironment({
  name: "arithmetic",
  describe: "add one digit to two: 37+5= is answered with 42",
  train_files: "examples/arithmetic/arithmetic_train.jsonl",
  val_files: "examples/arithmetic/arithmetic_val.jsonl",
  alphabet: "0123456789+=",
  args: [],
  reward: exactMatch,
  // Each row has three worked answers, two of which are one too low: imitation gets one answer in three right. A user's
  // rows may have only an answer.
  examples: (task) =>
    Array.isArray(task.metadata.worked)
      ? task.metadata.worked.map((response) => ({ prompt: promptOf(task), response: String(response) }))
      : workedAnswer(task),
});

/** One prompt and one response; `task.reward` judges it. */
registerEnvironment({
  name: "single_turn",
  describe: "one prompt, one response, judged by task.reward",
  examples: workedAnswer,
});

/** The conversation of a row that has one, else its prompt and its answer. */
function workedAnswer(task: Task): Example[] {
  const { conversation, tools } = task.metadata;
  if (conversation !== undefined)
    return [{ messages: messagesOf(task, conversation), tools: Array.isArray(tools) ? tools : undefined }];
  const answer = maybeAnswerOf(task);
  return answer === undefined ? [] : [{ prompt: promptOf(task), response: answer }];
}

function messagesOf(task: Task, conversation: unknown): ChatMessage[] {
  try {
    return readMessages(conversation);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    throw new ConfigError(`Cannot use the conversation of the task ${task.id}: ${error.message}`, { kind: "data" });
  }
}

const HEX_DIGITS = "0123456789abcdef";

registerEnvironment({
  name: "guess_digit",
  describe: "find a hidden hexadecimal digit: each guess is answered with < or >",
  train_files: "examples/multi_turn/guess_digit.jsonl",
  val_files: "examples/multi_turn/guess_digit.jsonl",
  alphabet: `${HEX_DIGITS}?<>=`,
  args: [],
  needsAnswer: isDigit,
  play: (task) => guessDigit(answerOf(task)),
  // Worked games: one in four uses the observations, the others guess at random.
  examples: (task) => Array.from({ length: 32 }, (_, i) => workedGuess(task, i)),
});

function isDigit(answer: string): boolean {
  return answer.length === 1 && HEX_DIGITS.includes(answer);
}

/** `<` means that the digit is below the guess. Reward 1 for the right guess, 0 for any other. */
function guessDigit(hidden: string): Game {
  return {
    reset: () => "?",
    step(action) {
      const isRight = action === hidden;
      return { observation: isRight ? "=" : compare(hidden, action), reward: Number(isRight), done: isRight };
    },
  };
}

/** `?` for a guess that is not a digit. */
function compare(hidden: string, guess: string): string {
  const at = guess.length === 1 ? HEX_DIGITS.indexOf(guess) : -1;
  if (at < 0) return "?";
  return HEX_DIGITS.indexOf(hidden) < at ? "<" : ">";
}

function workedGuess(task: Task, index: number): Example {
  const hidden = HEX_DIGITS.indexOf(answerOf(task));
  const random = randomStream(seedOf(hidden, index));
  const heeds = index % 4 === 0;
  let [low, high] = [0, HEX_DIGITS.length - 1];
  const guess = () => low + Math.floor(random() * (high - low + 1));
  const messages = [{ role: "user", content: "?" }];
  for (let turn = Math.floor(random() * 4); turn > 0; turn--) {
    const at = guess();
    if (at === hidden) break;
    if (heeds && at < hidden) low = at + 1;
    if (heeds && at > hidden) high = at - 1;
    const observation = at < hidden ? ">" : "<";
    messages.push({ role: "assistant", content: HEX_DIGITS[at]! }, { role: "user", content: observation });
  }
  return { prompt: messages, response: HEX_DIGITS[guess()]! };
}
