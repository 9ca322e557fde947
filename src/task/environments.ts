/** Environments that come with grpu. Adding one digit to two is small enough for a model of a tenth of a million parameters to learn in minutes. */
import { registerEnvironment } from "./registry.ts";
import { exactMatch } from "./rewards.ts";

registerEnvironment({
  name: "arithmetic",
  describe: "add one digit to two: 37+5= is answered with 42",
  train_files: "config/data/arithmetic_train.jsonl",
  val_files: "config/data/arithmetic_val.jsonl",
  alphabet: "0123456789+=",
  reward: exactMatch,
  // Each row has the answers of three pupils, two of whom count one short: imitating them gets one answer in three right.
  examples: (task) =>
    (task.metadata.worked as string[]).map((response) => ({ prompt: task.instruction, response })),
});

/** One prompt and one response, judged by the reward that `task.reward` names. */
registerEnvironment({
  name: "single_turn",
  describe: "one prompt, one response, judged by task.reward",
  examples: ({ instruction, metadata: { answer } }) =>
    answer === undefined ? [] : [{ prompt: instruction, response: String(answer) }],
});
