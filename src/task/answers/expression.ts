/** Equality of expressions by their values, with mathjs as the parser. */
import type { EvalFunction, MathNode } from "mathjs";

/** Points at which expressions with variables are compared. */
const POINTS = 6;
/** Relative. */
const TOLERANCE = 1e-10;

/** What may be called: mathjs has functions that a response must not reach. */
const FUNCTIONS: ReadonlySet<string> = new Set([
  ...["sqrt", "nthRoot", "abs", "exp", "log", "log10", "log2", "sin", "cos", "tan", "cot", "sec", "csc"],
  ...["asin", "acos", "atan", "sinh", "cosh", "tanh", "factorial", "combinations", "floor", "ceil"],
]);
const OPERATORS: ReadonlySet<string> = new Set(["+", "-", "*", "/", "^", "!"]);
const CONSTANTS: ReadonlySet<string> = new Set(["pi", "e", "i"]);

interface Parsed {
  readonly code: EvalFunction;
  readonly variables: readonly string[];
}

/**
 * Whether two expressions in normalised LaTeX have the same value: for the same variables, at several points (polynomials that
 * differ agree at a random point with probability 0). False where one of them cannot be read.
 * @param options.upToSign the negative of the other counts too
 */
export async function expressionsEqual(
  one: string,
  other: string,
  { upToSign = false }: { upToSign?: boolean } = {},
): Promise<boolean> {
  const [a, b] = [await parsed(one), await parsed(other)];
  if (!a || !b || `${a.variables}` !== `${b.variables}`) return false;
  const points = Array.from({ length: a.variables.length === 0 ? 1 : POINTS }, (_, i) => pointAt(a.variables, i));
  const values = points.map((point) => [valueAt(a, point), valueAt(b, point)] as const);
  const known = values.filter(([x, y]) => x !== undefined && y !== undefined) as [Complex, Complex][];
  if (known.length === 0) return false;
  return (
    known.every(([x, y]) => near(x, y)) || (upToSign && known.every(([x, y]) => near(x, { re: -y.re, im: -y.im })))
  );
}

interface Complex {
  readonly re: number;
  readonly im: number;
}

function near(x: Complex, y: Complex): boolean {
  const size = Math.max(1, Math.hypot(x.re, x.im), Math.hypot(y.re, y.im));
  return Math.hypot(x.re - y.re, x.im - y.im) <= TOLERANCE * size;
}

/** Irrational, so that no answer has a zero there; positive, so that roots and logarithms are real. */
function pointAt(variables: readonly string[], i: number): Record<string, number> {
  return Object.fromEntries(variables.map((name, v) => [name, Math.sqrt(2 + 3 * i + 7 * v) / 2 + 0.1 * (v + 1)]));
}

async function parsed(text: string): Promise<Parsed | undefined> {
  const { parse } = await import("mathjs");
  try {
    const node = parse(toExpression(text));
    const variables = checked(node);
    return variables && { code: node.compile(), variables };
  } catch {
    return undefined;
  }
}

/** The variables, sorted; undefined for an expression with anything but arithmetic. */
function checked(node: MathNode): string[] | undefined {
  const variables = new Set<string>();
  let isArithmetic = true;
  const visit = (each: MathNode, path: string) => {
    const { type, name, op } = each as MathNode & { name?: string; op?: string };
    if (type === "SymbolNode" && path === "fn") return;
    if (type === "SymbolNode" && name !== undefined) {
      if (!CONSTANTS.has(name)) variables.add(name);
      if (!/^[A-Za-z]\w?$|^(pi|theta|alpha|beta)$/.test(name)) isArithmetic = false;
    } else if (type === "FunctionNode") isArithmetic &&= FUNCTIONS.has(String(name));
    else if (type === "OperatorNode") isArithmetic &&= OPERATORS.has(String(op));
    else if (type !== "ConstantNode" && type !== "ParenthesisNode") isArithmetic = false;
  };
  node.traverse((each, path) => visit(each, path));
  return isArithmetic ? [...variables].sort() : undefined;
}

function valueAt({ code }: Parsed, point: Record<string, number>): Complex | undefined {
  try {
    const value: unknown = code.evaluate({ ...point });
    const { re, im } = typeof value === "number" ? { re: value, im: 0 } : (value as Complex);
    return Number.isFinite(re) && Number.isFinite(im) ? { re, im } : undefined;
  } catch {
    return undefined;
  }
}

/** Normalised LaTeX as mathjs reads it. */
function toExpression(latex: string): string {
  let text = latex;
  // From the inside out.
  for (let before = ""; before !== text; ) {
    before = text;
    text = text
      // 3\frac{1}{2} is a mixed number.
      .replace(/(?<![\w)}.])(\d+)\\frac\{(\d+)\}\{(\d+)\}/g, "($1+($2)/($3))")
      .replace(/\\frac\{([^{}]*)\}\{([^{}]*)\}/g, "(($1)/($2))")
      .replace(/\\binom\{([^{}]*)\}\{([^{}]*)\}/g, "combinations($1,$2)")
      .replace(/\\sqrt\[([^[\]{}]*)\]\{([^{}]*)\}/g, "nthRoot($2,$1)")
      .replace(/\\sqrt\{([^{}]*)\}/g, "sqrt($1)")
      .replace(/\^\{([^{}]*)\}/g, "^($1)")
      .replace(/_\{?(\w)\}?/g, "$1");
  }
  return text
    .replace(/\\(sin|cos|tan|cot|sec|csc|exp|log)(?![a-z])/g, " $1")
    .replace(/\\ln(?![a-z])/g, " log")
    .replace(/\\div(?![a-z])/g, "/")
    .replace(/\\(pi|theta|alpha|beta)(?![a-z])/g, " $1 ")
    .replace(/[{]/g, "(")
    .replace(/[}]/g, ")")
    .replace(/\|([^|]*)\|/g, "abs($1)")
    .replace(/(?<![a-zA-Z])(sin|cos|tan|log|exp) ?(\d*[a-z](?![a-z])|\d+)/g, "$1($2)")
    .replace(/(?<=[)\d])(?=[a-zA-Z(])/g, " ")
    .replace(/(?<![A-Za-z])([a-z])([a-z])(?![A-Za-z])/g, (pair, p: string, q: string) =>
      pair === "pi" ? pair : `${p} ${q}`,
    );
}
