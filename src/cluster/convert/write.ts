/** Writes converted settings: YAML that keeps the comments of its source, `key=value` lines, or a shell command. */
import { type Document, isMap, isPair, isScalar, isSeq, type Node, type Pair, parseDocument, type Scalar } from "yaml";
import { ConfigError } from "../../leaves/errors.ts";
import { inline } from "../../train/config/fields/render.ts";
import { parseValue } from "../../train/config/hydra/override.ts";
import { toDocument } from "../../train/config/show.ts";
import { joinPath, type Tree, type YamlValue } from "../../train/config/yaml/tree.ts";
import type { Comment, ConvertedSource, OutValue, TrainingSystem } from "./contract.ts";
import { TRINITY_ORDER } from "./trinity/order.ts";
import { HOME, toTree } from "./values.ts";

export interface ConfigWriteOptions {
  readonly system: TrainingSystem;
  readonly source: ConvertedSource;
}

/** A YAML file in the usual order of the system; each comment moves with its setting. */
export function writeYaml(values: ReadonlyMap<string, OutValue>, { system, source }: ConfigWriteOptions): string {
  const entries = [...values].map(([path, { value }]) => [path, value] as const);
  const tree = system === "trinity" ? inOrder(toTree(entries)) : toTree(entries);
  const document = toDocument(tree);
  const comments = new Map<string, Comment>();
  const placed = new Set<string>();
  for (const [path, { from }] of values) {
    for (const origin of from) {
      const comment = source.values.get(origin)?.comment;
      if (comment === undefined || placed.has(origin)) continue;
      placed.add(origin);
      comments.set(path, joinComment(comments.get(path), comment));
    }
  }
  attach(document.contents, "", comments);
  if (source.head) document.commentBefore = source.head;
  return document.toString({ lineWidth: 0 });
}

function joinComment(a: Comment | undefined, b: Comment): Comment {
  return {
    before: [a?.before, b.before].filter(Boolean).join("\n") || undefined,
    inline: [a?.inline, b.inline].filter(Boolean).join(";") || undefined,
  };
}

function attach(node: unknown, path: string, comments: ReadonlyMap<string, Comment>): void {
  if (isSeq(node)) {
    for (const [i, item] of node.items.entries()) attach(item, `${path}.${i}`, comments);
  } else if (isMap(node)) {
    for (const item of node.items) if (isPair(item) && isScalar(item.key)) attachPair(item, path, comments);
  }
}

function attachPair(pair: Pair, path: string, comments: ReadonlyMap<string, Comment>): void {
  const key = pair.key as Scalar;
  const itemPath = path === "" ? joinPath(String(key.value)) : `${path}.${joinPath(String(key.value))}`;
  const comment = comments.get(itemPath);
  if (comment?.before) key.commentBefore = comment.before;
  if (comment?.inline && isScalar(pair.value)) pair.value.comment = comment.inline;
  attach(pair.value, itemPath, comments);
}

/** Sorts a Trinity file in the order of Trinity's documentation; other keys follow at the end. */
function inOrder(tree: Tree): Tree {
  const rank = new Map(TRINITY_ORDER.map((path, i) => [path, i]));
  const sort = (value: YamlValue, path: string): YamlValue => {
    if (Array.isArray(value)) return value.map((item) => sort(item, `${path}[]`));
    if (typeof value !== "object" || value === null) return value;
    const place = (key: string) => rank.get(path === "" ? key : `${path}.${key}`) ?? Number.MAX_SAFE_INTEGER;
    const keys = Object.keys(value).sort((a, b) => place(a) - place(b));
    return Object.fromEntries(
      keys.map((key) => [key, sort((value as Tree)[key]!, path === "" ? key : `${path}.${key}`)]),
    );
  };
  return sort(tree, "") as Tree;
}

/**
 * One `key=value` per line, as verl's command line takes them; `${oc.env:HOME}` becomes `$HOME` again, and settings that
 * `source` adds with `+` get `++`.
 */
export function writeArgs(values: ReadonlyMap<string, OutValue>, source?: ConvertedSource): string {
  const sign = (path: string) => (source?.values.get(path)?.isAdded ? "++" : "");
  return [...values].map(([path, { value }]) => `${sign(path)}${path}=${overrideText(value)}\n`).join("");
}

/**
 * A value in Hydra's override grammar.
 *
 * @throws {ConfigError} for a mapping with a name that the grammar cannot write (`ü`).
 */
export function overrideText(value: YamlValue): string {
  if (Array.isArray(value)) return `[${value.map((item) => overrideItem(item)).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    return `{${Object.entries(value)
      .map(([key, item]) => `${overrideKey(key)}:${overrideItem(item)}`)
      .join(",")}}`;
  }
  if (typeof value === "string") return homeAgain(readsBack(value) ? value : quote(value));
  return inline(value).replace(/\.(inf|nan)$/, "$1");
}

function overrideItem(value: YamlValue): string {
  return typeof value === "string" ? homeAgain(quote(value)) : overrideText(value);
}

/** Names cannot be quoted: special characters get a backslash. */
function overrideKey(key: string): string {
  const text = key.replace(/[\\()[\]{}:=,]|^ | $/g, "\\$&");
  try {
    if (Object.keys(parseValue(`{${text}:0}`) as Tree)[0] === key) return text;
  } catch {
    // Reported below.
  }
  throw new ConfigError(
    `Cannot write the name ${JSON.stringify(key)} in an override: Hydra's grammar cannot. Write a YAML file.`,
  );
}

/** True for a text that needs no quotes: the grammar reads it back, and a shell sees no continued line. */
function readsBack(text: string): boolean {
  try {
    return !/^$|\\$/.test(text) && parseValue(text) === text;
  } catch {
    return false;
  }
}

/** Quotes a text, in which backslashes count only before a quote. */
function quote(text: string): string {
  const escaped = text.replace(/(\\*)('|$)/g, (_, slashes: string, end: string) =>
    end === "" ? slashes + slashes : `${slashes}${slashes}\\'`,
  );
  return `'${escaped}'`;
}

function homeAgain(text: string): string {
  return text.replaceAll(HOME, "$HOME");
}

/** Replaces values in a YAML file in place; everything else, comments included, stays unchanged. */
export function rewriteYaml(text: string, values: Iterable<readonly [string, YamlValue]>): string {
  const document = parseDocument(text) as unknown as Document<Node>;
  for (const [path, value] of values) {
    const old = document.getIn(path.split("."), true);
    if (isScalar(old) && (typeof value !== "object" || value === null)) (old as Scalar).value = value;
    else document.setIn(path.split("."), document.createNode(value));
  }
  return document.toString({ lineWidth: 0 });
}

/** The tree of converted values. */
export function convertedTree(values: ReadonlyMap<string, OutValue>): Tree {
  return toTree([...values].map(([path, { value }]) => [path, value] as const));
}
