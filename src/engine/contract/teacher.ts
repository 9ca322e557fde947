/** The teacher of a distillation: it scores tokens that the student sampled. Tokens only, like the backend. */
import type { PackedTokens, TopTokens } from "./backend.ts";
import type { Tokenizer } from "./text.ts";

/** Choice of the tokens that a teacher scores. */
export interface TeacherOptions {
  /** Divides the logits, as it did when the student sampled. */
  readonly temperature: number;
  /** 1 where a value is wanted, [T]; the values of the other tokens may be 0. */
  readonly mask: Uint32Array;
  /** Ends requests to a service. */
  readonly signal?: AbortSignal | undefined;
}

/** A model that scores the student's tokens. */
export interface Teacher {
  /** Name for messages. */
  readonly name: string;
  /** Absent where it is the student's own, or only the service knows it: {@link Teacher.check} then compares. */
  readonly tokenizer?: Tokenizer | undefined;
  /** Longest sequence that it scores, tokens. */
  readonly contextLength: number;
  /** log p(tokens[t] | before), [T]. */
  logprobs(rows: PackedTokens, options: TeacherOptions): Promise<Float32Array>;
  /** The `k` most likely tokens in the place of each wanted one. Absent where a teacher does not report them. */
  top?(rows: PackedTokens, options: TeacherOptions & { readonly k: number }): Promise<TopTokens>;
  /**
   * Compares the tokens of a text with the student's, before the first step.
   * @throws ConfigError where they differ
   */
  check?(text: string, student: Tokenizer): Promise<void>;
  /** Makes it again after the loss of its device, which is open again. */
  recover?(): Promise<void>;
  close(): void;
}
