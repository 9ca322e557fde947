/** The clipped objective of Tinker and TRL on any log-ratio, in both languages. */
import { clamp, indicator, type Token, type TokenLoss } from "../token.ts";

/** Bounds of the ratio; `delta` bounds it from above before the clip, for negative advantages too. */
export interface SurrogateParams {
  readonly low: number;
  readonly high: number;
  readonly delta: number;
}

/** No bound `delta`. */
export const NO_DELTA = 3.0e38;

/** L = -min(min(r, delta) A, clip(r, low, high) A) with r = e^logRatio. Metrics: clipped below, -d, clipped above. */
export function surrogate(t: Token, logRatio: number, p: SurrogateParams): TokenLoss {
  const raw = Math.exp(logRatio);
  const r = Math.min(raw, p.delta);
  const plain = -t.advantage * r;
  const clipped = -t.advantage * clamp(raw, p.low, p.high);
  const passes = plain > clipped ? raw <= p.delta : raw >= p.low && raw <= p.high;
  return {
    value: Math.max(plain, clipped),
    slope: passes ? -t.advantage * raw : 0,
    metrics: [indicator(r < p.low && t.advantage < 0), -t.d, indicator(r > p.high && t.advantage > 0)],
  };
}

/** The params that the WGSL reads. */
export const SURROGATE_PARAMS = ["low", "high", "delta"] as const;

export const SURROGATE = /* wgsl */ `
fn surrogate(t: Token, log_ratio: f32) -> TokenLoss {
  let s = params.settings;
  let raw = exp(log_ratio);
  let r = min(raw, s.delta);
  let plain = -t.advantage * r;
  let clipped = -t.advantage * clamp(raw, s.low, s.high);
  let inside = raw >= s.low && raw <= s.high;
  let flows = select(inside, raw <= s.delta, plain > clipped);
  return TokenLoss(
    max(plain, clipped),
    select(0.0, -t.advantage * raw, flows),
    vec3(count(r < s.low && t.advantage < 0.0), -t.d, count(r > s.high && t.advantage > 0.0)),
  );
}`;
