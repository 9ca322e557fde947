/** The sums of examples/solver_judge with its worked answers, which teach the judge the form of an answer. */
import { registerEnvironment } from "grpu";

registerEnvironment({
  name: "sums_with_judge",
  describe: "add one digit to two; a judge says which of two answers is right",
  train_files: "examples/arithmetic/arithmetic_train.jsonl",
  val_files: "examples/arithmetic/arithmetic_val.jsonl",
  examples({ instruction, metadata }) {
    const worked = (metadata.worked as string[]).map(String);
    const judged = [0, 1].map((choice) => {
      const [a, b] = [0, 1].map((i) => worked[(i + choice) % worked.length]!.trim());
      return { prompt: `${instruction}${a}|${b}?`, response: String(choice + 1) };
    });
    return [...worked.map((response) => ({ prompt: instruction, response })), ...judged];
  },
});
