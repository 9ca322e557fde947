/** The outside world of a real process: streams, signals, environment. */

import type { Io } from "./command.ts";
import { Interruption, signalStatus } from "./exit.ts";
import { answerSignal, endingSignal, startWatchdog } from "./watchdog.ts";

const DEFAULT_COLUMNS = 100;

/** Listens for Ctrl-C: the first asks the command to end, the second ends the process. */
export function processIo(): Io {
  const interrupt = new AbortController();
  const onSignal = (signal: NodeJS.Signals) => {
    answerSignal();
    if (interrupt.signal.aborted) process.exit(signalStatus(signal));
    interrupt.abort(new Interruption(signal));
  };
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  // Thrown out of code that did not yield, the process may have nothing left to do before it sees the signals.
  process.on("exit", () => {
    const number = endingSignal();
    if (number !== undefined) process.exitCode = 128 + number;
  });
  // A reader that has seen enough (`| head`) is no error.
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code === "EPIPE") process.exit(0);
    throw error;
  });
  const { env, stderr, stdout, stdin } = process;
  const isTerminal = stderr.isTTY === true && env.TERM !== "dumb";
  return {
    begin: startWatchdog,
    out: (text) => void stdout.write(text),
    err: (text) => void stderr.write(text),
    isTerminal,
    color: isTerminal && !env.NO_COLOR,
    get columns() {
      return stderr.columns ?? stdout.columns ?? DEFAULT_COLUMNS;
    },
    env,
    signal: interrupt.signal,
    async stdin() {
      const parts: Buffer[] = [];
      for await (const part of stdin) parts.push(part as Buffer);
      return Buffer.concat(parts).toString("utf8");
    },
  };
}
