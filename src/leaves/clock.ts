/** Time, replaceable in tests. */
export interface Clock {
  /** Milliseconds. */
  now(): number;
  /** @throws the reason of the signal when it aborts. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

export const SYSTEM_CLOCK: Clock = {
  now: () => performance.now(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      const leave = () => {
        clearTimeout(timer);
        reject(signal!.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", leave);
        resolve();
      }, ms);
      if (signal?.aborted) leave();
      else signal?.addEventListener("abort", leave);
    }),
};
