/** The exit statuses of every command, and which error ends with which. */
import { constants } from "node:os";
import { ConfigError, fileError, type InputKind } from "../../leaves/errors.ts";

/** The command did what it was asked to. */
export const EXIT_OK = 0;
/** It failed while it ran, or compared files differ. */
export const EXIT_FAILED = 1;
/** The command line breaks a rule. */
export const EXIT_USAGE = 2;
/** A setting breaks a rule. */
export const EXIT_CONFIG = 3;
/** A file cannot be read or written, or what it holds breaks a rule. */
export const EXIT_DATA = 4;
/** Ctrl-C, as shells report it. */
export const EXIT_INTERRUPTED = signalStatus("SIGINT");

/** Every status with its meaning, as `--help` and the documentation print it. */
export const EXITS: readonly (readonly [status: string, meaning: string])[] = [
  [String(EXIT_OK), "done"],
  [String(EXIT_FAILED), "failed while it ran; of config diff: the files differ"],
  [String(EXIT_USAGE), "usage: the command line breaks a rule"],
  [String(EXIT_CONFIG), "config: a setting breaks a rule"],
  [String(EXIT_DATA), "data: a file cannot be read or written, or what it holds breaks a rule"],
  ["128 + n", "ended by signal n: 130 after Ctrl-C, 143 after SIGTERM"],
];

const OF_INPUT: Readonly<Record<InputKind, number>> = {
  usage: EXIT_USAGE,
  config: EXIT_CONFIG,
  data: EXIT_DATA,
  code: EXIT_FAILED,
};

/** Reason of an aborted `Io.signal`: a signal of the operating system. */
export class Interruption extends Error {
  override readonly name = "Interruption";
  readonly status: number;
  constructor(signal: NodeJS.Signals) {
    super(`Interrupted by ${signal}`);
    this.status = signalStatus(signal);
  }
}

/** 128 plus the number of the signal. */
export function signalStatus(signal: NodeJS.Signals): number {
  return 128 + constants.signals[signal];
}

/** The status of a command that `io.signal` ended. */
export function interruptedStatus({ reason }: AbortSignal): number {
  if (reason instanceof Interruption) return reason.status;
  return reason instanceof Fault ? EXIT_FAILED : EXIT_INTERRUPTED;
}

/** Reason of an aborted `Io.signal`: an error that nothing caught. The error has been printed. */
export class Fault extends Error {
  override readonly name = "Fault";
}

/** The status of a command that threw. */
export function failedStatus(error: unknown): number {
  const ours = error instanceof ConfigError ? error : fileError(error);
  return ours ? OF_INPUT[ours.kind] : EXIT_FAILED;
}
