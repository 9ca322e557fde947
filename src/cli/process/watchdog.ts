/**
 * Two Ctrl-C always end the process. A handler of signals runs only when JavaScript yields; a reward that never does
 * (`for (;;)`, a catastrophic regular expression) would leave `kill -9` alone. So a worker thread listens too, and ends
 * what the main thread does not.
 */
import { Worker } from "node:worker_threads";

/** Address of the worker beside this file, in the sources and in dist/. */
const WORKER = new URL(`./watchdog_worker${import.meta.url.slice(import.meta.url.lastIndexOf("."))}`, import.meta.url);

/** Seen by both threads: how many signals this one has handled, and the number of the signal that shall end the process. */
const shared = new Int32Array(new SharedArrayBuffer(8));

/** Answers a signal; the main thread's handler calls it. */
export function answerSignal(): void {
  Atomics.add(shared, 0, 1);
}

/** The number of the second signal; undefined before it came. */
export function endingSignal(): number | undefined {
  return Atomics.load(shared, 1) || undefined;
}

/** Starts the listening thread; it keeps no process alive. Where it cannot run, signals work as without it. */
export function startWatchdog(): void {
  const worker = new Worker(WORKER, {
    name: "watchdog",
    execArgv: [],
    workerData: shared,
    resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 4 },
  });
  worker.on("error", () => {});
  worker.unref();
}
