/**
 * Interpolations as OmegaConf has them: `${a.b}`, `${.sibling}`, `${oc.env:NAME,default}`, `${oc.select:a.b,default}`,
 * `${mul:2,3}`; nested, and inside longer texts. `\${` is a plain `${`.
 */
import { ConfigError } from "../../../leaves/errors.ts";
import { getAt, isTree, joinPath, MANDATORY, splitPath, type Tree, type YamlValue } from "../yaml/tree.ts";
import { readValue, readWord } from "./parse_value.ts";
import { type BadValue, pythonFloat } from "./parsed_value.ts";

export type Env = Readonly<Record<string, string | undefined>>;

export interface Interpolator {
  /** The value at a path with everything in it resolved; undefined when there is none. */
  at(path: string): YamlValue | undefined;
  /** A value as it reads at a path; relative interpolations depend on their place. */
  resolve(value: YamlValue, path: string): YamlValue;
}

const RESOLVERS = ["oc.env", "oc.select", "oc.decode", "mul"];
const MOST_ARGUMENTS: Readonly<Record<string, number>> = { "oc.env": 2, "oc.select": 2, "oc.decode": 1 };

/** Reads through interpolations of a live tree: a later change of the tree is seen by the next call. */
export function interpolator(tree: Tree, env: Env): Interpolator {
  const reader = new TreeReader(tree, env);
  return { at: (path) => reader.at(path), resolve: (value, path) => reader.resolve(value, path) };
}

class TreeReader {
  private readonly tree: Tree;
  private readonly env: Env;
  /** The settings that are being resolved, outermost first. */
  private readonly chain: string[] = [];
  constructor(tree: Tree, env: Env) {
    this.tree = tree;
    this.env = env;
  }

  at(path: string): YamlValue | undefined {
    const direct = getAt(this.tree, path);
    if (direct !== undefined) return this.guarded(path, () => this.resolve(direct, path));
    // A parent may itself be an interpolation of a section.
    const keys = splitPath(path);
    for (let cut = keys.length - 1; cut > 0; cut--) {
      const parentPath = joinPath(...keys.slice(0, cut));
      const parent = getAt(this.tree, parentPath);
      if (parent === undefined) continue;
      if (typeof parent !== "string" || !parent.includes("${")) return undefined;
      const resolved = this.guarded(parentPath, () => this.resolve(parent, parentPath));
      return getAt(resolved, joinPath(...keys.slice(cut)));
    }
    return undefined;
  }

  resolve(value: YamlValue, path: string): YamlValue {
    if (typeof value === "string") return this.resolveText(value, path);
    if (Array.isArray(value)) return value.map((item, i) => this.resolve(item, `${path}.${i}`));
    if (!isTree(value)) return value;
    const result: Tree = {};
    for (const key of Object.keys(value)) {
      const itemPath = path === "" ? joinPath(key) : `${path}.${joinPath(key)}`;
      result[key] = this.resolve(value[key]!, itemPath);
    }
    return result;
  }

  private guarded<T>(path: string, read: () => T): T {
    if (this.chain.includes(path)) {
      const members = this.chain.slice(this.chain.indexOf(path));
      const first = members.indexOf([...members].sort()[0]!);
      const cycle = [...members.slice(first), ...members.slice(0, first + 1)].join(" -> ");
      throw new ConfigError(`Cannot resolve the interpolation: it refers to itself: ${cycle}`, { path });
    }
    this.chain.push(path);
    try {
      return read();
    } finally {
      this.chain.pop();
    }
  }

  private resolveText(text: string, path: string): YamlValue {
    if (!text.includes("${")) return text;
    const parts = splitText(text, path);
    if (parts.length === 1 && typeof parts[0] !== "string") return this.evaluate(parts[0]!.body, path);
    return parts.map((part) => (typeof part === "string" ? part : toText(this.evaluate(part.body, path)))).join("");
  }

  private evaluate(body: string, path: string): YamlValue {
    const colon = topLevelColon(body);
    if (colon < 0) return this.lookUp(String(this.resolveText(body.trim(), path)), path, body);
    const call = { name: body.slice(0, colon).trim(), args: splitArguments(body.slice(colon + 1)), body };
    return this.callResolver(call, path);
  }

  private lookUp(target: string, path: string, body: string): YamlValue {
    const absolute = absolutePath(target, path);
    const value = this.at(absolute);
    if (value === undefined) {
      throw new ConfigError(`Cannot resolve \${${body}}: there is no setting ${absolute}`, { path });
    }
    if (value === MANDATORY) {
      throw new ConfigError(`Cannot resolve \${${body}}: ${absolute} is mandatory and not set`, { path });
    }
    return value;
  }

