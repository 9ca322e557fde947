/** Answers by the key of their request, so that a request that is sent again does its work once. */
import { Refusal } from "../../leaves/http/refusal.ts";

interface Answer {
  /** Fingerprint of the request's body. */
  readonly print: string;
  readonly text: Promise<string>;
}

interface ReadyAnswer extends Answer {
  readonly bytes: number;
  readonly readyAt: number;
}

export interface AnswersOptions {
  /** Largest total in bytes of all ready answers; beyond it the oldest go. */
  readonly bytes: number;
  /** How long a ready answer is kept, ms. */
  readonly keepMs: number;
}

/** Bytes of an entry without its text, about. */
const ENTRY_BYTES = 300;

/** Pending answers are shared and never dropped; ready ones are kept within a size and an age. */
export class Answers {
  private readonly options: AnswersOptions;
  private readonly pending = new Map<string, Answer>();
  /** Answers in the order in which they became ready. */
  private readonly ready = new Map<string, ReadyAnswer>();
  /** Held by ready answers, about: their text is mostly ASCII. */
  bytes = 0;
  /** Requests that were answered from here. */
  repeats = 0;

  constructor(options: AnswersOptions) {
    this.options = options;
  }

  /** The answer to a request that was sent before. @throws {Refusal} 409 for another body under its key */
  find(key: string, print: string): Promise<string> | undefined {
    const answer = this.pending.get(key) ?? this.ready.get(key);
    if (!answer) return undefined;
    if (answer.print !== print)
      throw new Refusal(
        409,
        `Cannot answer ${key}: another request was sent under the same id. Give each request an id of its own.`,
      );
    this.repeats++;
    return answer.text;
  }

  /** Keeps the answer that `make` gives. One that fails is not kept: the request may be sent again. */
  add(key: string, { print, make }: { readonly print: string; readonly make: () => Promise<string> }): Promise<string> {
    const answer: Answer = { print, text: make() };
    this.pending.set(key, answer);
    answer.text.then(
      (text) => this.keep(key, { ...answer, bytes: text.length + ENTRY_BYTES, readyAt: performance.now() }),
      () => this.pending.delete(key),
    );
    return answer.text;
  }

  /** Drops a ready answer, because its client has it. */
  forget(key: string): void {
    const answer = this.ready.get(key);
    this.ready.delete(key);
    this.bytes -= answer?.bytes ?? 0;
  }

  /** Drops what is too old. */
  expire(): void {
    const oldest = performance.now() - this.options.keepMs;
    for (const [key, { readyAt }] of this.ready) {
      if (readyAt >= oldest) return;
      this.forget(key);
    }
  }

  private keep(key: string, answer: ReadyAnswer): void {
    this.pending.delete(key);
    this.ready.set(key, answer);
    this.bytes += answer.bytes;
    for (const oldest of this.ready.keys()) {
      // The newest stays: its client has not read it yet.
      if (this.bytes <= this.options.bytes || oldest === key) return;
      this.forget(oldest);
    }
  }
}
