/** YAML text into a tree, with the line of every setting. */
import {
  type Document,
  isAlias,
  isMap,
  isPair,
  isScalar,
  isSeq,
  LineCounter,
  type Node,
  parseDocument,
  type Scalar,
  visit,
} from "yaml";
import type { Problem } from "../problem.ts";
import { joinPath, type Tree, type YamlValue } from "./tree.ts";

export interface ReadYaml {
  readonly tree: Tree;
  /** 1-based line of every section and leaf, by dotted path. */
  readonly lines: ReadonlyMap<string, number>;
  readonly problems: readonly Problem[];
  /** `# @package NAME` of the head comment, where there is one. */
  readonly package?: string | undefined;
  /** `# @added ["PATH", ...]` of the head comment: keys of the file's own that no table has. */
  readonly added?: readonly string[];
}

const DEEPEST_NESTING = 64;
/** Brackets, or marks of lists in one line, that may be open, those in texts included: the parser has a stack frame for each. */
const MOST_OPEN = 500;
/** Aliases multiply: a few lines may expand to more than memory holds. */
const MOST_VALUES = 100_000;

/**
 * Reads YAML 1.2 (`1e-6` is a number, `yes` is a string) with Hydra's `# @package` line and `<<` merge keys.
 * Never throws: `problems` has every error with its line.
 */
export function readYaml(text: string, file: string): ReadYaml {
  const reader = new YamlReader(text, file);
  const tree = reader.readRoot();
  const packageLine = /^#\s*@package\s+(\S+)\s*$/m.exec(text.slice(0, 2000));
  const list = /^#\s*@added\s+\[(.*)\]$/m.exec(text)?.[1];
  const added = list?.match(/"(?:\\.|[^"\\])*"/g)?.map((path) => JSON.parse(path) as string);
  return {
    tree,
    lines: reader.lines,
    problems: reader.problems,
    package: packageLine?.[1],
    ...(added && { added }),
  };
}

class YamlReader {
  readonly lines = new Map<string, number>();
  readonly problems: Problem[] = [];
  private readonly counter = new LineCounter();
  private readonly document: Document.Parsed;
  private readonly file: string;
  private count = 0;
  /** Node that each alias stands for: one look at the document, where `Alias.resolve` takes one for each. */
  private readonly targets: ReadonlyMap<Node, Node>;
  /** Maps and lists that are being read. */
  private readonly open = new Set<Node>();

  constructor(text: string, file: string) {
    this.file = file;
    const isDeep = isNestedBeyond(text, MOST_OPEN);
    if (isDeep) this.fail(`Cannot read the YAML: it nests deeper than ${DEEPEST_NESTING} levels.`, 0);
    this.document = parseDocument(isDeep ? "" : text, {
      lineCounter: this.counter,
      version: "1.2",
      prettyErrors: false,
    });
    for (const issue of [...this.document.errors, ...this.document.warnings]) {
      this.fail(`Cannot read the YAML: ${lowerFirst(issue.message)}.`, issue.pos[0]);
    }
    this.targets = targetsIn(this.document);
  }

  readRoot(): Tree {
    const root = this.document.contents as unknown;
    if (isMap(root)) return this.readNode(root, "", 0) as Tree;
    const isEmpty = root === null || (isScalar(root) && root.value === null);
    if (!isEmpty && this.problems.length === 0)
      this.fail("Cannot read the YAML: its root is not a mapping of settings.", 0);
    return {};
  }

  private readNode(node: unknown, path: string, depth: number): YamlValue {
    if (depth > DEEPEST_NESTING) {
      this.fail(`Cannot read ${path}: it nests deeper than ${DEEPEST_NESTING} levels.`);
      return null;
    }
    if (++this.count > MOST_VALUES) {
      if (this.count === MOST_VALUES + 1) this.fail(`Cannot read the file: it holds more than ${MOST_VALUES} values.`);
      return null;
    }
    if (isAlias(node)) {
      const target = this.targets.get(node);
      if (target === undefined) this.fail(`Cannot read ${path}: there is no anchor ${node.source}.`, node.range?.[0]);
      if (target === undefined || !this.open.has(target)) return this.readNode(target, path, depth + 1);
      this.fail(`Cannot read ${path}: it lies inside its own anchor ${node.source}.`, node.range?.[0]);
      return null;
    }
    if (isScalar(node)) return this.readScalar(node, path);
    if (!isMap(node) && !isSeq(node)) return null;
    this.open.add(node);
    const value = isMap(node) ? this.readMap(node.items, path, depth) : this.readList(node.items, path, depth);
    this.open.delete(node);
    return value;
  }

