/** The parts of tokenizer.json, as the `tokenizers` library writes them. */

/** One step of a normalizer, a pre-tokenizer, a post-processor or a decoder: its `type` and its settings. */
export interface TokenizerStep {
  readonly type: string;
  readonly [setting: string]: unknown;
}

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special?: boolean;
  /** Not inside a word. */
  readonly single_word?: boolean;
  /** Takes the white space before it. */
  readonly lstrip?: boolean;
  readonly rstrip?: boolean;
  /** Sought in the normalized text. Default: not `special`. */
  readonly normalized?: boolean;
}

export interface TokenizerJson {
  readonly normalizer?: TokenizerStep | null;
  readonly pre_tokenizer?: TokenizerStep | null;
  readonly post_processor?: TokenizerStep | null;
  readonly decoder?: TokenizerStep | null;
  readonly model: Readonly<Record<string, unknown>>;
  readonly added_tokens?: readonly AddedToken[];
}

/** A step and the steps within it, one after another. */
export function flattenSteps(step: TokenizerStep | null | undefined, inner: string): TokenizerStep[] {
  if (!step) return [];
  if (step.type !== "Sequence") return [step];
  return ((step[inner] ?? []) as TokenizerStep[]).flatMap((each) => flattenSteps(each, inner));
}

/** A setting that is true or false. */
export function flag(step: TokenizerStep, name: string, fallback: boolean): boolean {
  const value = step[name] ?? fallback;
  if (typeof value === "boolean") return value;
  throw new Error(`${step.type}: ${name} must be true or false (${JSON.stringify(value)})`);
}

export function text(step: TokenizerStep, name: string, fallback?: string): string {
  const value = step[name] ?? fallback;
  if (typeof value === "string") return value;
  throw new Error(`${step.type}: ${name} must be a text (${JSON.stringify(value)})`);
}

/** One of `allowed`. */
export function choiceOf<T extends string>(step: TokenizerStep, name: string, allowed: readonly T[], fallback?: T): T {
  const value = text(step, name, fallback) as T;
  if (allowed.includes(value)) return value;
  throw new Error(`${step.type}: ${name} must be one of ${allowed.join(", ")} (${JSON.stringify(value)})`);
}
