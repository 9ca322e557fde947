/** Whether two expressions have one value wherever both have one. */
import type { LatexNode, NumberNode } from "../latex/nodes.ts";
import { add, Decimal, isReal, isZero, multiply, near, negate } from "./approximate.ts";
import { NoValue, type WorkBudget } from "./budget.ts";
import { type ExactOrApproximate, evaluateNode, isExact, wide } from "./evaluate.ts";
import { addExact, type Exact, equalExact, multiplyExact } from "./exact.ts";

/** Points at which expressions with variables are compared: positive, negative, and mixed. */
const POINTS = 4;
/** Further ones, of integers, where those tell nothing: factorials. */
const INTEGER_POINTS = 2;

/** Numbers with fewer digits after the point are not taken as rounded. */
const LEAST_ROUNDED_DIGITS = 6;
/** Most digits, because those of a computed number beyond them are noise. */
const MOST_ROUNDED_DIGITS = 12;

/** Distinct ratios that no answer has as a root: of primes around 1,000 and 300. */
const TOPS = [1009n, 1013n, 1019n, 1021n, 1031n, 1033n, 1039n, 1049n, 1051n, 1061n, 1063n, 1069n];
const BOTTOMS = [307n, 311n, 313n, 317n, 331n, 337n, 347n];

function placeAt(point: number, { budget, names }: { budget: WorkBudget; names: Map<string, number> }) {
  const at = (name: string): Exact => {
    const index = names.get(name) ?? names.size;
    names.set(name, index);
    if (point >= POINTS) return { n: 20n + 9n * BigInt(point) + 7n * BigInt(index), d: 1n };
    const isNegative = point === 1 || (point === 2 && index % 2 === 0);
    const n = TOPS[(index + 5 * point) % TOPS.length]! + 2n * BigInt(index);
    return { n: isNegative ? -n : n, d: BOTTOMS[(index + 3 * point) % BOTTOMS.length]! };
  };
  return { at, budget };
}

/** Comparison of two pairs of expressions at one point. */
type Compare = (values: readonly ExactOrApproximate[]) => boolean;

/**
 * Evaluates at several points. A point where one of them has no value, or where all leave the reals, tells nothing; of two
 * expressions one that is real alone is another: `\ln|x|` is not `\ln x`. False where no point tells anything.
 */
function holds(nodes: readonly LatexNode[], budget: WorkBudget, compare: Compare): boolean {
  const names = new Map<string, number>();
  const complex: ExactOrApproximate[][] = [];
  let decided = 0;
  for (let point = 0; point < POINTS + INTEGER_POINTS; point++) {
    if (point === POINTS && decided + complex.length > 0) break;
    const values = valuesAt(nodes, placeAt(point, { budget, names }));
    if (!values) continue;
    const reals = values.filter((value) => isExact(value) || isReal(value)).length;
    if (nodes.length === 2 && reals === 1) return false;
    if (reals < values.length) complex.push(values);
    else if (!compare(values)) return false;
    else decided++;
    if (names.size === 0) break;
  }
  return decided > 0 || (complex.length > 0 && complex.every(compare));
}

function valuesAt(nodes: readonly LatexNode[], place: ReturnType<typeof placeAt>): ExactOrApproximate[] | undefined {
  try {
    return nodes.map((node) => evaluateNode(node, place));
  } catch (error) {
    if (error instanceof NoValue) return undefined;
    throw error;
  }
}

/** Integers and ratios exactly; other numbers as far as 40 digits tell; a rounded decimal by its digits. */
export function expressionsEqual(a: LatexNode, b: LatexNode, budget: WorkBudget): boolean {
  const [p, q] = [roundedDigits(a), roundedDigits(b)];
  return holds([a, b], budget, ([x, y]) => {
    return valuesEqual(x!, y!, budget) || isRounded(x!, y!, p) || isRounded(y!, x!, q);
  });
}

function valuesEqual(x: ExactOrApproximate, y: ExactOrApproximate, budget: WorkBudget): boolean {
  return isExact(x) && isExact(y) ? equalExact(x, y, budget) : near(wide(x), wide(y));
}

/**
 * Returns the number of digits of a decimal that may be another number, rounded: `0.333333`, `1.414214`. Its last digit
 * may be rounded or cut off.
 */
function roundedDigits(node: LatexNode): number | undefined {
  const number = literal(node);
  if (!number || number.decimals < LEAST_ROUNDED_DIGITS) return undefined;
  const isPrecise = `${number.digits}`.length >= LEAST_ROUNDED_DIGITS;
  return isPrecise ? Math.max(LEAST_ROUNDED_DIGITS, Math.min(number.decimals - 1, MOST_ROUNDED_DIGITS)) : undefined;
}

function literal(node: LatexNode): NumberNode | undefined {
  if (node.kind === "number") return node;
  return node.kind === "call" && node.name === "negate" ? literal(node.of[0]!) : undefined;
}

/** Whether the decimal is the other number, rounded. A number that ends after some digits needs no rounding: 1 is not 1.0000000001. */
function isRounded(decimal: ExactOrApproximate, other: ExactOrApproximate, digits: number | undefined): boolean {
  if (digits === undefined || (isExact(other) && endsAfterSomeDigits(other))) return false;
  const [p, q] = [wide(decimal), wide(other)];
  return isReal(q) && p.re.toDecimalPlaces(digits).eq(q.re.toDecimalPlaces(digits));
}

function endsAfterSomeDigits({ n, d }: Exact): boolean {
  return (n * 10n ** 40n) % d === 0n;
}

/**
 * Whether `p = q` and `r = s` say the same: the differences of their sides are in one ratio at every point.
 * @param options.isPositive the ratio must be above 0: inequalities
 */
export function equationsEqual(
  [p, q, r, s]: readonly [LatexNode, LatexNode, LatexNode, LatexNode],
  { budget, isPositive }: { budget: WorkBudget; isPositive: boolean },
): boolean {
  let first: readonly [ExactOrApproximate, ExactOrApproximate] | undefined;
  return holds([p, q, r, s], budget, (values) => {
    const [left, right] = [minus(values[0]!, values[1]!, budget), minus(values[2]!, values[3]!, budget)];
    if (isNothing(left) || isNothing(right)) return isNothing(left) && isNothing(right);
    first ??= [left, right];
    const [a, b] = [times(left, first[1], budget), times(right, first[0], budget)];
    return valuesEqual(a, b, budget) && (!isPositive || isAbove(times(left, right, budget)));
  });
}

function minus(x: ExactOrApproximate, y: ExactOrApproximate, budget: WorkBudget): ExactOrApproximate {
  if (!isExact(x) || !isExact(y)) return add(wide(x), negate(wide(y)));
  return addExact(x, { n: -y.n, d: y.d }, budget);
}

function times(x: ExactOrApproximate, y: ExactOrApproximate, budget: WorkBudget): ExactOrApproximate {
  return isExact(x) && isExact(y) ? multiplyExact(x, y, budget) : multiply(wide(x), wide(y));
}

function isNothing(value: ExactOrApproximate): boolean {
  return isExact(value) ? value.n === 0n : isZero(value);
}

function isAbove(value: ExactOrApproximate): boolean {
  return isExact(value) ? value.n > 0n : value.re.gt(new Decimal(0));
}
