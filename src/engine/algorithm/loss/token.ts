/** Input and result of a loss for one trained token. */

/** Settings of a loss under their published names, or the params of its form. */
export type LossSettings = Readonly<Record<string, number>>;

/** One trained token as a loss sees it. */
export interface Token {
  readonly logprob: number;
  /** logprob - oldLogprob. */
  readonly d: number;
  readonly advantage: number;
  /** The loss's row statistic of the token's row; with a selection, a = 1 where the token is selected. */
  readonly a: number;
  readonly b: number;
}

/** A token's loss before aggregation, its slope in the log-prob, and three numbers averaged over trained tokens. */
export interface TokenLoss {
  readonly value: number;
  readonly slope: number;
  readonly metrics: readonly [number, number, number];
}

/** A loss as a function of one trained token, in float64. `p` holds a value for each param of the loss's form. */
export type TokenFunction<P extends LossSettings = LossSettings> = (t: Token, p: P) => TokenLoss;

/** 1 where the condition holds: what a fraction is the mean of. */
export function indicator(condition: boolean): number {
  return condition ? 1 : 0;
}

export function clamp(x: number, low: number, high: number): number {
  return Math.max(Math.min(x, high), low);
}
