/** Rules of reward models: one is named, and the rewards that it would give are not given by something else. */
import type { Finding, Rule } from "./rules.ts";

const PATH = "reward_model.model.path";
const error = (path: string, message: string): Finding => ({ severity: "error", path, message });

export const REWARD_MODEL_RULES: readonly Rule[] = [
  {
    backends: ["local"],
    check(read) {
      const [isUsed, path] = [read("reward_model.enable") === true, read(PATH)];
      if (isUsed && path === null)
        return error(PATH, `Cannot score with a reward model: none is named. Set ${PATH} to its folder.`);
      if (isUsed || path === null) return undefined;
      return error(
        PATH,
        `Cannot use ${PATH}=${path}: reward_model.enable=false. Set reward_model.enable=true, or remove the path.`,
      );
    },
  },
  {
    backends: ["local"],
    check(read) {
      const reward = read("task.reward");
      if (read("reward_model.enable") !== true || reward === null) return undefined;
      return error(
        "task.reward",
        `Cannot use task.reward=${reward} with a reward model: its number would be the reward, and the model would score nothing. Remove one of them; task.evaluator adds metrics to the model's score.`,
      );
    },
  },
];
