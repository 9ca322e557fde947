/**
 * Score centering: REINFORCE on tokens of another policy, without an importance ratio. The expected score of the sampler's tokens is
 * subtracted, so that a constant advantage moves nothing in expectation, however far the trained policy is from the sampler.
 *
 * With p the trained policy, q the sampler, H the most likely tokens that the sampler recorded, and a the token that it drew:
 *
 *     rho = q(tail) / max(p(tail), 1e-6)         q(tail) = 1 - sum over H of q, p(tail) likewise
 *     C = sum over v in H of stop_gradient(q(v) - rho p(v)) log p(v)
 *     loss = -A (log p(a) - C) + kl_coeff KL(q || p over H and the tail)
 *
 * The gradient of C is the sampler's expected score, where the tail of q has the shape of p's. The penalty is ours: its gradient
 * is minus that of C.
 *
 * @see "Score Centering Stabilizes Off-policy Reinforcement Learning", arXiv 2609.20807, equation 14
 */

/** Mass that the trained policy's tail counts as at least. */
const LEAST_TAIL = 1e-6;

/** A token that a sampler drew. */
export interface CenteredToken {
  /** log p(a). */
  readonly logprob: number;
  /** A. */
  readonly advantage: number;
  readonly klCoeff: number;
  /** log q of the sampler's tokens, [K]. */
  readonly sampler: ArrayLike<number>;
  /** log p of the same tokens, [K]. */
  readonly policy: ArrayLike<number>;
}

/**
 * The loss of one token, in float64.
 * @param slopes takes d(loss)/d(log p) of the sampler's tokens, [K]. That of log p(a) is -A, in addition.
 * @returns the loss; not finite where p excludes a token that q has.
 */
export function scoreCentering(token: CenteredToken, slopes: Float64Array): number {
  const { logprob, advantage, klCoeff, sampler, policy } = token;
  const tail = Math.max(0, 1 - mass(sampler));
  const policyTail = 1 - mass(policy);
  const rho = tail / Math.max(policyTail, LEAST_TAIL);
  let [centre, divergence] = [0, tail === 0 ? 0 : tail * (Math.log(tail) - logTail(policyTail))];
  for (let v = 0; v < sampler.length; v++) {
    const q = Math.exp(sampler[v]!);
    const excess = q - rho * Math.exp(policy[v]!);
    if (excess !== 0) centre += excess * policy[v]!;
    if (q > 0) divergence += q * (sampler[v]! - policy[v]!);
    slopes[v] = (advantage - klCoeff) * excess;
  }
  return -advantage * (logprob - centre) + klCoeff * divergence;
}

function mass(logprobs: ArrayLike<number>): number {
  let sum = 0;
  for (let v = 0; v < logprobs.length; v++) sum += Math.exp(logprobs[v]!);
  return sum;
}

/** log(p), below the least mass continued by its tangent, so that its slope is 1 / max(p, least) everywhere. */
function logTail(p: number): number {
  if (p >= LEAST_TAIL) return Math.log(p);
  return Math.log(LEAST_TAIL) + (p - LEAST_TAIL) / LEAST_TAIL;
}
