/** From a recipe and a person's settings to the parts of a run: the same configuration as `grpu train` composes. */

import { estimatorNames } from "../../../src/engine/algorithm/advantage/estimators.ts";
import { lossNames } from "../../../src/engine/algorithm/loss/losses.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import { composeConfig } from "../../../src/train/config/compose.ts";
import { setting } from "../../../src/train/config/schema.ts";
import { getAt, type Tree } from "../../../src/train/config/yaml/tree.ts";
import { tasksFromJsonl } from "../../../src/train/data/rows.ts";
import type { Task } from "../../../src/train/data/types.ts";
import { checkSettings } from "../../../src/train/loop/check_settings.ts";
import { algorithmOf } from "../../../src/train/loop/roles.ts";
import type { LoopSettings } from "../../../src/train/loop/settings.ts";
import { settingsFromConfig } from "../../../src/train/loop/settings_config.ts";
import { estimateAdvantages } from "../../../src/train/loop/stages/estimate.ts";
import { readEvaluator, rolloutSettings } from "../../../src/train/run/task/task_settings.ts";
import { type ChosenRollout, chooseRollout } from "../../../src/train/task/choose.ts";
import { environments, evaluators, rewards } from "../../../src/train/task/registered.ts";
import type { Environment, Evaluate, Example, Rollout } from "../../../src/train/task/rollout.ts";
import type { RunRequest } from "../protocol.ts";
import { recipeNamed } from "../recipes.ts";
import { type Given, PAGE_SETTINGS } from "../settings.ts";

/** Text of a file of the package by its path there; undefined for a file that is not there. */
export type ReadPackaged = (path: string) => string | undefined;

export interface Composed {
  readonly config: Tree;
  readonly settings: LoopSettings;
}

/** @throws {ConfigError} that names the setting to correct */
export function composeRecipe({ recipe, given }: RunRequest, read: ReadPackaged): Composed {
  const { config } = composeConfig({
    files: [recipeNamed(recipe)!.file],
    overrides: Object.entries(given).map(([path, value]) => `${path}=${value}`),
    readFile: read,
    readConfig: (name) => read(`config/${name}`),
    registered: {
      "task.name": environments.names(),
      "task.reward": rewards.names(),
      "task.evaluator": evaluators.names(),
      "rllm.algorithm.adv_estimator": [...estimatorNames()],
      "rllm.algorithm.loss_fn": [...lossNames()],
    },
  });
  const settings = settingsFromConfig(config);
  checkSettings(settings, estimateAdvantages);
  return { config, settings };
}

/** The values of the page's settings, as text. */
export function valuesOf({ config, settings }: Composed): Given {
  const { loss } = algorithmOf("", settings.algorithm);
  const values = PAGE_SETTINGS.map(({ path }) => [path, String(getAt(config, path) ?? "")] as const);
  return { ...Object.fromEntries(values), "rllm.algorithm.loss_fn": loss };
}

export interface TaskParts {
  readonly environment: Environment;
  readonly tasks: { readonly train: readonly Task[]; readonly val: readonly Task[] };
  readonly rollout: Rollout;
  readonly evaluate: Evaluate | undefined;
  readonly examples: readonly Example[];
}

/** The task of a composed recipe. @throws {ConfigError} where its data are not in the page */
export function openTask(config: Tree, read: ReadPackaged): TaskParts {
  const environment = environments.find(setting(config, "task.name") ?? "single_turn");
  const chosen = chooseRollout(rolloutSettings(config, { environment, judges: undefined }));
  const of = { config, read, judges: chosen.judges };
  const train = readTasks(setting(config, "data.train_files") ?? environment.train_files, of);
  const val = readTasks(setting(config, "data.val_files") ?? environment.val_files, of);
  return {
    environment,
    tasks: { train, val },
    rollout: chosen.rollout,
    evaluate: readEvaluator(config, undefined),
    examples: train.flatMap(chosen.examples),
  };
}

function readTasks(
  files: string | readonly string[] | undefined,
  { config, read, judges }: { config: Tree; read: ReadPackaged } & Pick<ChosenRollout, "judges">,
): Task[] {
  return [files ?? []].flat().flatMap((file) => {
    const text = read(file);
    if (text === undefined)
      throw new ConfigError("Cannot read the tasks: the page does not hold this file. Build it again.", { file });
    const answerKey = setting(config, "data.answer_key") ?? undefined;
    return tasksFromJsonl(text, { file, promptType: setting(config, "data.prompt_type"), answerKey, judges });
  });
}
