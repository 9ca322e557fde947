/** Prints a configuration as YAML or JSON: secrets masked, origins of values on request. */
import { Document } from "yaml";
import { inline, inlineNumber, inlineText } from "./fields/render.ts";
import { maskTree } from "./secret.ts";
import { type Origins, originOf } from "./yaml/layer.ts";
import { isTree, joinPath, leaves, type Tree, type YamlValue } from "./yaml/tree.ts";

/** A tree as YAML that every YAML 1.1 and 1.2 reader reads back the same. */
export function toYaml(tree: Tree): string {
  if (Object.keys(tree).length === 0) return "{}\n";
  const lines: string[] = [];
  writeSection(tree, "", lines);
  return `${lines.join("\n")}\n`;
}

function writeSection(section: Tree, indent: string, lines: string[]): void {
  for (const key of Object.keys(section)) {
    const value = section[key]!;
    if (isTree(value) && Object.keys(value).length > 0) {
      lines.push(`${indent}${inlineText(key)}:`);
      writeSection(value, `${indent}  `, lines);
    } else lines.push(`${indent}${inlineText(key)}: ${inline(value)}`);
  }
}

/** The same as a document, for adding comments; each section in a list gets its own line. */
export function toDocument(tree: Tree): Document {
  const options = { version: "1.1", schema: "yaml-1.1", aliasDuplicateObjects: false } as const;
  return new Document(withPortableNumbers(tree), { ...options, customTags: portableNumbers });
}

class PortableNumber {
  readonly text: string;
  constructor(value: number) {
    this.text = inlineNumber(value);
  }
}

/** Numbers are written by `inlineNumber`: PyYAML needs `1.0e-06`, and would read `1e-6` as text. */
const portableNumbers = (tags: unknown[]) =>
  [
    {
      tag: "tag:yaml.org,2002:float",
      identify: (value: unknown) => value instanceof PortableNumber,
      default: true,
      resolve: () => undefined,
      stringify: ({ value }: { value: unknown }) => (value as PortableNumber).text,
    },
    ...tags,
  ] as never;

function withPortableNumbers(value: YamlValue): unknown {
  if (typeof value === "number") return new PortableNumber(value);
  if (Array.isArray(value)) return value.map(withPortableNumbers);
  if (!isTree(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withPortableNumbers(item)]));
}

export interface ShowOptions {
  readonly format?: "yaml" | "json";
  readonly origins?: Origins | undefined;
}

/** Text of a configuration for `config show`. With `origins`, every value says where it came from. */
export function showConfig(config: Tree, { format = "yaml", origins }: ShowOptions = {}): string {
  const masked = maskTree(config);
  if (format === "json") {
    const shown = origins ? withOrigins(masked, origins) : masked;
    return `${JSON.stringify(shown, nonFiniteToText, 2)}\n`;
  }
  return origins ? yamlWithOrigins(masked, origins) : toYaml(masked);
}

function withOrigins(tree: Tree, origins: Origins): Record<string, unknown> {
  const shown: Record<string, unknown> = {};
  for (const [path, value] of leaves(tree)) shown[path] = { value, origin: originOf(origins, path)?.text ?? "default" };
  return shown;
}

function nonFiniteToText(_key: string, value: unknown): unknown {
  return typeof value === "number" && !Number.isFinite(value) ? inlineNumber(value) : value;
}

/** The YAML of `toYaml` with an aligned `# origin` after each leaf. */
function yamlWithOrigins(tree: Tree, origins: Origins): string {
  const rows: { text: string; origin?: string }[] = [];
  const write = (section: Tree, prefix: string, indent: string) => {
    for (const key of Object.keys(section)) {
      const path = prefix === "" ? joinPath(key) : `${prefix}.${joinPath(key)}`;
      const value = section[key];
      if (isTree(value) && Object.keys(value).length > 0) {
        rows.push({ text: `${indent}${toYaml({ [key]: 0 }).slice(0, -4)}:` });
        write(value, path, `${indent}  `);
        continue;
      }
      const text = indent + toYaml({ [key]: value! }).trimEnd();
      rows.push({ text, origin: originOf(origins, path)?.text ?? "default" });
    }
  };
  write(tree, "", "");
  const width = Math.min(60, Math.max(...rows.filter((row) => row.origin).map((row) => row.text.length)));
  const lines = rows.map(({ text, origin }) => (origin ? `${text.padEnd(width)}  # ${origin}` : text));
  return `${lines.join("\n")}\n`;
}
