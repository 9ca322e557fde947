/**
 * Ctrl-C, SIGTERM, and errors that nothing caught: what they do to a command. The first signal asks the command to end:
 * its `AbortSignal` aborts. The second ends the process, after work that would be lost; the third at once. watchdog.ts
 * sees to both where JavaScript does not yield.
 */
import { setMaxListeners } from "node:events";
import { stackOf } from "../../leaves/errors.ts";
import { EXIT_FAILED, Fault, Interruption, signalStatus } from "./exit.ts";
import { answerSignal, endingSignal } from "./watchdog.ts";

/** Less than the watchdog waits after the second signal. */
const FINISHING_MS = 900;
/** Time that an error which nothing caught leaves a command to save its work. */
const SAVING_MS = 60_000;

export interface Signals {
  /** Aborts with an {@link Interruption} or a {@link Fault}. */
  readonly signal: AbortSignal;
  /** Names work that the second signal waits for, at most {@link FINISHING_MS}. */
  finishing(work: Promise<unknown>): void;
}

/** Listens to this process's signals and uncaught errors. @param say prints a message for people. */
export function listenToSignals(say: (text: string) => void): Signals {
  const interrupt = new AbortController();
  // Many parts of a command listen to it for as long as the command runs: no leak.
  setMaxListeners(0, interrupt.signal);
  let finishing: Promise<unknown> | undefined;
  const onSignal = (signal: NodeJS.Signals) => {
    answerSignal();
    if (!interrupt.signal.aborted) return interrupt.abort(new Interruption(signal));
    const end = () => process.exit(signalStatus(signal));
    if (!finishing) end();
    setTimeout(end, FINISHING_MS);
    finishing?.then(end, end);
    finishing = undefined;
  };
  const onFault = (error: unknown) => {
    say(`grpu: an uncaught error ends the command: ${stackOf(error)}\n`);
    if (interrupt.signal.reason instanceof Fault) process.exit(EXIT_FAILED);
    interrupt.abort(new Fault("An error that nothing caught"));
    setTimeout(() => process.exit(EXIT_FAILED), SAVING_MS).unref();
  };
  process.on("uncaughtException", onFault);
  process.on("unhandledRejection", onFault);
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  // The watchdog threw the main thread out of code that did not yield: the process may end before it sees the signal.
  process.on("exit", () => {
    const number = endingSignal();
    if (number !== undefined) process.exitCode = 128 + number;
  });
  return {
    signal: interrupt.signal,
    finishing(work) {
      finishing = work;
    },
  };
}