  private callResolver({ name, args, body }: Call, path: string): YamlValue {
    const fail = (rule: string): never => {
      throw new ConfigError(`Cannot resolve \${${body}}: ${rule}`, { path });
    };
    const read = (source: string): YamlValue => {
      try {
        return readArgument(source);
      } catch (error) {
        return fail(`the value ${source} ${(error as BadValue).message}`);
      }
    };
    const argument = (i: number): YamlValue => {
      const source = args[i]!.trim();
      return source.includes("${") ? this.resolveText(source, path) : read(source);
    };
    const most = MOST_ARGUMENTS[name] ?? args.length;
    if (args.length > most)
      return fail(`${name} takes at most ${most} argument${most === 1 ? "" : "s"} (${args.length})`);
    switch (name) {
      case "oc.env": {
        const value = this.env[String(argument(0))];
        if (value !== undefined) return value;
        return args.length > 1 ? argument(1) : fail(`the environment has no ${args[0]}`);
      }
      case "oc.select": {
        const value = this.at(absolutePath(String(argument(0)), path));
        if (value !== undefined && value !== MANDATORY) return value;
        return args.length > 1 ? argument(1) : null;
      }
      case "oc.decode":
        return read(String(argument(0)));
      case "mul": {
        const factors = args.map((_, i) => argument(i));
        // An unset factor makes the product unset.
        if (args.length === 2 && factors.includes(null)) return null;
        const product = factors.reduce<number>((whole, factor) => whole * Number(factor), 1);
        return args.length === 2 && !Number.isNaN(product) ? product : fail("mul takes two numbers");
      }
      default:
        return fail(`there is no resolver ${name}; known: ${RESOLVERS.join(", ")}`);
    }
  }
}

/** `${name:arg,arg}` */
interface Call {
  readonly name: string;
  readonly args: readonly string[];
  readonly body: string;
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
      if (end < 0) throw new ConfigError(`Cannot resolve the interpolation: it has no closing }: ${text}`, { path });
      if (plain !== "") parts.push(plain);
      plain = "";
      parts.push({ body: text.slice(i + 2, end) });
      i = end + 1;
    } else plain += text[i++];
  }
  if (plain !== "" || parts.length === 0) parts.push(plain);
  return parts;
}

/** A quoted text where an argument, an item or a value begins. */
const QUOTED = /(?<=[,:[{]\s*)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")/gs;

/** The same places, without what is in quotes. */
const withoutQuotes = (text: string) => text.replace(QUOTED, (quoted) => " ".repeat(quoted.length));

function closingBrace(text: string, from: number): number {
  const scanned = withoutQuotes(text.slice(from));
  let depth = 0;
  for (let i = 0; i < scanned.length; i++) {
    if (scanned[i] === "{") depth++;
    else if (scanned[i] === "}" && --depth === 0) return from + i;
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

/** @param text what follows the resolver's colon */
function splitArguments(text: string): string[] {
  const scanned = withoutQuotes(`:${text}`).slice(1);
  const args: string[] = [];
  let depth = 0;
  let start = 0;
  for (let i = 0; i < scanned.length; i++) {
    if ("{[".includes(scanned[i]!)) depth++;
    else if ("}]".includes(scanned[i]!)) depth--;
    else if (scanned[i] === "," && depth === 0) {
      args.push(text.slice(start, i));
      start = i + 1;
    }
  }
  args.push(text.slice(start));
  return args;
}

/** @throws {BadValue} for a list, a mapping or quotes without their end */
function readArgument(source: string): YamlValue {
  return /^['"[{]/.test(source) ? readValue(source) : readWord(source);
}

/** Returns a value as Python prints it, because OmegaConf inserts that into a longer text. */
function toText(value: YamlValue): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number" && !Number.isSafeInteger(value)) return pythonFloat(value);
  return typeof value === "object" ? pythonText(value) : String(value);
}

/** A list or a mapping as Python prints it. */
function pythonText(value: YamlValue): string {
  if (typeof value === "string") return `'${value.replace(/[\\']/g, "\\$&")}'`;
  if (Array.isArray(value)) return `[${value.map(pythonText).join(", ")}]`;
  if (!isTree(value)) return toText(value);
  return `{${Object.entries(value)
    .map(([key, item]) => `${pythonText(key)}: ${pythonText(item)}`)
    .join(", ")}}`;
}
