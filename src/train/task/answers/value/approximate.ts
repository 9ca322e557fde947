/** Complex numbers of 40 digits, each with a bound of its error. */
import { Decimal as Base } from "decimal.js";
import { NoValue, type WorkBudget } from "./budget.ts";
import type { Exact } from "./exact.ts";

export const Decimal = Base.clone({ precision: 40, toExpNeg: -30, toExpPos: 30 });

type Real = InstanceType<typeof Decimal>;

/** Relative, of one operation: the last digits are left to rounding. */
const EPSILON = new Decimal("1e-34");

/** Largest argument, because functions take long beyond it. */
const LARGEST_ARGUMENT = 1e6;

export const ZERO = new Decimal(0);
const SMALL = 1n << 50n;

export interface Approximate {
  readonly re: Real;
  readonly im: Real;
  /** Both parts are wrong by less. */
  readonly error: Real;
}

export const PI = real(Decimal.acos(-1));
export const E = real(Decimal.exp(1));
export const I: Approximate = { re: ZERO, im: new Decimal(1), error: ZERO };

function real(re: Real, error: Real = ZERO): Approximate {
  return { re, im: ZERO, error: error.plus(re.abs().times(EPSILON)) };
}

export function fromExact({ n, d }: Exact): Approximate {
  if (d === 1n && n >= -SMALL && n <= SMALL) return { re: new Decimal(Number(n)), im: ZERO, error: ZERO };
  return real(new Decimal(`${n}`).div(`${d}`));
}

export function isReal({ im, error }: Approximate): boolean {
  return im.abs().lte(error);
}

function size({ re, im }: Approximate): Real {
  return im.isZero() ? re.abs() : Decimal.hypot(re, im);
}

/** @throws {NoValue} for a value that is not finite */
function complex(re: Real, im: Real, error: Real): Approximate {
  const value = { re, im, error: error.plus(re.abs().plus(im.abs()).times(EPSILON)) };
  if (!re.isFinite() || !im.isFinite() || !value.error.isFinite()) throw new NoValue();
  return value;
}

export function isZero(value: Approximate): boolean {
  return size(value).lte(value.error);
}

/** Equal as far as their errors tell: relative to the larger one, or to what cancelled. */
export function near(a: Approximate, b: Approximate): boolean {
  const error = a.error.plus(b.error);
  return a.re.minus(b.re).abs().lte(error) && a.im.minus(b.im).abs().lte(error);
}

export function add(a: Approximate, b: Approximate): Approximate {
  return complex(a.re.plus(b.re), a.im.plus(b.im), a.error.plus(b.error));
}

export function negate({ re, im, error }: Approximate): Approximate {
  return { re: re.neg(), im: im.neg(), error };
}

export function multiply(a: Approximate, b: Approximate): Approximate {
  const error = size(a).times(b.error).plus(size(b).times(a.error)).plus(a.error.times(b.error));
  const [re, im] = [a.re.times(b.re).minus(a.im.times(b.im)), a.re.times(b.im).plus(a.im.times(b.re))];
  // The parts may cancel: their error is that of the whole.
  return complex(re, im, error.plus(size(a).times(size(b)).times(EPSILON)));
}

/** @throws {NoValue} for a division by zero */
export function divide(a: Approximate, b: Approximate): Approximate {
  if (isZero(b)) throw new NoValue();
  const square = b.re.times(b.re).plus(b.im.times(b.im));
  const inverse = { re: b.re.div(square), im: b.im.neg().div(square), error: b.error.div(square).times(2) };
  return multiply(a, complex(inverse.re, inverse.im, inverse.error));
}

/** Applies a function where the absolute value of its derivative is at most `slope`. */
function applied(a: Approximate, value: Real, slope: Real): Approximate {
  return complex(value, ZERO, a.error.times(slope));
}

function realPart(a: Approximate): Real {
  if (!isReal(a)) throw new NoValue();
  return a.re;
}

function bounded(a: Approximate): Real {
  const value = realPart(a);
  if (value.abs().gt(LARGEST_ARGUMENT)) throw new NoValue();
  return value;
}

