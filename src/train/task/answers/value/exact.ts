/**
 * Ratios of big integers. They are not reduced: greatest common divisors cost more than the larger products, and ratios are compared
 * across. A ratio that is an integer has the denominator 1.
 */
import { bitsOf, NoValue, type WorkBudget } from "./budget.ts";

export interface Exact {
  readonly n: bigint;
  /** Above 0. */
  readonly d: bigint;
}

const MOST_FACTORS = 10_000n;

export function ratio(n: bigint, d: bigint): Exact {
  if (d === 0n) throw new NoValue();
  const [top, bottom] = d < 0n ? [-n, -d] : [n, d];
  return bottom !== 1n && top % bottom === 0n ? { n: top / bottom, d: 1n } : { n: top, d: bottom };
}

/** Reduces to lowest terms: for small ones, exponents. */
export function reduced({ n, d }: Exact, budget: WorkBudget): Exact {
  if (bitsOf(d) > 128) throw new NoValue();
  let [a, b] = [n < 0n ? -n : n, d];
  for (; b !== 0n; [a, b] = [b, a % b]) budget.spend(1);
  return { n: n / a, d: d / a };
}

export function isInteger({ d }: Exact): boolean {
  return d === 1n;
}

function times(a: bigint, b: bigint, budget: WorkBudget): bigint {
  budget.multiply(bitsOf(a), bitsOf(b));
  return a * b;
}

export function addExact(a: Exact, b: Exact, budget: WorkBudget): Exact {
  return ratio(times(a.n, b.d, budget) + times(b.n, a.d, budget), times(a.d, b.d, budget));
}

export function multiplyExact(a: Exact, b: Exact, budget: WorkBudget): Exact {
  return ratio(times(a.n, b.n, budget), times(a.d, b.d, budget));
}

export function divideExact(a: Exact, b: Exact, budget: WorkBudget): Exact {
  return ratio(times(a.n, b.d, budget), times(a.d, b.n, budget));
}

export function equalExact(a: Exact, b: Exact, budget: WorkBudget): boolean {
  return times(a.n, b.d, budget) === times(b.n, a.d, budget);
}

export function powerExact(base: Exact, exponent: bigint, budget: WorkBudget): Exact {
  const size = exponent < 0n ? -exponent : exponent;
  const bits = Number(size) * Math.max(bitsOf(base.n), bitsOf(base.d));
  if (base.n === 0n && exponent <= 0n) throw new NoValue();
  const isUnit = base.d === 1n && base.n * base.n <= 1n;
  if (!isUnit) budget.multiply(bits / 2, bits / 2);
  const small = isUnit ? size % 2n : size;
  const [n, d] = [base.n ** small, base.d ** small];
  if (base.n === 0n) return base;
  return exponent < 0n ? ratio(d, n) : ratio(n, d);
}

/** The square root of a square. */
export function squareRoot({ n, d }: Exact, budget: WorkBudget): Exact | undefined {
  const [top, bottom] = [rootOf(n, budget), rootOf(d, budget)];
  return top !== undefined && bottom !== undefined ? ratio(top, bottom) : undefined;
}

/** Newton's iteration from above. */
function rootOf(n: bigint, budget: WorkBudget): bigint | undefined {
  if (n < 0n) return undefined;
  if (n < 2n) return n;
  const bits = bitsOf(n);
  let root = 1n << BigInt(Math.ceil(bits / 2));
  for (;;) {
    budget.multiply(bits, bits / 2);
    const next = (root + n / root) >> 1n;
    if (next >= root) return root * root === n ? root : undefined;
    root = next;
  }
}

/** The product of `count` integers from `from` up. */
function product(from: bigint, count: bigint, budget: WorkBudget): bigint {
  if (count > MOST_FACTORS) throw new NoValue();
  let [result, bits] = [1n, 0];
  const bitsOfFactor = bitsOf(from + count);
  for (let i = 0n; i < count; i++) {
    bits += bitsOfFactor;
    budget.multiply(bits, bitsOfFactor);
    result *= from + i;
  }
  return result;
}

export function factorial({ n, d }: Exact, budget: WorkBudget): Exact {
  if (d !== 1n || n < 0n) throw new NoValue();
  return { n: product(1n, n, budget), d: 1n };
}

export function binomial(top: Exact, bottom: Exact, budget: WorkBudget): Exact {
  if (!isInteger(bottom)) throw new NoValue();
  if (bottom.n < 0n) return { n: 0n, d: 1n };
  if (!isInteger(top) || top.n < bottom.n) return fallingBinomial(top, bottom.n, budget);
  const count = top.n - bottom.n < bottom.n ? top.n - bottom.n : bottom.n;
  return ratio(product(top.n - count + 1n, count, budget), product(1n, count, budget));
}

/** x (x - 1) ... (x - k + 1) over k!, of any x. */
function fallingBinomial(top: Exact, count: bigint, budget: WorkBudget): Exact {
  if (count > MOST_FACTORS) throw new NoValue();
  let result: Exact = { n: 1n, d: 1n };
  for (let i = 0n; i < count; i++) result = multiplyExact(result, ratio(top.n - i * top.d, top.d * (i + 1n)), budget);
  return result;
}

/** Rounded down. */
export function floorExact({ n, d }: Exact): Exact {
  const quotient = n / d;
  return { n: n < 0n && n % d !== 0n ? quotient - 1n : quotient, d: 1n };
}
