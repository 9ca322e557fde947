/** The words of a command that starts a run: its program, its configuration file, its overrides. */
import type { Item } from "./text.ts";

const OVERRIDE = /^(?:\+\+?|~|--)?[A-Za-z_][\w./@-]*=/;
/** Programs whose arguments only look like overrides. */
const OTHER_PROGRAMS = /^(sed|awk|grep|egrep|rg|find|curl|wget|pip3?|git|docker|conda|uv|apt|apt-get|make)$/;

/** True for a command with overrides: at least one `section.key=value`. */
export function isLaunch(words: readonly Item[]): boolean {
  if (OTHER_PROGRAMS.test(words[0]?.text ?? "")) return false;
  return words.some(({ text }) => OVERRIDE.test(text) && keyOf(text).includes(".") && !text.startsWith("--"));
}

function keyOf(text: string): string {
  return text.slice(0, text.indexOf("=")).replace(/^[+~-]+/, "");
}

export interface LaunchedProgram {
  /** `verl.trainer.main_ppo`, or the path of a script; undefined where the words begin with overrides. */
  readonly name?: string | undefined;
  /** Words that follow the program. */
  readonly words: readonly Item[];
}

/** Splits a command at its program: words before it belong to `torchrun`, `ray job submit` and the like. */
export function programOf(words: readonly Item[]): LaunchedProgram {
  const first = words.findIndex(({ text }) => OVERRIDE.test(text) && !text.startsWith("-"));
  const before = first < 0 ? words : words.slice(0, first);
  const module = before.findIndex(({ text }) => text === "-m");
  const script = before.findIndex(({ text }) => /\.py$/.test(text));
  const at = module >= 0 ? module + 1 : script;
  if (at >= 0 && at < words.length) return { name: words[at]!.text, words: words.slice(at + 1) };
  const isNamed = first !== 0;
  return { name: isNamed ? words[0]?.text : undefined, words: words.slice(isNamed ? Math.max(first, 0) : 0) };
}

export interface LaunchArguments {
  readonly overrides: readonly Item[];
  /** `--config-name`, without its ending. */
  readonly configName?: Item | undefined;
  /** Words that are neither. */
  readonly others: readonly Item[];
}

const OPTIONS_WITH_VALUE = /^(--config-(?:name|path|dir)|-c[npd]|--package|-p|--info|-i)$/;

/** Splits what follows a program that reads its settings with Hydra. */
export function readArguments(words: readonly Item[]): LaunchArguments {
  const overrides: Item[] = [];
  const others: Item[] = [];
  let configName: Item | undefined;
  for (let i = 0; i < words.length; i++) {
    const { text, line } = words[i]!;
    const option = /^(--config-(?:name|path|dir)|-c[npd])=([\s\S]*)$/.exec(text);
    const isPair = OPTIONS_WITH_VALUE.test(text) && i + 1 < words.length;
    if (option || isPair) {
      const [name, value] = option ? [option[1], option[2]] : [text, words[++i]!.text];
      if (name === "--config-name" || name === "-cn") configName = { text: value!.replace(/\.ya?ml$/, ""), line };
    } else if (OVERRIDE.test(text) || /^~[\w./@-]+$/.test(text)) overrides.push(words[i]!);
    else others.push(words[i]!);
  }
  return { overrides, configName, others };
}
