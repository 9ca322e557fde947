/** PPO's max(-A r, -A clip(r, low, high)) of one token, in both languages; losses that clip a ratio share it. */
import { clamp } from "../token.ts";

/** verl bounds the log-ratio of a token to [-20, 20]; no gradient passes beyond. */
export const MAX_LOG_RATIO = 20;

export const bounded = (d: number) => clamp(d, -MAX_LOG_RATIO, MAX_LOG_RATIO);

/** The two sides, and whether the gradient passes. */
export function clippedRatio(
  advantage: number,
  r: number,
  { low, high }: { readonly low: number; readonly high: number },
) {
  const plain = -advantage * r;
  const clipped = -advantage * clamp(r, low, high);
  return { plain, clipped, passes: plain > clipped || (r >= low && r <= high) };
}

export const CLIPPED_RATIO = /* wgsl */ `
struct Sides { plain: f32, clipped: f32, passes: bool }

fn clipped_ratio(advantage: f32, r: f32) -> Sides {
  let s = params.settings;
  let plain = -advantage * r;
  let clipped = -advantage * clamp(r, s.low, s.high);
  return Sides(plain, clipped, plain > clipped || (r >= s.low && r <= s.high));
}`;
