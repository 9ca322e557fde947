/**
 * Interpolations as OmegaConf has them: `${a.b}`, `${.sibling}`, `${oc.env:NAME,default}`, `${oc.select:a.b,default}`,
 * `${mul:2,3}`; nested, and inside longer texts. `\${` is a plain `${`.
 */
import { ConfigError } from "../errors.ts";
import { readWord } from "./override.ts";
import { getAt, isTree, joinPath, splitPath, type Tree, type Value } from "./tree.ts";

export type Env = Readonly<Record<string, string | undefined>>;

export interface Interpolator {
  /** The value at a path with everything in it resolved; undefined when there is none. */
  at(path: string): Value | undefined;
  /** A value as it would read at a path (relative interpolations need to know where they stand). */
  resolve(value: Value, path: string): Value;
}

export const MISSING = "???";
const RESOLVERS = ["oc.env", "oc.select", "oc.decode", "mul"];

export function hasInterpolation(value: Value | undefined): boolean {
  if (typeof value === "string") return value.includes("${");
  if (Array.isArray(value)) return value.some(hasInterpolation);
  return isTree(value) ? Object.values(value).some(hasInterpolation) : false;
}

/** Reads through interpolations of a live tree: a later change of the tree is seen by the next call. */
export function interpolator(tree: Tree, env: Env): Interpolator {
  const chain: string[] = [];

  const at = (path: string): Value | undefined => {
    const direct = getAt(tree, path);
    if (direct !== undefined) return guarded(path, () => resolve(direct, path));
    // A parent may itself be an interpolation of a section.
    const keys = splitPath(path);
    for (let cut = keys.length - 1; cut > 0; cut--) {
      const parentPath = joinPath(...keys.slice(0, cut));
      const parent = getAt(tree, parentPath);
      if (parent === undefined) continue;
      if (typeof parent !== "string" || !parent.includes("${")) return undefined;
      const resolved = guarded(parentPath, () => resolve(parent, parentPath));
      return getAt(resolved, joinPath(...keys.slice(cut)));
    }
    return undefined;
  };

  const guarded = <T>(path: string, read: () => T): T => {
    if (chain.includes(path)) {
      const members = chain.slice(chain.indexOf(path));
      const first = members.indexOf([...members].sort()[0]);
      const cycle = [...members.slice(first), ...members.slice(0, first + 1)].join(" -> ");
      throw new ConfigError(`Cannot resolve the interpolation as it refers to itself: ${cycle}`, { path });
    }
    chain.push(path);
    try {
      return read();
    } finally {
      chain.pop();
    }
  };

  const resolve = (value: Value, path: string): Value => {
    if (typeof value === "string") return resolveText(value, path);
    if (Array.isArray(value)) return value.map((item, i) => resolve(item, `${path}.${i}`));
    if (!isTree(value)) return value;
    const result: Tree = {};
    for (const key of Object.keys(value)) {
      const itemPath = path === "" ? joinPath(key) : `${path}.${joinPath(key)}`;
      result[key] = resolve(value[key], itemPath);
    }
    return result;
  };

  const resolveText = (text: string, path: string): Value => {
    if (!text.includes("${")) return text;
    const parts = splitText(text, path);
    if (parts.length === 1 && typeof parts[0] !== "string") return evaluate(parts[0].body, path);
    return parts
      .map((part) => (typeof part === "string" ? part : toText(evaluate(part.body, path))))
      .join("");
  };

  const evaluate = (body: string, path: string): Value => {
    const colon = topLevelColon(body);
    if (colon < 0) return lookUp(String(resolveText(body.trim(), path)), path, body);
    const name = body.slice(0, colon).trim();
    const args = splitArguments(body.slice(colon + 1));
    return callResolver(name, args, path, body);
  };

  const lookUp = (target: string, path: string, body: string): Value => {
    const absolute = absolutePath(target, path);
    const value = at(absolute);
    if (value === undefined) {
      throw new ConfigError(`Cannot resolve \${${body}} as there is no setting ${absolute}`, { path });
    }
    if (value === MISSING) {
      throw new ConfigError(`Cannot resolve \${${body}} as ${absolute} is mandatory and not set`, { path });
    }
    return value;
  };

  const callResolver = (name: string, args: readonly string[], path: string, body: string): Value => {
    const argument = (i: number): Value => {
      const source = args[i].trim();
      return source.includes("${") ? resolveText(source, path) : readArgument(source);
    };
    switch (name) {
      case "oc.env": {
        const value = env[String(argument(0))];
        if (value !== undefined) return value;
        if (args.length > 1) return argument(1);
        throw new ConfigError(`Cannot resolve \${${body}} as the environment has no ${args[0]}`, { path });
      }
      case "oc.select": {
        const value = at(absolutePath(String(argument(0)), path));
        if (value !== undefined && value !== MISSING) return value;
        return args.length > 1 ? argument(1) : null;
      }
      case "oc.decode":
        return readArgument(String(argument(0)));
      case "mul": {
        const [a, b] = [argument(0), args.length > 1 ? argument(1) : Number.NaN];
        const product = Number(a) * Number(b);
        if (args.length === 2 && a !== null && b !== null && !Number.isNaN(product)) return product;
        throw new ConfigError(`Cannot resolve \${${body}} as mul takes two numbers`, { path });
      }
      default:
        throw new ConfigError(
          `Cannot resolve \${${body}} as there is no resolver ${name}; known: ${RESOLVERS.join(", ")}`,
          { path },
        );
    }
  };

  return { at, resolve };
}

