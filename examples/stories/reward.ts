/**
 * A reward of your own: stories that mention an animal and end with a whole sentence.
 *
 *     grpu train examples/stories/run.yaml model.name=DIR --import examples/stories/reward.ts
 */
import { type RewardFunction, registerReward } from "grpu";

const ANIMALS = ["dog", "cat", "bird", "bear", "fish", "frog", "duck", "bunny"];

const story: RewardFunction = (response) => {
  const words = new Set(response.toLowerCase().match(/[a-z]+/g));
  const hasAnimal = ANIMALS.some((animal) => words.has(animal) || words.has(`${animal}s`));
  const endsWell = /[.!?]["']?\s*$/.test(response);
  return {
    reward: (hasAnimal ? 0.75 : 0) + (endsWell ? 0.25 : 0),
    is_correct: hasAnimal && endsWell,
    metrics: { has_animal: Number(hasAnimal), ends_well: Number(endsWell) },
  };
};

registerReward("story", story);