type Function1 = (a: Approximate) => Approximate;

const ONE = new Decimal(1);

function ratioOf(a: Function1, b: Function1): Function1 {
  return (x) => divide(a(x), b(x));
}

const sin: Function1 = (a) => applied(a, bounded(a).sin(), ONE);
const cos: Function1 = (a) => applied(a, bounded(a).cos(), ONE);
const constantOne: Function1 = () => real(ONE);

/** The principal value, by half angles. */
export function sqrt(a: Approximate): Approximate {
  const length = size(a);
  if (length.lte(a.error)) return { re: ZERO, im: ZERO, error: length.plus(a.error).sqrt() };
  const error = a.error.div(length.sqrt());
  if (isReal(a)) return a.re.isNeg() ? complex(ZERO, a.re.neg().sqrt(), error) : complex(a.re.sqrt(), ZERO, error);
  const re = length.plus(a.re).div(2).sqrt();
  const im = length.minus(a.re).div(2).sqrt();
  return complex(re, a.im.isNeg() ? im.neg() : im, error.times(2));
}

export function exp(a: Approximate): Approximate {
  if (a.re.abs().gt(LARGEST_ARGUMENT) || a.im.abs().gt(LARGEST_ARGUMENT)) throw new NoValue();
  const length = a.re.exp();
  if (isReal(a)) return complex(length, ZERO, a.error.times(length));
  return complex(length.times(a.im.cos()), length.times(a.im.sin()), a.error.plus(EPSILON).times(length));
}

export function ln(a: Approximate): Approximate {
  if (isZero(a)) throw new NoValue();
  const length = size(a);
  const angle = isReal(a) && !a.re.isNeg() ? ZERO : isReal(a) ? PI.re : Decimal.atan2(a.im, a.re);
  return complex(length.ln(), angle, a.error.div(length));
}

/** Functions of real numbers where there is no other note. */
export const APPROXIMATE_FUNCTIONS: Readonly<Record<string, Function1>> = {
  sqrt,
  exp,
  ln,
  sin,
  cos,
  tan: ratioOf(sin, cos),
  cot: ratioOf(cos, sin),
  sec: ratioOf(constantOne, cos),
  csc: ratioOf(constantOne, sin),
  asin: (a) => applied(a, arc(a).asin(), slopeOfArc(a)),
  acos: (a) => applied(a, arc(a).acos(), slopeOfArc(a)),
  atan: (a) => applied(a, bounded(a).atan(), ONE),
  sinh: (a) => half(add(exp(a), negate(exp(negate(a))))),
  cosh: (a) => half(add(exp(a), exp(negate(a)))),
  tanh: ratioOf(
    (a) => add(exp(a), negate(exp(negate(a)))),
    (a) => add(exp(a), exp(negate(a))),
  ),
  abs: (a) => complex(size(a), ZERO, a.error),
  floor: (a) => real(settled(a).floor()),
  ceil: (a) => real(settled(a).ceil()),
};

function half({ re, im, error }: Approximate): Approximate {
  return { re: re.div(2), im: im.div(2), error };
}

function arc(a: Approximate): Real {
  const value = realPart(a);
  if (value.abs().gt(1)) throw new NoValue();
  return value;
}

/** 1 / sqrt(1 - x^2); near the ends the error itself bounds the change. */
function slopeOfArc(a: Approximate): Real {
  const rest = ONE.minus(a.re.times(a.re));
  return rest.lte(a.error.times(4))
    ? a.error.isZero()
      ? ONE
      : a.error.sqrt().pow(-1).times(4)
    : rest.sqrt().pow(-1).times(2);
}

/** A number whose floor its error leaves open is the integer that it is near. */
function settled(a: Approximate): Real {
  const value = realPart(a);
  const nearest = value.round();
  return value.minus(nearest).abs().lte(a.error) ? nearest : value;
}

/** Units of work: decimals with 40 digits take about 0.01 ms to multiply and 1 ms for a function. */
export function chargeFunction(budget: WorkBudget): void {
  budget.spend(1000);
}
