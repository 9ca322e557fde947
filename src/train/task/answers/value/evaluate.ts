/** The value of an expression at a point: exact where it is rational, else with 40 digits. */
import { TRIGONOMETRIC } from "../latex/names.ts";
import type { LatexNode } from "../latex/nodes.ts";
import * as approximate from "./approximate.ts";
import { NoValue, type WorkBudget } from "./budget.ts";
import * as exact from "./exact.ts";

export type ExactOrApproximate = exact.Exact | approximate.Approximate;

export interface EvaluationContext {
  /** Returns the values of the variables. */
  readonly at: (name: string) => exact.Exact;
  readonly budget: WorkBudget;
  /**
   * Whether it is in the argument of a trigonometric function, where a degree is pi / 180; elsewhere its sign changes
   * nothing, as a unit.
   */
  readonly inAngle?: boolean;
}

const CONSTANTS: ReadonlyMap<string, approximate.Approximate> = new Map([
  ["pi", approximate.PI],
  ["e", approximate.E],
  ["i", approximate.I],
]);

export function isExact(value: ExactOrApproximate): value is exact.Exact {
  return "n" in value;
}

export function wide(value: ExactOrApproximate): approximate.Approximate {
  return isExact(value) ? approximate.fromExact(value) : value;
}

/** @throws {NoValue} for what has no value, or one that takes too much work */
export function evaluateNode(node: LatexNode, place: EvaluationContext): ExactOrApproximate {
  place.budget.spend(10);
  if (node.kind === "number") return exact.ratio(node.digits, 10n ** BigInt(node.decimals));
  if (node.kind === "symbol") return CONSTANTS.get(node.name) ?? place.at(node.name);
  if (node.kind === "text") return place.at(node.text);
  if (node.kind !== "call") throw new NoValue();
  const inner = TRIGONOMETRIC.has(node.name) ? { ...place, inAngle: true } : place;
  const rule = RULES[node.name];
  if (rule)
    return rule(
      node.of.map((each) => evaluateNode(each, inner)),
      place,
    );
  const apply = approximate.APPROXIMATE_FUNCTIONS[node.name];
  if (!apply) throw new NoValue();
  approximate.chargeFunction(place.budget);
  return apply(wide(evaluateNode(node.of[0]!, inner)));
}

type Rule = (of: readonly ExactOrApproximate[], place: EvaluationContext) => ExactOrApproximate;

function both(
  exactly: (a: exact.Exact, b: exact.Exact, budget: WorkBudget) => exact.Exact,
  nearly: (a: approximate.Approximate, b: approximate.Approximate) => approximate.Approximate,
): Rule {
  return ([a, b], { budget }) => {
    if (isExact(a!) && isExact(b!)) return exactly(a, b, budget);
    budget.spend(20);
    return nearly(wide(a!), wide(b!));
  };
}

const multiply = both(exact.multiplyExact, approximate.multiply);
const divide = both(exact.divideExact, approximate.divide);

const RULES: Readonly<Record<string, Rule>> = {
  add: both(exact.addExact, approximate.add),
  multiply,
  divide,
  negate: ([a]) => (isExact(a!) ? { n: -a.n, d: a.d } : approximate.negate(a!)),
  power: ([a, b], place) => power(a!, b!, place),
  sqrt: ([a], place) => root(a!, place),
  root: ([a, b], place) => nthRoot(a!, b!, place),
  factorial: ([a], { budget }) => exact.factorial(exactly(a!), budget),
  binomial: ([a, b], { budget }) => exact.binomial(exactly(a!), exactly(b!), budget),
  percent: ([a], place) => divide([a!, { n: 100n, d: 1n }], place),
  degree: ([a], place) =>
    place.inAngle ? divide([multiply([a!, approximate.PI], place), { n: 180n, d: 1n }], place) : a!,
  abs: ([a]) => (isExact(a!) ? { n: a.n < 0n ? -a.n : a.n, d: a.d } : approximate.APPROXIMATE_FUNCTIONS.abs!(a!)),
  floor: ([a]) => (isExact(a!) ? exact.floorExact(a) : approximate.APPROXIMATE_FUNCTIONS.floor!(a!)),
  ceil: ([a]) => (isExact(a!) ? negated(exact.floorExact(negated(a))) : approximate.APPROXIMATE_FUNCTIONS.ceil!(a!)),
};

function negated({ n, d }: exact.Exact): exact.Exact {
  return { n: -n, d };
}

function exactly(value: ExactOrApproximate): exact.Exact {
  if (!isExact(value)) throw new NoValue();
  return value;
}

/** Integer powers of ratios are exact; of others by squares. Else the principal value, exp(b ln a). */
function power(base: ExactOrApproximate, exponent: ExactOrApproximate, place: EvaluationContext): ExactOrApproximate {
  const { budget } = place;
  if (isExact(exponent) && exact.isInteger(exponent)) {
    if (isExact(base)) return exact.powerExact(base, exponent.n, budget);
    return bySquares(base, exponent.n, place);
  }
  if (isExact(exponent) && exponent.d === 2n) return power(root(base, place), { n: exponent.n, d: 1n }, place);
  if (isExact(base) && base.n === 0n) return base;
  if (isExact(exponent) && isNegative(base)) {
    const { n, d } = exact.reduced(exponent, budget);
    // The real root of an odd degree.
    if (d % 2n === 1n) return signed(power(RULES.negate!([base], place), { n, d }, place), n % 2n !== 0n);
  }
  approximate.chargeFunction(budget);
  approximate.chargeFunction(budget);
  return approximate.exp(approximate.multiply(wide(exponent), approximate.ln(wide(base))));
}

function bySquares(base: approximate.Approximate, exponent: bigint, { budget }: EvaluationContext): ExactOrApproximate {
  let left = exponent < 0n ? -exponent : exponent;
  if (left > 1n << 40n) throw new NoValue();
  let result = approximate.fromExact({ n: 1n, d: 1n });
  for (let square = base; left > 0n; left >>= 1n) {
    budget.spend(20);
    if (left & 1n) result = approximate.multiply(result, square);
    if (left > 1n) square = approximate.multiply(square, square);
  }
  return exponent < 0n ? approximate.divide(approximate.fromExact({ n: 1n, d: 1n }), result) : result;
}

function root(value: ExactOrApproximate, { budget }: EvaluationContext): ExactOrApproximate {
  const found = isExact(value) ? exact.squareRoot(value, budget) : undefined;
  if (found) return found;
  approximate.chargeFunction(budget);
  return approximate.sqrt(wide(value));
}

function nthRoot(value: ExactOrApproximate, degree: ExactOrApproximate, place: EvaluationContext): ExactOrApproximate {
  return power(value, divide([{ n: 1n, d: 1n }, degree], place), place);
}

function isNegative(value: ExactOrApproximate): boolean {
  return isExact(value) ? value.n < 0n : approximate.isReal(value) && value.re.isNeg();
}

function signed(value: ExactOrApproximate, isFlipped: boolean): ExactOrApproximate {
  if (!isFlipped) return value;
  return isExact(value) ? negated(value) : approximate.negate(value);
}
