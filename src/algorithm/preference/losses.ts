/**
 * Preference losses under TRL's names. c and r are the scores of the chosen and the rejected row, d = c - r, b = beta,
 * e = label_smoothing, s the logistic function.
 * @see TRL DPOTrainer, KTOTrainer, ORPOTrainer, CPOTrainer
 */
import { createRegistry } from "../../registry.ts";
import type { PairLoss, PairSettings, PreferenceLoss, PreferenceSettings } from "./definition.ts";

type Formula = PreferenceLoss["pair"];

/** log(1 + e^x) without overflow. */
export function softplus(x: number): number {
  return Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
}

export function logSigmoid(x: number): number {
  return -softplus(-x);
}

export function logistic(x: number): number {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}

/** A loss of the difference of the scores, with its slope in it. */
function ofDifference(link: (d: number, s: PairSettings) => readonly [value: number, slope: number]): Formula {
  return (chosen, rejected, settings): PairLoss => {
    const [value, slope] = link(chosen - rejected, settings);
    return { value, chosen: slope, rejected: -slope };
  };
}

/** -(1-e) log s(z) - e log s(-z), z = b d - gamma. */
const sigmoid = ofDifference((d, { beta, gamma, smoothing: e }) => {
  const z = beta * d - gamma;
  const slope = e * logistic(z) - (1 - e) * logistic(-z);
  return [(1 - e) * softplus(-z) + e * softplus(z), beta * slope];
});

/** (-(1-e) log s(b d) + e log s(-b d)) / (1 - 2e). */
const robust = ofDifference((d, { beta, smoothing: e }) => {
  const z = beta * d;
  const slope = -e * logistic(z) - (1 - e) * logistic(-z);
  return [((1 - e) * softplus(-z) - e * softplus(z)) / (1 - 2 * e), (beta * slope) / (1 - 2 * e)];
});

/** max(0, 1 - b d). */
const hinge = ofDifference((d, { beta }) => {
  const missing = 1 - beta * d;
  return missing > 0 ? [missing, -beta] : [0, 0];
});

/** (d - 1/(2b))^2. */
const ipo = ofDifference((d, { beta }) => {
  const off = d - 1 / (2 * beta);
  return [off * off, 2 * off];
});

/** log(1 - e^x) for x < 0; the branch avoids cancellation. */
function log1mexp(x: number): number {
  return x < -Math.LN2 ? Math.log1p(-Math.exp(x)) : Math.log(-Math.expm1(x));
}

/**
 * -b log s(o), where o = (c - log(1 - e^c)) - (r - log(1 - e^r)) is the log of the odds ratio. The slope in c is
 * -b s(-o) / (1 - e^c) = -b s(o) e^(r - c) / (1 - e^r): the second form has a value where the chosen answer is certain.
 */
const orpo: Formula = (chosen, rejected, { beta }) => {
  const odds = chosen - rejected - (log1mexp(chosen) - log1mexp(rejected));
  const against = beta * logistic(-odds);
  const ahead = (beta * logistic(odds) * Math.exp(rejected - chosen)) / -Math.expm1(rejected);
  return {
    value: beta * softplus(-odds),
    chosen: odds > 0 ? -ahead : against / Math.expm1(chosen),
    rejected: against / -Math.expm1(rejected),
  };
};

/** Half of the distance of float32 from 1 to the number below it. */
const LEAST_DOUBT = 2 ** -25;

/** The log of the odds ratio of two mean log-probs, for metrics: a certain answer counts as 1 - 2^-25. */
export function logOddsRatio(chosen: number, rejected: number): number {
  const logOdds = (logprob: number) => logprob - log1mexp(Math.min(logprob, -LEAST_DOUBT));
  return logOdds(chosen) - logOdds(rejected);
}

/** w (1 - s(b (x - kl))) for a desirable row, w (1 - s(b (kl - x))) for another one. */
const kto: Formula = (score, desirable, { beta, kl, ...weights }) => {
  const sign = desirable === 1 ? 1 : -1;
  const weight = desirable === 1 ? weights.desirable : weights.undesirable;
  const z = sign * beta * (score - kl);
  return { value: weight * logistic(-z), chosen: -sign * weight * beta * logistic(z) * logistic(-z), rejected: 0 };
};

const plain = (s: PreferenceSettings) => ({ beta: s.beta! });
const smoothed = (s: PreferenceSettings) => ({ beta: s.beta!, smoothing: s.label_smoothing! });
const rpo = ({ rpo_alpha }: PreferenceSettings) => rpo_alpha!;
const onRatios = { unit: "pair", hasReference: true, isMean: false, nllWeight: rpo } as const;

const LOSSES: Readonly<Record<string, Omit<PreferenceLoss, "name">>> = {
  sigmoid: {
    ...onRatios,
    settings: { beta: 0.1, label_smoothing: 0, rpo_alpha: 0 },
    code: 0,
    plan: smoothed,
    pair: sigmoid,
  },
  robust: {
    ...onRatios,
    settings: { beta: 0.1, label_smoothing: 0, rpo_alpha: 0 },
    code: 1,
    plan: smoothed,
    pair: robust,
  },
  hinge: { ...onRatios, settings: { beta: 0.1, rpo_alpha: 0 }, code: 2, plan: plain, pair: hinge },
  ipo: { ...onRatios, isMean: true, settings: { beta: 0.1, rpo_alpha: 0 }, code: 3, plan: plain, pair: ipo },
  simpo: {
    unit: "pair",
    hasReference: false,
    isMean: true,
    settings: { beta: 0.1, simpo_gamma: 0.5, label_smoothing: 0, cpo_alpha: 0 },
    code: 0,
    nllWeight: ({ cpo_alpha }) => cpo_alpha!,
    plan: (s) => ({ ...smoothed(s), gamma: s.simpo_gamma! }),
    pair: sigmoid,
  },
  orpo: {
    unit: "pair",
    hasReference: false,
    isMean: true,
    settings: { beta: 0.1 },
    code: 4,
    nllWeight: () => 1,
    plan: plain,
    pair: orpo,
  },
  kto: {
    unit: "row",
    hasReference: true,
    isMean: false,
    settings: { beta: 0.1, desirable_weight: 1, undesirable_weight: 1 },
    code: 5,
    nllWeight: () => 0,
    plan: (s) => ({ beta: s.beta!, desirable: s.desirable_weight!, undesirable: s.undesirable_weight! }),
    pair: kto,
  },
};

const registry = createRegistry<PreferenceLoss>("preference loss", {
  setting: "loss_type",
  builtIn: Object.entries(LOSSES).map(([name, loss]) => [name, { name, ...loss }]),
  isUnique: true,
});

/** The preference losses' names, TRL's `loss_type`. */
export function preferenceLossNames(): readonly string[] {
  return registry.names();
}

/**
 * The preference loss of that name.
 * @throws {ConfigError} for a name that there is not
 */
export function findPreferenceLoss(name: string): PreferenceLoss {
  return registry.find(name);
}
