/** Reads settings under the names of their system: from YAML, `key=value` lines, or a shell script. */
import { isMap, isPair, isScalar, isSeq, LineCounter, type Node, parseDocument } from "yaml";
import { checkChoice } from "../../../train/config/hydra/groups.ts";
import { parseOverride } from "../../../train/config/hydra/override.ts";
import type { Problem } from "../../../train/config/problem.ts";
import { readYaml } from "../../../train/config/yaml/read.ts";
import { joinPath, leaves } from "../../../train/config/yaml/tree.ts";
import type { Comment, ConvertedSource, Note, SourceValue, TrainingSystem } from "../contract.ts";
import { readShell, type ShellOptions, type ShellWord } from "../shell/read.ts";
import { deepLeaves, HOME } from "../values.ts";
import { type ConfigBelow, configBelow, defaultsBelow, presetsIn, programProblem } from "./launched.ts";

export interface SourceFile {
  readonly name: string;
  readonly text: string;
}

export interface SourceReadOptions extends ShellOptions {
  /** Text of a file that ships with the package, for presets. */
  readonly readConfig?: ((name: string) => string | undefined) | undefined;
}

/**
 * Reads the settings of several files, a later one winning. YAML, `key=value` lines and shell scripts may be mixed.
 * Interpolations stay unchanged; `$HOME` in a script becomes `${oc.env:HOME}`.
 */
export function readSource(
  files: readonly SourceFile[],
  system: TrainingSystem,
  options: SourceReadOptions = {},
): ConvertedSource {
  const presets: Presets = { inFiles: false };
  const source = readFiles(files, system, { ...options, presets });
  // Overrides come after the file whose preset they replace.
  const isReplaced = presets.inFiles && presets.typed !== undefined;
  return isReplaced
    ? readFiles(files, system, { ...options, presets: { inFiles: false, instead: presets.typed } })
    : source;
}

function readFiles(
  files: readonly SourceFile[],
  system: TrainingSystem,
  { readConfig, presets, ...shell }: SourceReadOptions & { readonly presets: Presets },
): ConvertedSource {
  const into: Into = { values: new Map(), problems: [], notes: [], system, readConfig, presets };
  let head: string | undefined;
  const names: string[] = [];
  for (const file of files) {
    if (isYaml(file)) head ??= readYamlSource(file, into);
    else if (isArgs(file.text)) readArgs(file, into);
    else readScript(file, into, { names, ...shell });
    names.push(file.name);
  }
  const { values, problems, notes } = into;
  problems.push(...unreadProblems(values));
  return { system, values, problems, notes, head };
}

function isYaml({ name, text }: SourceFile): boolean {
  if (/\.ya?ml$/.test(name)) return true;
  if (/\.(sh|bash|args|txt)$/.test(name)) return false;
  return /^[\w-]+:(\s|$)/m.test(text) && !/^\s*[+~]*[\w./@-]+=/m.test(text);
}

interface Into extends Pick<ConvertedSource, "values" | "problems" | "system">, Pick<SourceReadOptions, "readConfig"> {
  readonly notes: Note[];
  readonly presets: Presets;
}

/** The presets that were met, and the one that replaces those of files. */
interface Presets {
  inFiles: boolean;
  /** The last `preset=NAME` of the overrides, without a plus. */
  typed?: string | undefined;
  readonly instead?: string | undefined;
}

function readYamlSource({ name, text }: SourceFile, into: Into): string | undefined {
  const { values, problems, system } = into;
  const read = readYaml(text, name);
  problems.push(...read.problems);
  const { comments, head } = readComments(text);
  // Hydra's own sections.
  const { defaults, hydra: _, ...tree } = read.tree;
  if (system !== "trinity") {
    const line = read.lines.get("defaults");
    putBelow(defaultsBelow(defaults, line), name, into);
  }
  // Trinity has no presets, and a list of that name in its files means nothing.
  const chosen = system === "trinity" ? { below: [], above: [] } : presetsIn(defaults);
  const lay = (some: readonly string[]) => {
    for (const preset of some) {
      into.presets.inFiles = true;
      putPreset(into.presets.instead ?? preset, { file: name, line: read.lines.get("defaults") }, into);
    }
  };
  lay(chosen.below);
  for (const [path, value] of [...leaves(tree)].flatMap(([path, value]) => [...deepLeaves(path, value)])) {
    values.set(path, { value, file: name, line: read.lines.get(path), comment: comments.get(path) });
  }
  lay(chosen.above);
  return head;
}

/** One override a line. */
function readArgs({ name, text }: SourceFile, into: Into): void {
  const words = text.split("\n").flatMap((raw, i): ShellWord[] => {
    const line = raw.trim();
    if (line === "" || line.startsWith("#")) return [];
    const word = line.replace(/\$HOME\b|\$\{HOME\}/g, HOME).replace(/^--(?=[\w.]+=)/, "");
    return /^~|=/.test(word) ? [{ text: word, line: i + 1 }] : [];
  });
  readOverrides(words, name, into);
}

const PRESET = /^(\+*)preset=(.*)$/;

/** Presets lie under all other overrides, wherever they stand. */
function readOverrides(words: readonly ShellWord[], file: string, into: Into): void {
  for (const { text, line } of words) {
    const [, sign, name] = PRESET.exec(text) ?? [];
    if (name === undefined) continue;
    if (sign === "") into.presets.typed = name;
    if (sign !== "" || name !== into.presets.instead) putPreset(name, { file, line }, into);
  }
  for (const word of words) if (!PRESET.test(word.text)) readOverride(word, file, into);
}

