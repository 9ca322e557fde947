/** Every kind of run that trains into a folder, by the name of its command. */
import type { ComposedRun, OpenedRun, Recipe, RunRequest } from "./recipe.ts";
import { dpoRecipe } from "./recipes/dpo.ts";
import { rewardModelRecipe } from "./recipes/reward_model.ts";
import { sftRecipe } from "./recipes/sft.ts";
import { trainRecipe } from "./recipes/train.ts";
import { type RecipeRunOptions, type RunEnding, runRecipe } from "./run_recipe.ts";

export type RecipeName = "train" | "sft" | "dpo" | "reward-model";

/** Makes a run of one kind, from its settings to what it leaves. */
export type MakeRun = (request: RunRequest, options: RecipeRunOptions) => Promise<RunEnding>;

export const RECIPES: Readonly<Record<RecipeName, MakeRun>> = {
  train: makerOf(trainRecipe),
  sft: makerOf(sftRecipe),
  dpo: makerOf(dpoRecipe),
  "reward-model": makerOf(rewardModelRecipe),
};

function makerOf<C extends ComposedRun, D, O extends OpenedRun>(recipe: Recipe<C, D, O>): MakeRun {
  return async (request, options) => runRecipe(recipe, await recipe.compose(request, options.io), options);
}
