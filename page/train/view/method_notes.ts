/** What estimators and losses do, in a sentence each. */

const NOTES: Readonly<Record<string, string>> = {
  grpo: "Reward minus the mean of the group, divided by the group's spread.",
  "trl.grpo": "As grpo, with TRL's sample deviation.",
  grpo_passk: "Only the best attempt of a group gains, by its lead over the second.",
  rloo: "Reward minus the mean of the other attempts: unbiased.",
  remax: "Reward minus that of one more attempt, which takes the likeliest tokens.",
  reinforce: "The reward as it is, without a baseline: noisy.",
  reinforce_plus_plus_baseline: "Reward minus the group's mean, scaled over the whole batch.",
  opo: "Reward minus a mean that weights long attempts more.",
  gpg: "Reward minus the group's mean, without a spread; groups that teach count more.",
  ppo: "Importance ratio times advantage, clipped: one update cannot go far.",
  vanilla: "verl's clipped loss with the dual clip for bad attempts.",
  importance_sampling: "Importance ratio times advantage, without a clip.",
  cispo: "The clipped ratio only weights the gradient, so that no token's gradient is lost.",
  gspo: "One ratio for a whole sequence instead of one for each token.",
  geo_mean: "The geometric mean of the token ratios: outliers count less.",
  sapo: "A smooth gate in the place of the hard clip.",
  clip_cov: "Clips the few tokens that would lower the entropy most.",
  kl_cov: "Holds those tokens back by a KL penalty.",
  dppo_tv: "Masks tokens whose probability moved too far.",
  dppo_kl: "Masks tokens whose KL went too far.",
};

export const noteOf = (name: string): string | undefined => NOTES[name];
