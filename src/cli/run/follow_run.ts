/** Follows a run that another process trains: its newest checkpoint, whenever there is one. */
import { statSync } from "node:fs";
import { join } from "node:path";
import { FolderCheckpoints } from "../../log/checkpoint/folder_checkpoints.ts";
import { damageOf } from "../../log/checkpoint/seal.ts";
import { WEIGHTS } from "./checkpoint_dir.ts";

export interface FollowOptions {
  /** The checkpoint in use. */
  readonly from: string;
  /** Takes a newer one. What it throws is logged once for each checkpoint, which is tried again after a pause. */
  readonly use: (dir: string) => Promise<void>;
  /** Name of the model, for the log. */
  readonly name: string;
  readonly log: (line: string) => void;
  readonly everyMs: number;
}

export interface RunFollower {
  /** Looks now. */
  look(): Promise<void>;
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
  const lookOnce = async () => {
    const latest = await checkpoints.latest();
    if (latest === undefined) return;
    const dir = join(run, latest);
    const stamp = stampOf(dir);
    if (stamp === used || stamp === undefined) return;
    const before = failed?.stamp === stamp ? failed : undefined;
    if (before && performance.now() < before.next) return;
    try {
      const damage = await damageOf(dir, { only: WEIGHTS });
      if (damage !== undefined) throw new Error(`it is damaged: ${damage}`);
      await use(dir);
      used = stamp;
      log(`${name}: new requests use ${dir}`);
    } catch (error) {
      const { message } = error as Error;
      const pauseMs = Math.min(2 * (before?.pauseMs ?? everyMs), LONGEST_PAUSE_MS);
      failed = { stamp, message, pauseMs, next: performance.now() + pauseMs };
      if (before?.message === message) return;
      log(`warning: ${name} keeps its weights, because ${dir} cannot be used: ${message}`);
    }
  };
  const look = () => {
    looking = looking
      .then(lookOnce)
      .catch((error) => log(`warning: cannot look at ${run}: ${(error as Error).message}`));
    return looking;
  };
  const timer = setInterval(() => void look(), everyMs);
  timer.unref();
  return {
    look,
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
