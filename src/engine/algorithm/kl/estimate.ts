/** KL divergence to a reference policy, estimated token by token from log-probs. */
import { ConfigError } from "../../../leaves/errors.ts";

const MAX_LOG_RATIO = 20;
/** verl clips the k3 estimate here; beyond it the token gets no gradient. */
export const K3_BOUND = 10;

/** A token's KL estimate and its slope in the log-prob. */
export interface KlEstimate {
  readonly value: number;
  /** Derivative in the current log-prob. */
  readonly slope: number;
}

/** One way to estimate it, in both languages. */
interface KlForm {
  /** Published names. */
  readonly names: readonly string[];
  readonly estimate: (x: number, bound: number) => KlEstimate;
  /** The WGSL expression of (value, slope) in `x` and `bound`. It may call what shaders/loss/parts/kl.wgsl has. */
  readonly wgsl: string;
}

/** Every estimate. A code is a place in this list, from 1. */
const FORMS: readonly KlForm[] = [
  { names: ["kl", "k1"], estimate: (x) => ({ value: x, slope: 1 }), wgsl: "vec2(x, 1.0)" },
  { names: ["abs"], estimate: (x) => ({ value: Math.abs(x), slope: Math.sign(x) }), wgsl: "vec2(abs(x), sign(x))" },
  { names: ["mse", "k2"], estimate: (x) => ({ value: 0.5 * x * x, slope: x }), wgsl: "vec2(0.5 * x * x, x)" },
  { names: ["low_var_kl", "k3"], estimate: k3, wgsl: "k3_estimate(x, bound)" },
];
/** Takes the slope of k2 with the value of the estimate; added to a form's code for a `+`. */
const STRAIGHT_THROUGH = FORMS.length;

/** `kl`, `k1`, `abs`, `mse`, `k2`, `low_var_kl`, `k3`. */
export const KL_BASE_NAMES: readonly string[] = FORMS.flatMap(({ names }) => names);
/** Published names: the base names, and each with a `+`. */
export const KL_NAMES: readonly string[] = KL_BASE_NAMES.flatMap((name) => [name, `${name}+`]);

/**
 * The number by which kernels know a KL estimate.
 * @throws {ConfigError} for a name that is not published
 */
export function klCode(name: string): number {
  const base = name.endsWith("+") ? name.slice(0, -1) : name;
  const code = FORMS.findIndex(({ names }) => names.includes(base)) + 1;
  if (code > 0) return base === name ? code : code + STRAIGHT_THROUGH;
  throw new ConfigError(
    `Cannot estimate the KL divergence: there is no estimator ${JSON.stringify(name)}. Use ${KL_NAMES.join(", ")}.`,
    { path: "kl_loss_type" },
  );
}

/**
 * One token's KL estimate and its slope: k1 = x, abs = |x|, k2 = x^2 / 2, k3 = e^-x - 1 + x.
 * @param x logprob - refLogprob; k3 bounds it to [-20, 20] and has no gradient beyond
 * @param bound where k3 is cut off: {@link K3_BOUND} in verl, Infinity in TRL
 * @see http://joschu.net/blog/kl-approx.html, verl core_algos.kl_penalty
 */
export function klEstimate(code: number, x: number, bound: number = K3_BOUND): KlEstimate {
  const isStraight = code > STRAIGHT_THROUGH;
  const form = FORMS[code - 1 - (isStraight ? STRAIGHT_THROUGH : 0)];
  if (!form) throw new RangeError(`There is no KL estimate with the code ${code}.`);
  const base = form.estimate(x, bound);
  return isStraight ? { value: base.value, slope: x } : base;
}

/** `kl_estimate` of shaders that include loss/parts/kl.wgsl: the estimate whose code is the constant `KL`. */
export function klEstimateWgsl(): string {
  const cases = FORMS.map(({ wgsl }, k) => `    case ${k + 1}u, ${k + 1 + STRAIGHT_THROUGH}u: { term = ${wgsl}; }\n`);
  return `//#file kl_estimate
fn kl_estimate(x: f32, bound: f32) -> vec2f {
  var term = vec2f();
  switch KL {
${cases.join("")}    default: {}
  }
  if (KL > ${STRAIGHT_THROUGH}u) { term.y = x; }
  return term;
}
`;
}

function k3(x: number, bound: number): KlEstimate {
  const k = Math.min(Math.max(-x, -MAX_LOG_RATIO), MAX_LOG_RATIO);
  const v = Math.expm1(k) - k;
  return {
    value: Math.min(v, bound),
    slope: v <= bound && Math.abs(x) <= MAX_LOG_RATIO ? -Math.expm1(k) : 0,
  };
}
