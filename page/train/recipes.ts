/** The tasks that the page trains: recipes of examples/, with the same settings and data as `grpu train` has. */

export type RecipeName = "digits" | "sums" | "turns" | "stories";

export interface Recipe {
  readonly name: RecipeName;
  readonly title: string;
  /** What the model has to learn, for people. */
  readonly goal: string;
  /** How it is learned. */
  readonly how: string;
  /** The recipe's file, within the package. */
  readonly file: string;
  /** Trains a model that a person gives, not a new one. */
  readonly needsModel: boolean;
}

export const RECIPES: readonly Recipe[] = [
  {
    name: "digits",
    title: "Digits",
    goal: "Add two digits: 3+5= is answered with 8.",
    how: "The quickest task: about a minute without a GPU. As in Sums, two of the three pupils that the warm-up imitates count one short.",
    file: "examples/digits/run.yaml",
    needsModel: false,
  },
  {
    name: "sums",
    title: "Sums",
    goal: "Add one digit to two: 37+5= is answered with 42.",
    how: "The warm-up imitates three pupils, two of whom always count one short. After it, only right answers are rewarded, and the model learns which pupil to follow.",
    file: "examples/arithmetic/run.yaml",
    needsModel: false,
  },
  {
    name: "turns",
    title: "A game of turns",
    goal: "Find a hidden hexadecimal digit in four guesses. Each guess is answered with <\u00a0or\u00a0>.",
    how: "In one of four warm-up games the guesses follow the hints, in the others they are random. After it, only winning is rewarded, and the model learns to search.",
    file: "examples/multi_turn/run.yaml",
    needsModel: false,
  },
  {
    name: "stories",
    title: "Stories",
    goal: "Tell a story with an animal in it that ends with a whole sentence.",
    how: "Your own pretrained model trains a LoRA adapter: drop its folder here. Nothing leaves this tab.",
    file: "examples/stories/run.yaml",
    needsModel: true,
  },
];

/** @returns nothing for an unknown name */
export function recipeNamed(name: string): Recipe | undefined {
  return RECIPES.find((recipe) => recipe.name === name);
}
