/**
 * Renders chat templates with limits: a template comes with a downloaded model, and may loop forever or grow without
 * bound. The interpreter counts its work, so the limits hold in Node, Deno and pages without a thread, and the same
 * conversation always has the same outcome.
 */
import { Environment, Interpreter, parse, Template, tokenize } from "@huggingface/jinja";
import { ConfigError } from "../../errors.ts";

export interface TemplateLimits {
  /** Characters of the template. */
  readonly source: number;
  /** Evaluations of expressions and statements; a list counts by its length. */
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
/** Cost of one iteration of a loop, because the library makes several objects for it. */
const LOOP_STEPS = 10;

/** Parses a template. @throws ConfigError for invalid Jinja. */
export function compileTemplate(
  source: string,
  limits: Partial<TemplateLimits> = {},
): (values: Readonly<Record<string, unknown>>) => string {
  const bounds = { ...LIMITS, ...limits };
  const program = refusing("read the chat template", () => {
    if (source.length > bounds.source) throw new Error(`it holds ${source.length} characters`);
    return parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }));
  });
  return (values) =>
    refusing("format the conversation with the chat template", () => {
      const scope = globals(bounds);
      for (const [name, value] of Object.entries(values)) scope.set(name, value);
      return String(new Bounded(scope, bounds).run(program).value);
    });
}

// The library's types do not resolve outside a bundler.
interface Evaluated {
  readonly type: string;
  readonly value: unknown;
}
interface Statement {
  readonly type: string;
  readonly iterable?: { readonly lhs?: object };
}
interface Scope {
  set(name: string, value: unknown): void;
}
const Scopes = Environment as unknown as new () => Scope;
const Base = Interpreter as unknown as new (
  scope: Scope,
) => { run(program: unknown): Evaluated; evaluate(statement: Statement, scope: Scope): Evaluated };

class Bounded extends Base {
  private readonly limits: TemplateLimits;
  private readonly started = performance.now();
  private steps = 0;
  private nextLook = 0;
  /** Length of each value as text, in characters. Lists share items, so a small one can print without end. */
  private readonly sizes = new WeakMap<Evaluated, number>();
  /** The expressions that loops iterate over, with and without an `if` after them. */
  private readonly iterables = new WeakSet<object>();

  constructor(scope: Scope, limits: TemplateLimits) {
    super(scope);
    this.limits = limits;
  }

  override evaluate(statement: Statement, scope: Scope): Evaluated {
    this.spend(1);
    if (statement?.iterable) this.iterables.add(statement.iterable.lhs ?? statement.iterable);
    const result = super.evaluate(statement, scope);
    const { value } = result;
    if (typeof value === "string" || Array.isArray(value)) this.spend(value.length / STEP_LENGTH);
    if (this.iterables.has(statement)) this.spend(LOOP_STEPS * countOf(value));
    if (this.sizeOf(result).size > this.limits.length) throw tooLong(this.limits);
    return result;
  }

  private spend(steps: number): void {
    this.steps += steps;
    if (this.steps > this.limits.steps) throw new Error(`it takes more than ${this.limits.steps} steps`);
    if (this.steps < this.nextLook) return;
    this.nextLook = this.steps + STEPS_BETWEEN_LOOKS;
    if (performance.now() - this.started > this.limits.ms)
      throw new Error(`it takes longer than ${this.limits.ms / 1000} s`);
  }

  /** `isFixed` is false for values that contain a namespace, which may still change. */
  private sizeOf(of: Evaluated): { size: number; isFixed: boolean } {
    const { value, type } = of;
    if (typeof value === "string") return { size: value.length, isFixed: true };
    const parts = Array.isArray(value) ? value : value instanceof Map ? value.values() : [];
    const known = this.sizes.get(of);
    if (known !== undefined) return { size: known, isFixed: true };
    let size = 1;
    let isFixed = type !== "NamespaceValue";
    for (const part of parts) {
      this.spend(1);
      const inner = this.sizeOf(part);
      size += inner.size + 1;
      isFixed &&= inner.isFixed;
      if (size > this.limits.length) throw tooLong(this.limits);
    }
    if (isFixed && typeof value === "object" && value !== null) this.sizes.set(of, size);
    return { size, isFixed };
  }
}

function countOf(value: unknown): number {
  if (Array.isArray(value)) return value.length;
  return value instanceof Map ? value.size : 0;
}

function tooLong({ length }: Pick<TemplateLimits, "length">): Error {
  return new Error(`it makes a text or a list of more than ${length} characters or items`);
}

/** Jinja's globals as the library defines them, with lists of bounded length. */
function globals({ length }: TemplateLimits): Scope {
  const scope = new Scopes();
  const values = { true: true, false: false, none: null, True: true, False: false, None: null };
  for (const [name, value] of Object.entries(values)) scope.set(name, value);
  scope.set("raise_exception", (message: string) => {
    throw new Error(message);
  });
  scope.set("strftime_now", (format: string) => new Template("{{ strftime_now(format) }}").render({ format }));
  scope.set("range", (...bounds: number[]) => range(bounds, length));
  return scope;
}

function range(bounds: readonly number[], most: number): number[] {
  const numbers = bounds.filter((it) => typeof it === "number");
  const [start, stop, step = 1] = numbers.length > 1 ? numbers : [0, ...numbers];
  if (stop === undefined || step === 0) throw new Error("range takes one to three numbers, and a step other than 0");
  const length = Math.max(Math.ceil((stop - start!) / step), 0);
  if (!(length <= most)) throw tooLong({ length: most });
  return Array.from({ length }, (_, i) => start! + i * step);
}

function refusing<T>(what: string, run: () => T): T {
  try {
    return run();
  } catch (cause) {
    throw new ConfigError(`Cannot ${what}: ${(cause as Error).message}.`, { path: "chat_template" });
  }
}
