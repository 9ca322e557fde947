/** Follows a run that another process trains: its newest checkpoint, whenever there is one. */
import { statSync } from "node:fs";
import { join } from "node:path";
import { FolderCheckpoints } from "../../log/checkpoint/folder_checkpoints.ts";
import { damageOf } from "../../log/checkpoint/seal.ts";
import { WEIGHTS } from "../model/checkpoint_dir.ts";

export interface FollowOptions {
  /** The checkpoint in use. */
  readonly from: string;
  /** Takes a newer one. What it throws is logged once for each checkpoint, which is tried again after a pause. */
  readonly use: (dir: string) => Promise<void>;
  /** Name of the model, for the log. */
  readonly name: string;
  readonly log: (line: string) => void;
  /** 0: only when it is asked to look. */
  readonly everyMs: number;
}

export interface RunFollower {
  /** Looks now. It never rejects: what fails is logged. */
  look(): Promise<void>;
  /** Uses the newest checkpoint now, also one that waits for its next try. @throws where that cannot be used */
  reload(): Promise<void>;
  /** Waits for a look that runs. */
  stop(): Promise<void>;
}

/** Longest pause before a checkpoint that could not be used is tried again, ms. */
const LONGEST_PAUSE_MS = 60_000;

/** A checkpoint that could not be used. */
interface Failed {
  readonly stamp: string;
  readonly message: string;
  readonly pauseMs: number;
  /** When it is tried again, by `performance.now()`. */
  readonly next: number;
}

/**
 * Looks at a run's folder again and again. A checkpoint that cannot be used is tried again after a pause, which doubles
 * each time up to a minute: memory may have been short.
 */
export function followRun(run: string, { from, use, name, log, everyMs }: FollowOptions): RunFollower {
  const checkpoints = new FolderCheckpoints(run, { resumeMode: "disable" });
  let used = stampOf(from);
  let failed: Failed | undefined;
  let looking = Promise.resolve();
  /** @returns why the newest checkpoint cannot be used */
  const lookOnce = async ({ isAsked = false } = {}): Promise<Error | undefined> => {
    const latest = await checkpoints.latest();
    if (latest === undefined) return undefined;
    const dir = join(run, latest);
    const stamp = stampOf(dir);
    if (stamp === used || stamp === undefined) return undefined;
    const before = failed?.stamp === stamp ? failed : undefined;
    if (before && !isAsked && performance.now() < before.next) return undefined;
    try {
      const damage = await damageOf(dir, { only: WEIGHTS });
      if (damage !== undefined) throw new Error(`it is damaged: ${damage}`);
      await use(dir);
      used = stamp;
      log(`${name}: new requests use ${dir}`);
      return undefined;
    } catch (error) {
      const { message } = error as Error;
      const pauseMs = Math.min(2 * (before?.pauseMs ?? everyMs), LONGEST_PAUSE_MS);
      failed = { stamp, message, pauseMs, next: performance.now() + pauseMs };
      const line = `${name} keeps its weights, because ${dir} cannot be used: ${message}`;
      if (before?.message !== message) log(`warning: ${line}`);
      return new Error(line, { cause: error });
    }
  };
  const look = (how?: { isAsked: boolean }): Promise<Error | undefined> => {
    const looked = looking.then(() => lookOnce(how));
    looking = looked.then(
      () => {},
      (error) => log(`warning: cannot look at ${run}: ${(error as Error).message}`),
    );
    return looked;
  };
  const lookAndLog = async () => {
    await look().catch(() => {});
  };
  const timer = everyMs > 0 ? setInterval(() => void lookAndLog(), everyMs) : undefined;
  timer?.unref();
  return {
    look: lookAndLog,
    reload: async () => {
      const failure = await look({ isAsked: true });
      if (failure) throw failure;
    },
    stop: async () => {
      clearInterval(timer);
      await looking;
    },
  };
}

/** Changes with the checkpoint, and when a run that was started again writes another of the same name. */
function stampOf(dir: string): string | undefined {
  const info = statSync(join(dir, "loop.json"), { throwIfNoEntry: false });
  return info && `${dir} ${info.mtimeMs} ${info.ino}`;
}
