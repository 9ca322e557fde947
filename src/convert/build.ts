/** The working state of one conversion: what was read, what was written from it, and what has to be told. */
import type { Problem } from "../config/problem.ts";
import { isTree, leaves, setAt, type Tree, type Value } from "../config/yaml/tree.ts";
import type { Source, SourceValue } from "./source.ts";

export type NoteKind =
  | "exact"
  | "renamed"
  | "computed"
  | "split"
  | "merged"
  | "constant"
  | "profile"
  | "dropped"
  | "default differs"
  | "check";

/** One line of the report. */
export interface Note {
  readonly kind: NoteKind;
  readonly from?: string | undefined;
  readonly to?: string;
  readonly value?: Value | undefined;
  readonly message?: string | undefined;
  readonly line?: number | undefined;
}

export interface OutValue {
  readonly value: Value;
  readonly from: readonly string[];
}

export interface ConvertOptions {
  /** Trinity's two config builders: the one its guide describes, and the one for verl 0.8. */
  readonly target?: "legacy" | "new";
  /** Whether steps are copied as they are, like the guide does, or scaled by `sync_interval`. */
  readonly cadence?: "copy" | "scale";
  /** Write down what has another default in the other system. */
  readonly pin?: boolean;
  /** verl's own defaults, by path. */
  readonly verlDefaults?: ReadonlyMap<string, Value>;
  /** Values that have no source, by path of the system that is written. */
  readonly profile?: ReadonlyMap<string, Value>;
}

export interface Converted {
  readonly values: Map<string, OutValue>;
  readonly notes: readonly Note[];
  readonly problems: readonly Problem[];
}

export class Build implements Converted {
  readonly values = new Map<string, OutValue>();
  readonly notes: Note[] = [];
  readonly problems: Problem[] = [];
  readonly used = new Set<string>();
  readonly source: Source;
  readonly options: Required<ConvertOptions>;

  constructor(source: Source, options: ConvertOptions) {
    this.source = source;
    this.options = {
      target: "legacy",
      cadence: "copy",
      pin: false,
      verlDefaults: new Map(),
      profile: new Map(),
      ...options,
    };
    this.problems.push(...source.problems);
  }

  has(path: string): boolean {
    return this.source.values.has(path);
  }

  /** A value without counting it as converted. */
  peek(path: string): Value | undefined {
    return this.source.values.get(path)?.value;
  }

  /** A value that is converted here. */
  take(path: string): Value | undefined {
    if (this.has(path)) this.used.add(path);
    return this.peek(path);
  }

  put(
    path: string,
    value: Value,
    about: { kind: NoteKind; from?: readonly string[]; message?: string | undefined },
  ): void {
    const { kind, from = [], message } = about;
    this.values.set(path, { value, from });
    this.notes.push({
      kind,
      from: from.join(" + ") || undefined,
      to: path,
      value,
      message,
      line: this.lineOf(from[0]),
    });
  }

  drop(path: string, message: string): void {
    const value = this.take(path);
    this.notes.push({ kind: "dropped", from: path, value, message, line: this.lineOf(path) });
  }

  check(message: string, path?: string): void {
    this.notes.push({ kind: "check", from: path, message, line: this.lineOf(path) });
  }

  fail(message: string, path?: string): void {
    const place = path === undefined ? undefined : this.source.values.get(path);
    this.problems.push({ severity: "error", message, path, file: place?.file, line: place?.line });
  }

  /** Paths that no rule has converted yet, in the order of the source. */
  rest(): [path: string, value: SourceValue][] {
    return [...this.source.values].filter(([path]) => !this.used.has(path));
  }

  /** Lays the profile over what was computed. */
  applyProfile(): void {
    for (const [path, value] of this.options.profile) this.put(path, value, { kind: "profile" });
  }

  private lineOf(path: string | undefined): number | undefined {
    return path === undefined ? undefined : this.source.values.get(path)?.line;
  }
}

/** A tree of flat paths in which `list.0.key` makes lists. */
export function toTree(values: Iterable<readonly [string, Value]>): Tree {
  const tree: Tree = {};
  for (const [path, value] of values) setAt(tree, path, value);
  return makeLists(tree) as Tree;
}

function makeLists(value: Value): Value {
  if (!isTree(value)) return value;
  const keys = Object.keys(value);
  const isList = keys.length > 0 && keys.every((key) => /^\d+$/.test(key));
  if (isList) return keys.sort((a, b) => Number(a) - Number(b)).map((key) => makeLists(value[key]!));
  return Object.fromEntries(keys.map((key) => [key, makeLists(value[key]!)]));
}

/** The leaves of a value with lists of sections opened: `tasksets.0.path`. */
export function* deepLeaves(path: string, value: Value): Generator<[string, Value]> {
  if (Array.isArray(value) && value.some(isTree)) {
    for (const [i, item] of value.entries()) yield* deepLeaves(`${path}.${i}`, item);
  } else if (isTree(value) && Object.keys(value).length > 0) {
    for (const [key, item] of leaves(value)) yield* deepLeaves(`${path}.${key}`, item);
  } else yield [path, value];
}

/** The home folder as every system here writes it: resolved where the run starts, not where it is converted. */
// biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of theirs
export const HOME = "${oc.env:HOME}";

/** `~/x` as an interpolation that the other system understands. */
export function expandHome(value: Value): Value {
  return typeof value === "string" ? value.replace(/^~\//, () => `${HOME}/`) : value;
}

export function asList(value: Value | undefined): Value[] {
  if (value === undefined || value === null) return [];
  return Array.isArray(value) ? [...value] : [value as Value];
}
