/** The outside world of a real process: streams, signals, environment. */

import { stackOf } from "../../errors.ts";
import { forTerminal } from "../../log/terminal.ts";
import type { Io } from "../command.ts";
import { showLoading } from "../run/loading.ts";
import { EXIT_FAILED, Fault, Interruption, signalStatus } from "./exit.ts";
import { answerSignal, endingSignal, startWatchdog } from "./watchdog.ts";

const DEFAULT_COLUMNS = 100;
/** Less than the watchdog waits after the second signal. */
const FINISHING_MS = 900;

/** What an error that nothing caught leaves a command to save its work. */
const SAVING_MS = 60_000;

/** Listens for Ctrl-C: the first asks the command to end, the second ends the process. Errors that nothing caught end it too. */
export function processIo(): Io {
  const { env, stderr, stdout, stdin } = process;
  const interrupt = new AbortController();
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
    stderr.write(forTerminal(`grpu: an error that nothing caught ends the command: ${stackOf(error)}\n`));
    if (interrupt.signal.reason instanceof Fault) process.exit(EXIT_FAILED);
    interrupt.abort(new Fault("An error that nothing caught"));
    setTimeout(() => process.exit(EXIT_FAILED), SAVING_MS).unref();
  };
  process.on("uncaughtException", onFault);
  process.on("unhandledRejection", onFault);
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
  // Nobody reads the messages any more; the work goes on.
  stderr.on("error", () => {});
  const isTerminal = stderr.isTTY === true && env.TERM !== "dumb";
  const io: Io = {
    begin() {
      startWatchdog();
      showLoading(io);
    },
    // What a program reads goes through as it is.
    out: (text) => void stdout.write(stdout.isTTY ? forTerminal(text) : text),
    err: (text) => void stderr.write(forTerminal(text)),
    isTerminal,
    color: isTerminal && !env.NO_COLOR,
    get columns() {
      return stderr.columns ?? stdout.columns ?? DEFAULT_COLUMNS;
    },
    env,
    signal: interrupt.signal,
    finishing(work) {
      finishing = work;
    },
    async stdin() {
      const parts: Buffer[] = [];
      for await (const part of stdin) parts.push(part as Buffer);
      return Buffer.concat(parts).toString("utf8");
    },
  };
  return io;
}
