/** The messages between this process and its judging thread. */

/** A function that a module registered. `environment` is the reward of an environment of its own. */
export interface RegisteredJudge {
  readonly kind: "reward" | "evaluator" | "environment";
  readonly name: string;
}

export interface JudgeCall {
  readonly id: number;
  readonly judge: RegisteredJudge;
  readonly args: readonly unknown[];
}

/** Message to the thread. */
export type Request = { readonly call: JudgeCall } | { readonly ping: number };

export interface Thrown {
  readonly name: string;
  readonly message: string;
  readonly stack?: string | undefined;
}

/** Message from the thread: a call begins, then ends with a value or an error. */
export type JudgeAnswer =
  | { readonly begun: number }
  | { readonly ended: number; readonly value: unknown }
  | { readonly ended: number; readonly failure: Thrown }
  | { readonly pong: number }
  | { readonly unusable: Thrown };

export function toThrown(error: unknown): Thrown {
  if (!(error instanceof Error)) return { name: "Error", message: String(error) };
  const { name, message, stack } = error;
  return { name, message, stack };
}

export function toError({ name, message, stack }: Thrown): Error {
  return Object.assign(new Error(message), { name, stack });
}
