/** The thread of watchdog.ts. */
import { writeSync } from "node:fs";
import { Session } from "node:inspector";
import { constants } from "node:os";
import { workerData } from "node:worker_threads";

type OnSignal = (number: number) => void;

/** Node's binding of libuv's signals: the runtime's public interface has them on the main thread only. */
interface SignalBinding {
  readonly Signal: new () => { onsignal: OnSignal; start(number: number): number };
}

interface DenoSignals {
  addSignalListener(signal: string, onSignal: () => void): void;
}

/** The main thread ends by itself within this time, when its JavaScript yields. */
const GRACE_MS = 1000;
const SIGNALS = ["SIGINT", "SIGTERM"] as const;

/** Signals that the main thread has handled; the number of the signal that shall end the process. */
const shared = workerData as Int32Array;
const deno = (globalThis as { Deno?: DenoSignals }).Deno;
let seen = 0;

function onSignal(number: number): void {
  seen++;
  if (seen === 1) setTimeout(advise, GRACE_MS);
  if (seen !== 2) return;
  Atomics.store(shared, 1, number);
  setTimeout(interrupt, GRACE_MS);
}

function advise(): void {
  if (seen > 1 || Atomics.load(shared, 0) > 0) return;
  writeSync(2, "\ngrpu: a function does not return; press Ctrl-C again to end the process without saving\n");
}

/** Throws the main thread out of whatever it runs, so that it sees the signals; then ends the process. */
function interrupt(): void {
  setTimeout(end, GRACE_MS);
  // Deno's inspector waits for the very thread that does not yield.
  if (deno) return;
  try {
    const session = new Session();
    session.connectToMainThread();
    session.post("Runtime.terminateExecution");
    session.disconnect();
  } catch {
    // A runtime without an inspector.
  }
}

function end(): void {
  writeSync(2, "grpu: the process does not react to signals and is killed\n");
  process.kill(process.pid, "SIGKILL");
}

function listen(): void {
  if (deno) {
    // There a listener alone does not keep the thread.
    setInterval(() => {}, 2 ** 31 - 1);
    for (const signal of SIGNALS) deno.addSignalListener(signal, () => onSignal(constants.signals[signal]));
    return;
  }
  process.noDeprecation = true;
  const { Signal } = (process as unknown as { binding(name: string): SignalBinding }).binding("signal_wrap");
  for (const signal of SIGNALS) {
    const handle = new Signal();
    handle.onsignal = onSignal;
    handle.start(constants.signals[signal]);
  }
}

listen();
