/** `grpu eval`: scores models on a task's held-out data, one or several side by side. */
import type { ModelNames } from "../../train/run/evaluation/named_models.ts";
import type { Command, Input, Io } from "../command.ts";
import { ALLOW_UNSUPPORTED, DEVICE, deviceOverride, IMPORT, importsOf } from "../options.ts";

export const evalCommand: Command = {
  path: "eval",
  summary: "score models on a task's held-out data, one or several side by side",
  args: "[config.yaml] [key=value ...]",
  options: [
    {
      flag: "--model",
      value: "DIR",
      describe: "a run (its latest step), a checkpoint, an adapter or a model; default: the model as configured",
      repeat: true,
    },
    { flag: "--checkpoint", value: "DIR", describe: "the same as --model", repeat: true },
    { flag: "--run", value: "RUN", describe: "every checkpoint of a run", repeat: true },
    { flag: "--n", value: "N", describe: "attempts at each task" },
    { flag: "--k", value: "K", describe: "a size of pass@K and maj@K; default 1, 2, 4, ... and N", repeat: true },
    { flag: "--page", value: "FILE", describe: "write an HTML page with the scores and every attempt" },
    {
      flag: "--cache",
      value: "DIR",
      describe: "keep the attempts there, and make none twice",
      default: "checkpoints/evaluations",
    },
    { flag: "--no-cache", describe: "make every attempt, and keep none" },
    IMPORT,
    DEVICE,
    ALLOW_UNSUPPORTED,
    { flag: "--json", describe: "print the scores as one JSON object" },
  ],
  examples: [
    "grpu eval examples/arithmetic/run.yaml --model checkpoints/grpu/arithmetic",
    "grpu eval examples/arithmetic/run.yaml --run checkpoints/grpu/arithmetic --n 8 --page scores.html",
    "grpu eval run.yaml --model BASE --model checkpoints/grpu/run --n 16 --k 1 --k 8 rllm.rollout.val.temperature=0.6 --json",
  ],
  notes:
    "Of several models, each is compared with the first, task by task; * marks a difference whose 95% interval does not contain 0.\n" +
    "Ctrl-C prints the scores of the finished attempts, marked as partial (status 130). The same command then continues.",
  run: evaluate,
};

function namesOf({ options }: Input): ModelNames {
  const listOption = (key: string) => (options[key] as string[] | undefined) ?? [];
  return { models: [...listOption("checkpoint"), ...listOption("model")], runs: listOption("run") };
}

async function evaluate(input: Input, io: Io): Promise<void> {
  const { evalRecipe } = await import("../../train/run/recipes/eval.ts");
  const { setting } = await import("../../train/config/schema.ts");
  const { evaluateModels } = await import("../../train/run/evaluate_models.ts");
  const { namedModels } = await import("../../train/run/evaluation/named_models.ts");
  const { printScores } = await import("../evaluation/print_scores.ts");
  const { sizesOf } = await import("../evaluation/sizes.ts");
  const { equalities } = await import("../../train/task/registered.ts");
  const { options } = input;
  const attempts = options.n === undefined ? [] : [`rllm.rollout.n_val=${options.n}`];
  const request = {
    args: input.args,
    imports: importsOf(input),
    overrides: [...deviceOverride(input), ...attempts],
    allowUnsupported: options.allowUnsupported === true,
  };
  const data = await evalRecipe.read(await evalRecipe.compose(request, io));
  const { session, settings } = data;
  const sizes = sizesOf(options.k as readonly string[] | undefined, settings.rollout.n_val);
  const models = await namedModels(namesOf(input), { io, configured: setting(session.config, "model.name") });
  const cache = options.cache === false ? undefined : String(options.cache);
  const page = options.page === undefined ? undefined : String(options.page);
  const done = await evaluateModels(models, { io, data, cache });
  // An environment's own reward has no name: its answers are equal where their texts are.
  const equal = equalities.get(setting(session.config, "task.reward") ?? "") ?? ((a: string, b: string) => a === b);
  const total = session.tasks.val.length;
  printScores(done, { io, sizes, equal, settings, total, isJson: options.json === true, page });
  io.signal.throwIfAborted();
}