const LINE_OF_ARGS = /^[+~]*(--)?[\w./@-]+(=.*)?$/;

/** True where every line is one override. */
function isArgs(text: string): boolean {
  const lines = text.split("\n").map((line) => line.trim());
  const meant = lines.filter((line) => line !== "" && !line.startsWith("#"));
  const isEach = meant.every((line) => LINE_OF_ARGS.test(line) && !line.endsWith("\\"));
  // Lines of a script could be assignments, which have neither a dot in the name nor a plus.
  return isEach && meant.some((line) => line.includes(".") || line.startsWith("+") || PRESET.test(line));
}

/** The overrides of the one run that a shell script starts. */
function readScript(
  { name, text }: SourceFile,
  into: Into,
  { names, ...options }: ShellOptions & { readonly names: readonly string[] },
): void {
  const run = readShell(text, options);
  into.problems.push(...run.problems.map((problem) => ({ ...problem, file: name })));
  into.notes.push(...run.notes);
  if (run.problems.length > 0) return;
  const wrong = programProblem(run.program, into.system);
  if (wrong) {
    into.problems.push({ severity: "error", message: wrong, file: name, line: run.line });
    return;
  }
  const below = configBelow(run, { system: into.system, names });
  putBelow(below, name, into);
  const words = run.words.map((word) => ({ ...word, text: word.text.replace(/^--/, "") }));
  readOverrides(words, name, into);
}

function putBelow({ settings, note, problem }: ConfigBelow, file: string, { values, notes, problems }: Into): void {
  for (const [path, value] of settings) values.set(path, { value, file, line: note?.line });
  if (note) notes.push(note);
  if (problem) problems.push({ ...problem, file });
}

/** Lays the settings of `config/preset/NAME.yaml`, which are grpu's own, over those so far. */
function putPreset(name: string, at: { file: string; line?: number | undefined }, into: Into): void {
  const problem = checkChoice("preset", { choice: name, by: at.file, ...at });
  if (problem) {
    into.problems.push(problem);
    return;
  }
  const file = `preset/${name}.yaml`;
  const text = into.readConfig?.(file);
  if (text === undefined) {
    const message = `Cannot read config/${file}: the file is missing from the package. Install grpu again.`;
    into.problems.push({ severity: "error", message, ...at });
    return;
  }
  for (const [path, value] of leaves(readYaml(text, file).tree)) into.values.set(path, { value, ...at });
}

function readOverride(word: ShellWord, file: string, into: Into): void {
  const { values, problems, notes, system } = into;
  const { line, unread } = word;
  const key = /^[+~]*([^=]*)/.exec(word.text)?.[1] ?? "";
  if (unread !== undefined && !key.includes("?")) {
    values.set(key, { value: null, file, line, unread });
    return;
  }
  try {
    const override = parseOverride(word.text);
    if (override.kind === "group") {
      const path = groupSetting(override.key, system);
      if (path) values.set(path, { value: override.value ?? null, file, line });
      else
        notes.push({
          kind: "check",
          message: `${word.text} chooses another base configuration. Its settings are not read.`,
          line,
        });
      return;
    }
    if (override.kind === "delete") {
      if (!values.delete(override.key)) {
        notes.push({
          kind: "check",
          message: `${word.text} removes a default. The removal is not converted.`,
          line,
        });
      }
      return;
    }
    const isAdded = override.kind === "add" || override.kind === "force";
    values.set(override.key, { value: override.value ?? null, file, line, ...(isAdded ? { isAdded } : {}) });
  } catch (error) {
    problems.push({ severity: "error", message: (error as Error).message, file, line });
  }
}

/** The setting that is equivalent to a choice of a group. */
function groupSetting(group: string, system: TrainingSystem): string | undefined {
  if (group === "model_engine") return group;
  return system === "rllm" && group === "rllm/backend" ? "rllm.backend" : undefined;
}

/** One problem for each reason why settings are not known. */
function unreadProblems(values: ReadonlyMap<string, SourceValue>): Problem[] {
  const byReason = new Map<string, string[]>();
  for (const [path, { unread }] of values) {
    if (unread !== undefined) byReason.set(unread, [...(byReason.get(unread) ?? []), path]);
  }
  return [...byReason].map(([reason, paths]): Problem => {
    const first = values.get(paths[0]!);
    const more = paths.length > 3 ? ` and ${paths.length - 3} more` : "";
    const message =
      `Cannot read ${paths.slice(0, 3).join(", ")}${more}: the value depends on ${reason}. ` +
      `Give it after the script: ${paths[0]}=VALUE.`;
    return { severity: "error", message, path: paths[0], file: first?.file, line: first?.line };
  });
}

/** Comments by the path of their setting. */
export function readComments(text: string): { comments: Map<string, Comment>; head?: string | undefined } {
  const document = parseDocument(text, { lineCounter: new LineCounter(), prettyErrors: false });
  const comments = new Map<string, Comment>();
  const add = (path: string, comment: Comment) => {
    if (comment.before || comment.inline) comments.set(path, { ...comments.get(path), ...dropEmpty(comment) });
  };
  const walk = (node: unknown, path: string, inherited?: string | null) => {
    if (isMap(node)) {
      let pending = joinComments(inherited, node.commentBefore);
      for (const item of node.items) {
        if (!isPair(item) || !isScalar(item.key)) continue;
        const itemPath = path === "" ? joinPath(String(item.key.value)) : `${path}.${joinPath(String(item.key.value))}`;
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
