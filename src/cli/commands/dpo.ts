/** `grpu dpo`: preference training, from a configuration to a report. */
import type { Command } from "../command.ts";
import { DEVICE, IMPORT, PROFILE } from "../options.ts";

export const dpoCommand: Command = {
  path: "dpo",
  summary: "train a model on preferences: DPO, IPO, SimPO, ORPO, KTO",
  args: "[config.yaml] [key=value ...]",
  options: [IMPORT, DEVICE, PROFILE, { flag: "--json", describe: "print the outcome as JSON on standard output" }],
  examples: [
    "grpu dpo examples/dpo/run.yaml",
    "grpu dpo model.path=./Qwen3-0.6B data.train_files=pairs.jsonl data.val_set_size=0.05 model.lora_rank=16 optim.lr=1e-5",
    "grpu dpo my.yaml dpo.loss_type=simpo dpo.beta=2 dpo.simpo_gamma=1",
  ],
  notes:
    "`grpu config show --dpo` lists every setting, config/dpo.yaml of the package says what each does.\n" +
    "Ctrl-C finishes the current step, saves a checkpoint and exits; the same command continues from it (trainer.resume_mode=auto, the default).",
  async run(input, io) {
    const { recipeCommand } = await import("./recipe_run.ts");
    return recipeCommand("dpo", { input, io });
  },
};
