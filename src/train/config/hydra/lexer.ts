/** Tokens of a value in Hydra's grammar (1.3): the longest match wins; of equally long ones, the earlier rule. */

export type TokenType =
  | ("(" | ")" | "[" | "]" | "{" | "}" | "," | ":" | "=")
  | ("float" | "int" | "bool" | "null" | "char" | "id" | "escape" | "space" | "quoted" | "interpolation");

export interface HydraToken {
  readonly type: TokenType;
  readonly text: string;
}

const UNSIGNED = "(?:0|[1-9](?:_?\\d)*)";
const DIGITS = "\\d(?:_?\\d)*";
const POINT = `(?:${UNSIGNED}?\\.${DIGITS}|${UNSIGNED}\\.)`;

const RULES: readonly (readonly [type: TokenType, rule: RegExp])[] = (
  [
    ["(", "[ \\t]*\\([ \\t]*"],
    [",", "[ \\t]*,[ \\t]*"],
    [")", "[ \\t]*\\)"],
    ["[", "\\[[ \\t]*"],
    ["]", "[ \\t]*\\]"],
    ["{", "\\{[ \\t]*"],
    ["}", "[ \\t]*\\}"],
    [":", "[ \\t]*:[ \\t]*"],
    ["=", "[ \\t]*=[ \\t]*"],
    ["float", `[+-]?(?:(?:${POINT}|${UNSIGNED})e[+-]?${DIGITS}|${POINT}|inf|nan)`],
    ["int", `[+-]?${UNSIGNED}`],
    ["bool", "true|false"],
    ["null", "null"],
    ["char", "[-/\\\\+.$%*@?|]"],
    ["id", "[a-z_][\\w-]*"],
    ["escape", "(?:\\\\[\\\\()[\\]{}:=, \\t])+"],
    ["space", "[ \\t]+"],
    ["quoted", "\"(?:[^\"\\\\]|\\\\[^])*\"|'(?:[^'\\\\]|\\\\[^])*'"],
    ["interpolation", "\\$\\{[^}]+\\}"],
  ] as const
).map(([type, source]) => [type, new RegExp(source, "iy")]);

/** The tokens of a text up to the first character that starts no token; `rest` begins there. */
export function readTokens(source: string): { tokens: HydraToken[]; rest: string } {
  const tokens: HydraToken[] = [];
  let at = 0;
  while (at < source.length) {
    const token = longestAt(source, at);
    if (token === undefined) break;
    tokens.push(token);
    at += token.text.length;
  }
  return { tokens, rest: source.slice(at) };
}

function longestAt(source: string, at: number): HydraToken | undefined {
  let best: HydraToken | undefined;
  for (const [type, rule] of RULES) {
    rule.lastIndex = at;
    const text = rule.exec(source)?.[0];
    if (text !== undefined && text.length > (best?.text.length ?? 0)) best = { type, text };
  }
  return best;
}