/** `.x` is a sibling of the setting, `..x` one section further up. */
function absolutePath(target: string, path: string): string {
  const dots = /^\.+/.exec(target)?.[0].length ?? 0;
  if (dots === 0) return target;
  const keys = splitPath(path);
  return joinPath(...keys.slice(0, Math.max(0, keys.length - dots)), ...splitPath(target.slice(dots)));
}

type Part = string | { readonly body: string };

function splitText(text: string, path: string): Part[] {
  const parts: Part[] = [];
  let plain = "";
  for (let i = 0; i < text.length; ) {
    if (text.startsWith("\\${", i)) {
      plain += "${";
      i += 3;
    } else if (text.startsWith("${", i)) {
      const end = closingBrace(text, i + 1);
      if (end < 0)
        throw new ConfigError(`Cannot resolve the interpolation as it has no closing }: ${text}`, { path });
      if (plain !== "") parts.push(plain);
      plain = "";
      parts.push({ body: text.slice(i + 2, end) });
      i = end + 1;
    } else plain += text[i++];
  }
  if (plain !== "" || parts.length === 0) parts.push(plain);
  return parts;
}

function closingBrace(text: string, from: number): number {
  let depth = 0;
  for (let i = from; i < text.length; i++) {
    if (text[i] === "{") depth++;
    else if (text[i] === "}" && --depth === 0) return i;
  }
  return -1;
}

function topLevelColon(body: string): number {
  let depth = 0;
  for (let i = 0; i < body.length; i++) {
    if (body[i] === "{") depth++;
    else if (body[i] === "}") depth--;
    else if (body[i] === ":" && depth === 0) return i;
  }
  return -1;
}

function splitArguments(text: string): string[] {
  const args: string[] = [];
  let depth = 0;
  let start = 0;
  for (let i = 0; i < text.length; i++) {
    if ("{[".includes(text[i])) depth++;
    else if ("}]".includes(text[i])) depth--;
    else if (text[i] === "," && depth === 0) {
      args.push(text.slice(start, i));
      start = i + 1;
    }
  }
  args.push(text.slice(start));
  return args;
}

function readArgument(source: string): Value {
  const quoted = /^(["'])([\s\S]*)\1$/.exec(source);
  if (quoted) return quoted[2];
  if (source === "[]") return [];
  if (source === "{}") return {};
  return readWord(source);
}

function toText(value: Value): string {
  if (value === null) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
