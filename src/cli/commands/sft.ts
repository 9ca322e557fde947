/** `grpu sft`: supervised fine-tuning, from a configuration to a report. */
import type { Command } from "../command.ts";
import { DEVICE, IMPORT, PROFILE } from "../options.ts";

export const sftCommand: Command = {
  path: "sft",
  summary: "fine-tune a model on conversations, prompts with responses, or texts",
  args: "[config.yaml] [key=value ...]",
  options: [IMPORT, DEVICE, PROFILE, { flag: "--json", describe: "print the outcome as JSON on standard output" }],
  examples: [
    "grpu sft examples/sft/run.yaml",
    "grpu sft model.path=./Qwen3-0.6B data.train_files=chats.jsonl data.val_set_size=0.05 model.lora_rank=16 optim.lr=1e-4",
    "grpu sft my.yaml trainer.total_training_steps=100 trainer.test_freq=20 trainer.resume_mode=auto",
  ],
  notes:
    "`grpu config show --sft` lists every setting, config/sft.yaml of the package says what each does.\n" +
    "Ctrl-C finishes the current step, saves a checkpoint and exits; the same command continues from it (trainer.resume_mode=auto, the default).",
  async run(input, io) {
    const { recipeCommand } = await import("./recipe_run.ts");
    return recipeCommand("sft", { input, io });
  },
};
