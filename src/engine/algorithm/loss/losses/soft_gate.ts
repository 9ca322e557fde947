/** SAPO's gate of a ratio in place of a clip, in both languages; verl and TRL differ in what they bound before it. */

/** Temperatures by the sign of the advantage. */
export interface SoftGateParams {
  readonly tau_pos: number;
  readonly tau_neg: number;
}

/** L = -A (4 / tau) sigmoid(tau (r - 1)), with a tau for each sign of A: value and slope. */
export function softGate(advantage: number, r: number, p: SoftGateParams): { value: number; slope: number } {
  const tau = advantage > 0 ? p.tau_pos : p.tau_neg;
  const gate = 1 / (1 + Math.exp(-tau * (r - 1)));
  return { value: (-advantage * gate * 4) / tau, slope: -advantage * 4 * gate * (1 - gate) * r };
}

/** Value and slope. */
export const SOFT_GATE = /* wgsl */ `
fn soft_gate(advantage: f32, r: f32) -> vec2f {
  let tau = select(params.settings.tau_neg, params.settings.tau_pos, advantage > 0.0);
  let gate = 1.0 / (1.0 + exp(-tau * (r - 1.0)));
  return vec2(-advantage * gate * 4.0 / tau, -advantage * 4.0 * gate * (1.0 - gate) * r);
}`;
