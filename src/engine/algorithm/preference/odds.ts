/** The odds of an answer of a given log-prob, p / (1 - p). */

/** log(1 - e^x) for x < 0; the branch avoids cancellation. */
export function log1mexp(x: number): number {
  return x < -Math.LN2 ? Math.log1p(-Math.exp(x)) : Math.log(-Math.expm1(x));
}

/** Half of the distance of float32 from 1 to the number below it. */
const LEAST_DOUBT = 2 ** -25;

/** The log of the odds ratio of two mean log-probs, for metrics: a certain answer counts as 1 - 2^-25. */
export function logOddsRatio(chosen: number, rejected: number): number {
  const logOdds = (logprob: number) => logprob - log1mexp(Math.min(logprob, -LEAST_DOUBT));
  return logOdds(chosen) - logOdds(rejected);
}
