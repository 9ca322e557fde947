/** The logistic function and its logarithms, without overflow. */

/** log(1 + e^x). */
export function softplus(x: number): number {
  return Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
}

/** log(1 / (1 + e^-x)). */
export function logSigmoid(x: number): number {
  return -softplus(-x);
}

/** 1 / (1 + e^-x). */
export function logistic(x: number): number {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}
