/** `grpu train`: a whole run, from a configuration to a report. */
import type { Command } from "../command.ts";
import { ALLOW_UNSUPPORTED, DEVICE, IMPORT, PROFILE } from "../options.ts";

export const trainCommand: Command = {
  path: "train",
  summary: "train a model by reinforcement learning",
  args: "[config.yaml] [key=value ...]",
  options: [
    IMPORT,
    DEVICE,
    ALLOW_UNSUPPORTED,
    PROFILE,
    {
      flag: "--from-traces",
      value: "FILE",
      describe: "train on recorded sessions instead of rollouts: a trace database, or what grpu traces export wrote",
    },
    {
      flag: "--latest",
      describe: "each step takes the newest complete groups of the database, which a gateway keeps filling",
    },
    {
      flag: "--dry-run",
      describe: "with rllm/backend=verl: print the job and write its folder instead of submitting it",
    },
    { flag: "--job-folder", value: "DIR", describe: "where --dry-run writes; default: job in the run's folder" },
    {
      flag: "--attach",
      describe: "follow the job of the run in training.default_local_dir, and serve its workers again",
    },
    { flag: "--json", describe: "print the outcome as JSON on standard output" },
  ],
  examples: [
    "grpu train examples/arithmetic/run.yaml",
    "grpu train examples/arithmetic/run.yaml rllm.trainer.total_batches=100 training.seed=1",
    "grpu train examples/stories/run.yaml model.name=./stories260k --import examples/stories/reward.ts",
    "grpu train my.yaml training.resume_mode=auto",
    "grpu train my.yaml --from-traces ~/.rllm/traces.db",
    "grpu train my.yaml rllm/backend=verl ray.address=http://head:8265 --dry-run",
  ],
  notes:
    "Ctrl-C finishes the current step, saves a checkpoint and exits; training.resume_mode=auto continues from it.\n" +
    "`grpu config show` lists every setting, `grpu config explain KEY` says what one does.",
  async run(input, io) {
    const { runTraining } = await import("./train_run.ts");
    return runTraining(input, io);
  },
};
