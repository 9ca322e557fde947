/** The names that an answer may use. */

/** Makes a table without what every object has: an answer may name `constructor`. */
function table(entries: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  return Object.assign(Object.create(null) as Record<string, string>, entries);
}

/** Operators and relations, in the one form that the grammar knows. */
export const SIGNS = table({
  ...{ times: "*", cdot: "*", ast: "*", div: "/", colon: ":", pm: "pm", mp: "mp", "%": "%", percent: "%" },
  ...{ le: "<=", leq: "<=", leqslant: "<=", ge: ">=", geq: ">=", geqslant: ">=", lt: "<", gt: ">" },
  ...{ not: "!", ne: "!=", neq: "!=", approx: "=", equiv: "=", in: "in", cup: "cup", cap: "cap", setminus: "setminus" },
  ...{ "{": "\\{", lbrace: "\\{", "}": "\\}", rbrace: "\\}", "|": "|", lvert: "|", rvert: "|", vert: "|", mid: "|" },
  ...{ lVert: "|", rVert: "|", Vert: "|", degree: "degree", "\\": "\\\\", "&": "&", "#": "#", _: "_", prime: "'" },
  ...{ lparen: "(", rparen: ")", lbrack: "[", rbrack: "]", langle: "<(", rangle: ")>", backslash: "setminus" },
});

export const RELATIONS: ReadonlySet<string> = new Set(["=", "<", ">", "<=", ">=", "!=", "in"]);

/** Functions by the names of LaTeX and of plain text. */
export const LATEX_FUNCTIONS = table({
  ...{ sin: "sin", cos: "cos", tan: "tan", cot: "cot", sec: "sec", csc: "csc", sinh: "sinh", cosh: "cosh" },
  ...{ tanh: "tanh", arcsin: "asin", arccos: "acos", arctan: "atan", asin: "asin", acos: "acos", atan: "atan" },
  ...{ ln: "ln", log: "log", lg: "log", exp: "exp", abs: "abs", floor: "floor", ceil: "ceil" },
});

/** `\sin^{-1}`. */
export const INVERSES = table({ sin: "asin", cos: "acos", tan: "atan" });

export const TRIGONOMETRIC: ReadonlySet<string> = new Set(["sin", "cos", "tan", "cot", "sec", "csc"]);

/** Commands whose argument is part of a name: `\vec{a}`, `\overline{AB}`. */
export const DECORATIONS: ReadonlySet<string> = new Set([
  ...["vec", "hat", "bar", "tilde", "dot", "overline", "underline", "overrightarrow", "widehat", "mathcal"],
  ...["mathbb", "angle", "triangle", "mathfrak", "mathscr"],
]);

/** Commands that are symbols. */
export const SYMBOLS: ReadonlySet<string> = new Set([
  ...["alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa"],
  ...["lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma"],
  ...["Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega", "ell", "hbar", "pi", "infty", "star"],
  ...["ldots", "cdots", "dots", "imath", "jmath", "circ", "partial", "nabla", "aleph", "square", "bigstar"],
]);

/** Plain text for what LaTeX has a command for. */
export const WORDS = table({
  pi: "pi",
  inf: "infty",
  infty: "infty",
  infinity: "infty",
  theta: "theta",
  alpha: "alpha",
  beta: "beta",
});

/** Longer runs of letters are a word; shorter ones a product. */
export const LONGEST_PRODUCT = 4;

/** Units that may follow a number without `\text`. A single letter is a variable: `3m` is 3 times m. */
export const UNITS: ReadonlySet<string> = new Set([
  ...["degree", "degrees", "deg", "cm", "mm", "km", "meter", "meters", "inch", "inches", "in", "feet", "foot", "ft"],
  ...["yard", "yards", "mile", "miles", "mph", "second", "seconds", "sec", "minute", "minutes", "hour", "hours", "hr"],
  ...["hrs", "day", "days", "week", "weeks", "month", "months", "year", "years", "dollar", "dollars", "cent", "cents"],
  ...["unit", "units", "square", "sq", "cubic", "kg", "gram", "grams", "pound", "pounds", "lb", "lbs", "ounce"],
  ...["ounces", "oz", "liter", "liters", "ml", "point", "points", "people", "students", "ways", "radians", "rad"],
  ...["centimeters", "kilometers", "millimeters", "percent", "cups", "gallons"],
]);