  private readList(items: readonly unknown[], path: string, depth: number): YamlValue[] {
    return items.map((item, i) => {
      const itemPath = `${path}.${i}`;
      this.lines.set(itemPath, this.lineOf((item as Node)?.range?.[0]));
      return this.readNode(item, itemPath, depth + 1);
    });
  }

  private readMap(items: readonly unknown[], path: string, depth: number): Tree {
    const tree: Tree = {};
    const merged: Tree = {};
    for (const item of items) {
      if (!isPair(item)) continue;
      const key = isScalar(item.key) ? String(item.key.value) : undefined;
      const offset = (item.key as Node)?.range?.[0];
      if (key === undefined || key === "__proto__") {
        this.fail(`Cannot read a key under ${path || "the root"}: it is not a plain name.`, offset);
        continue;
      }
      const itemPath = path === "" ? joinPath(key) : `${path}.${joinPath(key)}`;
      this.lines.set(itemPath, this.lineOf(offset));
      const value = this.readNode(item.value, itemPath, depth + 1);
      if (key === "<<") this.merge(merged, { value, offset });
      else tree[key] = value;
    }
    return { ...merged, ...tree };
  }

  /** `<<` takes a map, or a list of maps of which the first wins. */
  private merge(into: Tree, { value, offset }: { value: YamlValue; offset: number | undefined }): void {
    if (value === null) return;
    const maps = [value].flat();
    if (maps.every((map) => typeof map === "object" && map !== null)) Object.assign(into, ...maps.toReversed());
    else this.fail("Cannot merge with <<: it takes a map or a list of maps.", offset);
  }

  private readScalar(node: Scalar, path: string): YamlValue {
    const { value, source = "" } = node;
    if (/^[-+]?\d+$/.test(source) && typeof value === "number" && !Number.isSafeInteger(value)) {
      this.fail(`Cannot read ${path}: beyond 2^53 the number is not exact (${source}). Quote it.`, node.range?.[0]);
    }
    if (value === null || ["string", "number", "boolean"].includes(typeof value)) return value as YamlValue;
    if (value !== undefined)
      this.fail(`Cannot read ${path}: it is not a plain value (${String(value)}).`, node.range?.[0]);
    return null;
  }

  private lineOf(offset: number | undefined): number {
    return offset === undefined ? 1 : this.counter.linePos(offset).line;
  }

  private fail(message: string, offset?: number): void {
    this.problems.push({ severity: "error", message, file: this.file, line: this.lineOf(offset) });
  }
}

function isNestedBeyond(text: string, most: number): boolean {
  let open = 0;
  for (const [mark] of text.matchAll(/[[{\]}]/g)) {
    open = mark === "[" || mark === "{" ? open + 1 : Math.max(0, open - 1);
    if (open > most) return true;
  }
  return text.split("\n").some((line) => (/^(?:[-?:] *)+/.exec(line.trimStart())?.[0].length ?? 0) > most);
}

/** The node of each alias: the last one before it with its anchor. */
function targetsIn(document: Document.Parsed): Map<Node, Node> {
  const anchors = new Map<string, Node>();
  const targets = new Map<Node, Node>();
  visit(document, {
    Node(_, node) {
      if (isAlias(node)) {
        const target = anchors.get(node.source);
        if (target) targets.set(node, target);
      } else if (node.anchor) anchors.set(node.anchor, node);
    },
  });
  return targets;
}

function lowerFirst(text: string): string {
  return text.charAt(0).toLowerCase() + text.slice(1);
}
