/** What somebody set, in the names of their system: from YAML, from `key=value` lines, or from a shell script. */
import { isMap, isPair, isScalar, isSeq, LineCounter, type Node, parseDocument } from "yaml";
import { parseOverride } from "../override.ts";
import type { Problem } from "../problem.ts";
import { readYaml } from "../read.ts";
import { joinPath, leaves, type Value } from "../tree.ts";
import { deepLeaves, HOME } from "./build.ts";
import { type ShellWord, shellWords } from "./shell.ts";

export const SYSTEMS = ["verl", "rllm", "trinity"] as const;
export type System = (typeof SYSTEMS)[number];

export interface SourceValue {
  readonly value: Value;
  readonly file: string;
  readonly line?: number;
  readonly comment?: Comment;
}

export interface Comment {
  /** Lines above the setting, as the YAML library keeps them (each with its leading space). */
  readonly before?: string;
  /** On the setting's own line. */
  readonly inline?: string;
}

export interface Source {
  readonly system: System;
  readonly values: Map<string, SourceValue>;
  readonly problems: Problem[];
  /** Comment at the head of the file. */
  readonly head?: string;
}

export interface SourceFile {
  readonly name: string;
  readonly text: string;
}

/**
 * Reads the settings of several files, a later one winning. YAML, `key=value` lines and shell scripts may be mixed.
 * Interpolations stay as they are written; `$HOME` in a script becomes `${oc.env:HOME}`.
 */
export function readSource(files: readonly SourceFile[], system: System): Source {
  const values = new Map<string, SourceValue>();
  const problems: Problem[] = [];
  let head: string | undefined;
  for (const file of files) {
    if (isYaml(file)) head ??= readYamlSource(file, { values, problems });
    else readOverrideSource(file, { values, problems });
  }
  return { system, values, problems, head };
}

function isYaml({ name, text }: SourceFile): boolean {
  if (/\.ya?ml$/.test(name)) return true;
  if (/\.(sh|bash|args|txt)$/.test(name)) return false;
  return /^[\w-]+:(\s|$)/m.test(text) && !/^\s*[+~]*[\w./@-]+=/m.test(text);
}

type Into = Pick<Source, "values" | "problems">;

function readYamlSource({ name, text }: SourceFile, { values, problems }: Into): string | undefined {
  const read = readYaml(text, name);
  problems.push(...read.problems);
  const { comments, head } = readComments(text);
  const { defaults: _, ...tree } = read.tree;
  for (const [path, value] of [...leaves(tree)].flatMap(([path, value]) => [...deepLeaves(path, value)])) {
    values.set(path, { value, file: name, line: read.lines.get(path), comment: comments.get(path) });
  }
  return head;
}

function readOverrideSource({ name, text }: SourceFile, { values, problems }: Into): void {
  for (const { text: word, line } of overrideWords(text)) {
    try {
      const override = parseOverride(
        word.replace(/\$HOME\b|\$\{HOME\}/g, HOME).replace(/^--(?=[\w.]+=)/, ""),
      );
      if (override.kind === "delete") values.delete(override.key);
      else if (override.kind !== "group")
        values.set(override.key, { value: override.value ?? null, file: name, line });
    } catch (error) {
      problems.push({ severity: "error", message: (error as Error).message, file: name, line });
    }
  }
}

const LINE_OF_ARGS = /^[+~]*[\w./@-]+(=.*)?$/;

/** One override a line where every line is one; else the words of a shell script that look like overrides. */
function overrideWords(text: string): ShellWord[] {
  const lines = text.split("\n").map((line, i) => ({ text: line.trim(), line: i + 1 }));
  const meant = lines.filter((line) => line.text !== "" && !line.text.startsWith("#"));
  const isArgs = meant.every((line) => LINE_OF_ARGS.test(line.text) && !line.text.endsWith("\\"));
  if (isArgs && meant.some((line) => line.text.includes(".")))
    return meant.filter((line) => /^~|=/.test(line.text));
  return shellWords(text).filter(
    (word) => /^(\+\+?|~|--)?[A-Za-z_][\w./@-]*=/.test(word.text) && word.text.includes("."),
  );
}

/** Comments by the path of the setting they stand at. */
export function readComments(text: string): { comments: Map<string, Comment>; head?: string } {
  const document = parseDocument(text, { lineCounter: new LineCounter(), prettyErrors: false });
  const comments = new Map<string, Comment>();
  const add = (path: string, comment: Comment) => {
    if (comment.before || comment.inline)
      comments.set(path, { ...comments.get(path), ...dropEmpty(comment) });
  };
  const walk = (node: unknown, path: string, inherited?: string | null) => {
    if (isMap(node)) {
      let pending = joinComments(inherited, node.commentBefore);
      for (const item of node.items) {
        if (!isPair(item) || !isScalar(item.key)) continue;
        const itemPath =
          path === "" ? joinPath(String(item.key.value)) : `${path}.${joinPath(String(item.key.value))}`;
        const before = joinComments(pending, (item.key as Node).commentBefore);
        pending = undefined;
        const value = item.value as Node | null;
        if (isMap(value)) walk(value, itemPath, before);
        else {
          add(itemPath, { before, inline: value?.comment ?? undefined });
          if (isSeq(value)) for (const [i, entry] of value.items.entries()) walk(entry, `${itemPath}.${i}`);
        }
      }
    }
  };
  walk(document.contents, "");
  return { comments, head: document.commentBefore ?? undefined };
}

function joinComments(...parts: readonly (string | null | undefined)[]): string | undefined {
  return parts.filter(Boolean).join("\n") || undefined;
}

function dropEmpty(comment: Comment): Comment {
  return Object.fromEntries(Object.entries(comment).filter(([, text]) => text));
}
