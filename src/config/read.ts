/** YAML text into a tree, with the line of every setting. */
import { isAlias, isMap, isPair, isScalar, isSeq, LineCounter, type Node, parseDocument } from "yaml";
import type { Problem } from "./problem.ts";
import { joinPath, type Tree, type Value } from "./tree.ts";

export interface ReadYaml {
  readonly tree: Tree;
  /** 1-based line of every section and leaf, by dotted path. */
  readonly lines: ReadonlyMap<string, number>;
  readonly problems: readonly Problem[];
  /** `# @package NAME` of the head comment, where there is one. */
  readonly package?: string;
}

const DEEPEST_NESTING = 64;
/** Aliases multiply: a file of a few lines may describe more than memory holds. */
const MOST_VALUES = 100_000;

/**
 * Reads YAML 1.2 (`1e-6` is a number, `yes` is a string) with Hydra's `# @package` line and `<<` merge keys.
 * Never throws: everything that is wrong is in `problems`, each with its line.
 */
export function readYaml(text: string, file: string): ReadYaml {
  const counter = new LineCounter();
  const document = parseDocument(text, { lineCounter: counter, version: "1.2", prettyErrors: false });
  const lineOf = (offset: number | undefined) => (offset === undefined ? 1 : counter.linePos(offset).line);
  const lines = new Map<string, number>();
  const problems: Problem[] = [...document.errors, ...document.warnings].map((issue) => ({
    severity: "error",
    message: `Cannot read the YAML as ${lowerFirst(issue.message)}`,
    file,
    line: lineOf(issue.pos[0]),
  }));
  let count = 0;
  const fail = (message: string, offset?: number) => {
    problems.push({ severity: "error", message, file, line: lineOf(offset) });
  };

  const toValue = (node: unknown, path: string, depth: number): Value => {
    if (depth > DEEPEST_NESTING) {
      fail(`Cannot read ${path} as it nests deeper than ${DEEPEST_NESTING} levels`);
      return null;
    }
    if (++count > MOST_VALUES) {
      if (count === MOST_VALUES + 1) fail(`Cannot read the file as it holds more than ${MOST_VALUES} values`);
      return null;
    }
    if (isAlias(node)) {
      const target = node.resolve(document);
      if (target === undefined)
        fail(`Cannot read ${path} as there is no anchor ${node.source}`, node.range?.[0]);
      return toValue(target, path, depth + 1);
    }
    if (isMap(node)) return toTree(node.items, path, depth);
    if (isSeq(node)) {
      return node.items.map((item, i) => {
        const itemPath = `${path}.${i}`;
        lines.set(itemPath, lineOf((item as Node)?.range?.[0]));
        return toValue(item, itemPath, depth + 1);
      });
    }
    if (isScalar(node)) {
      const isDigits = /^[-+]?\d+$/.test(node.source ?? "");
      if (isDigits && typeof node.value === "number" && !Number.isSafeInteger(node.value)) {
        fail(
          `Cannot read ${path} as the number is not exact beyond 2^53: ${node.source}; quote it`,
          node.range?.[0],
        );
      }
      return toScalar(node.value, path, node.range?.[0]);
    }
    return null;
  };
  const toScalar = (value: unknown, path: string, offset: number | undefined): Value => {
    const plain = value === null || ["string", "number", "boolean"].includes(typeof value);
    if (plain) return value as Value;
    if (value !== undefined) fail(`Cannot read ${path} as it is no plain value: ${String(value)}`, offset);
    return null;
  };
  const toTree = (items: readonly unknown[], path: string, depth: number): Tree => {
    const tree: Tree = {};
    const merged: Tree = {};
    for (const item of items) {
      if (!isPair(item)) continue;
      const key = isScalar(item.key) ? String(item.key.value) : undefined;
      const offset = (item.key as Node)?.range?.[0];
      if (key === undefined || key === "__proto__") {
        fail(`Cannot read a key under ${path || "the root"} as it is no plain name`, offset);
        continue;
      }
      const itemPath = path === "" ? joinPath(key) : `${path}.${joinPath(key)}`;
      lines.set(itemPath, lineOf(offset));
      const value = toValue(item.value, itemPath, depth + 1);
      if (key === "<<") Object.assign(merged, ...[value].flat());
      else tree[key] = value;
    }
    return { ...merged, ...tree };
  };

  let tree: Tree = {};
  if (isMap(document.contents)) tree = toTree(document.contents.items, "", 0);
  else if (document.contents !== null && problems.length === 0) {
    const isEmpty = isScalar(document.contents) && document.contents.value === null;
    if (!isEmpty) fail("Cannot read the YAML as its root is no mapping of settings", 0);
  }
  const packageLine = /^#\s*@package\s+(\S+)\s*$/m.exec(text.slice(0, 2000));
  return { tree, lines, problems, package: packageLine?.[1] };
}

function lowerFirst(text: string): string {
  return text.charAt(0).toLowerCase() + text.slice(1);
}
