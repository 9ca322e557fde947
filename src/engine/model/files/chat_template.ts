/**
 * Renders chat templates as transformers does, within limits: a template comes with a downloaded model, and may loop
 * forever or grow without bound. The evaluator counts its work, so the limits hold in Node, Deno and pages without a
 * thread, and the same conversation always has the same outcome.
 */

import { ConfigError } from "../../../leaves/errors.ts";
import { stringifyJson } from "../../../leaves/json.ts";
import type { RenderedChat } from "../../contract/text.ts";
import { strftime } from "./jinja/clock.ts";
import { renderTemplate } from "./jinja/evaluate.ts";
import { GENERATION } from "./jinja/lexer.ts";
import { parseTemplate } from "./jinja/parser.ts";
import { pythonStr, TextWriter } from "./jinja/print.ts";
import { type JinjaValue, memberOf, type PythonCallable, type WorkCounter } from "./jinja/value.ts";

export interface TemplateLimits {
  /** Characters of the template. */
  readonly source: number;
  /** Evaluations of expressions and statements; texts and lists count by their length. */
  readonly steps: number;
  /** Characters of any text, and items of any list, that the template makes. */
  readonly length: number;
  /** Catches slow steps; normally the other limits are reached first. */
  readonly ms: number;
}

/** Some seconds of work. Published templates take about 1,000 steps per message. */
const LIMITS: TemplateLimits = { source: 2 ** 20, steps: 5_000_000, length: 2 ** 24, ms: 5000 };
/** Steps between two readings of the clock. */
const STEPS_BETWEEN_LOOKS = 1000;
/** Characters of text, or items of a list, that count as one step. */
const STEP_LENGTH = 32;

export type ChatTemplate = (values: Readonly<Record<string, unknown>>) => RenderedChat;

/** Source of the template, and bounds on its work. */
export interface TemplateOptions {
  /** Named in errors. */
  readonly file?: string | undefined;
  readonly limits?: Partial<TemplateLimits>;
}

/** Parses a template. @throws ConfigError for invalid Jinja. */
export function compileTemplate(source: string, { file, limits = {} }: TemplateOptions = {}): ChatTemplate {
  const bounds = { ...LIMITS, ...limits };
  const at = { path: "chat_template", file };
  const program = refusing("read the chat template", at, () => {
    if (source.length > bounds.source) throw new Error(`it holds ${source.length} characters`);
    return parseTemplate(source);
  });
  return (values) =>
    refusing("format the conversation with the chat template", at, () => {
      const defined = Object.entries(values).filter(([, value]) => value !== undefined);
      const names = defined.map(([name]): [string, JinjaValue] => [name, memberOf(values, name)]);
      const render = (block: (out: TextWriter) => PythonCallable) => {
        const work = new Counter(bounds);
        const out = new TextWriter(work);
        renderTemplate(program, new Map([...globals(work), ...names, [GENERATION, block(out)]]), { work, out });
        return out.text();
      };
      const generated: [number, number][] = [];
      const text = render(noting(generated));
      if (!program.hasGenerationBlocks) return { text, generated };
      const marks = unusedCharacters(source + stringifyJson(values));
      const marked = unmarked(
        render(() => marking(marks)),
        marks,
      );
      // What reads the text of a block, as a filter around it, reads the marks too.
      return marked.text === text ? marked : { text, generated: within(generated, text.length) };
    });
}

/** Notes blocks as transformers does: from the end of what is written, wherever the block's text then goes. */
const noting =
  (generated: [number, number][]) =>
  (out: TextWriter): PythonCallable =>
  (_, named) => {
    const text = textOfBlock(named);
    generated.push([out.length, out.length + text.length]);
    return text;
  };

const textOfBlock = (named: ReadonlyMap<string, JinjaValue>) =>
  (named.get("caller") as PythonCallable)([], new Map()) as string;

const within = (spans: readonly [number, number][], length: number) =>
  spans.map(([start, end]): [number, number] => [Math.min(start, length), Math.min(end, length)]);

/** Surround the text of a generation block until the whole is rendered. */
interface Marks {
  readonly open: string;
  readonly close: string;
}

/** The private use area, U+E000 to U+F8FF: no template changes the case of these characters or strips them. */
const PRIVATE_USE = { first: 0xe000, last: 0xf8ff } as const;

/** Two characters that `text` does not hold. @throws where it holds all but one of the private use area. */
function unusedCharacters(text: string): Marks {
  const used = new Set(text.match(/[\uE000-\uF8FF]/g));
  const free: string[] = [];
  for (let code: number = PRIVATE_USE.first; code <= PRIVATE_USE.last && free.length < 2; code++) {
    const character = String.fromCharCode(code);
    if (!used.has(character)) free.push(character);
  }
  const [open, close] = free;
  if (open !== undefined && close !== undefined) return { open, close };
  throw new Error(
    `the messages hold ${used.size} private use characters, and two must be free to mark generation blocks`,
  );
}

const marking =
  ({ open, close }: Marks): PythonCallable =>
  (_, named) =>
    `${open}${textOfBlock(named)}${close}`;

function unmarked(marked: string, { open, close }: Marks): RenderedChat {
  const generated: [number, number][] = [];
  let text = "";
  let start: number | undefined;
  for (const part of marked.split(new RegExp(`(${open}|${close})`))) {
    if (part === open) start ??= text.length;
    else if (part !== close) text += part;
    else if (start !== undefined) {
      generated.push([start, text.length]);
      start = undefined;
    }
  }
  return { text, generated };
}

class Counter implements WorkCounter {
  private readonly limits: TemplateLimits;
  private readonly started = performance.now();
  private steps = 0;
  private nextLook = 0;

  constructor(limits: TemplateLimits) {
    this.limits = limits;
  }

  spend(steps: number): void {
    this.steps += steps;
    if (this.steps > this.limits.steps) throw new Error(`it takes more than ${this.limits.steps} steps`);
    if (this.steps < this.nextLook) return;
    this.nextLook = this.steps + STEPS_BETWEEN_LOOKS;
    if (performance.now() - this.started > this.limits.ms)
      throw new Error(`it takes longer than ${this.limits.ms / 1000} s`);
  }

  bound(length: number): void {
    const { length: most } = this.limits;
    if (!(length <= most)) throw new Error(`it makes a text or a list of more than ${most} characters or items`);
  }

  room(length: number): void {
    this.bound(length);
    this.spend(length / STEP_LENGTH);
  }
}

/** The global names that transformers gives its templates. */
function globals(work: WorkCounter): Map<string, JinjaValue> {
  return new Map<string, JinjaValue>([
    [
      "raise_exception",
      (args) => {
        throw new Error(pythonStr(only("raise_exception", args), work));
      },
    ],
    ["strftime_now", (args) => strftime(pythonStr(only("strftime_now", args), work), new Date())],
  ]);
}

function only(name: string, args: readonly JinjaValue[]): JinjaValue {
  const [value] = args;
  if (args.length === 1 && value !== undefined) return value;
  throw new Error(`${name} takes 1 argument (${args.length})`);
}

function refusing<T>(what: string, at: { path: string; file: string | undefined }, run: () => T): T {
  try {
    return run();
  } catch (cause) {
    throw new ConfigError(`Cannot ${what}: ${(cause as Error).message.replace(/\.$/, "")}.`, at);
  }
}
