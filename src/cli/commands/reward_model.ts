/** `grpu reward-model`: a pairwise reward model, from a configuration to a folder. */
import type { Command } from "../command.ts";
import { DEVICE, IMPORT, PROFILE } from "../options.ts";

export const rewardModelCommand: Command = {
  path: "reward-model",
  summary: "train a reward model on pairs of answers (Bradley-Terry)",
  args: "[config.yaml] [key=value ...]",
  options: [IMPORT, DEVICE, PROFILE, { flag: "--json", describe: "print the outcome as JSON on standard output" }],
  examples: [
    "grpu reward-model examples/reward_model/run.yaml",
    "grpu reward-model model.path=./Qwen3-0.6B data.train_files=pairs.jsonl data.val_set_size=0.05 model.lora_rank=16 optim.lr=1e-4",
    "grpu reward-model my.yaml reward_model.center_rewards_coefficient=0.01",
  ],
  notes:
    "`grpu config show --reward-model` lists every setting, config/reward-model.yaml of the package says what each does.\n" +
    "Ctrl-C finishes the current step, saves a checkpoint and exits; the same command continues from it (trainer.resume_mode=auto, the default).",
  async run(input, io) {
    const { recipeCommand } = await import("./recipe_run.ts");
    return recipeCommand("reward-model", { input, io });
  },
};
