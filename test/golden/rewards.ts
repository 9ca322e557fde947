/** Rewards with many values, so that every group of a golden run gives a gradient. */
import { registerReward } from "grpu";

registerReward("even_digits", (response) => {
  const characters = [...response];
  const good = characters.filter((character) => "02468".includes(character)).length;
  return (good + 0.25 * characters.length) / 5;
});

registerReward("vowels", (response) => [...response].filter((character) => "aeiou".includes(character)).length / 8);
