/** The time limit of an attempt. */
import { Termination } from "../../task/rollout.ts";

export interface Deadline {
  readonly signal: AbortSignal;
  /** Rejects with the signal's reason. */
  readonly passed: Promise<never>;
  stop(): void;
}

/** The longest delay of a timer; a later deadline never passes. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Aborts with a timeout after `seconds`, and with the reason of `outer` when that aborts. */
export function startDeadline(seconds: number, outer: AbortSignal): Deadline {
  const controller = new AbortController();
  const hasEnd = seconds * 1000 <= LONGEST_TIMER_MS;
  const timer = hasEnd ? setTimeout(() => controller.abort(new Termination("timeout")), seconds * 1000) : undefined;
  const followers = followersOf(outer);
  followers.add(controller);
  if (outer.aborted) controller.abort(outer.reason);
  const { signal } = controller;
  let stop = () => {};
  const passed = new Promise<never>((_, reject) => {
    const end = () => reject(signal.reason);
    signal.addEventListener("abort", end);
    if (signal.aborted) end();
    stop = () => {
      clearTimeout(timer);
      followers.delete(controller);
      signal.removeEventListener("abort", end);
    };
  });
  return { signal, passed, stop };
}

/**
 * Controllers that abort with a signal, behind one listener. Node warns of a leak at hundreds of listeners, and
 * `AbortSignal.any` does leak entries in a signal that lives as long as the run.
 */
const FOLLOWERS = new WeakMap<AbortSignal, Set<AbortController>>();

function followersOf(signal: AbortSignal): Set<AbortController> {
  const existing = FOLLOWERS.get(signal);
  if (existing) return existing;
  const followers = new Set<AbortController>();
  signal.addEventListener("abort", () => {
    for (const follower of followers) follower.abort(signal.reason);
  });
  FOLLOWERS.set(signal, followers);
  return followers;
}
