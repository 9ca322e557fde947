/** Follows a run that another process trains: its newest checkpoint, whenever there is one. */
import { statSync } from "node:fs";
import { join } from "node:path";
import { FolderCheckpoints } from "../../log/checkpoint/folder_checkpoints.ts";
import { damageOf } from "../../log/checkpoint/seal.ts";
import { WEIGHTS } from "./checkpoint_dir.ts";

export interface FollowOptions {
  /** The checkpoint in use. */
  readonly from: string;
  /** Takes a newer one. What it throws is logged, once for each checkpoint. */
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

/** Looks at a run's folder again and again. A checkpoint that cannot be used is skipped until there is another. */
export function followRun(run: string, { from, use, name, log, everyMs }: FollowOptions): RunFollower {
  const checkpoints = new FolderCheckpoints(run, { resumeMode: "disable" });
  let seen = stampOf(from);
  let looking = Promise.resolve();
  const lookOnce = async () => {
    const latest = await checkpoints.latest();
    if (latest === undefined) return;
    const dir = join(run, latest);
    const stamp = stampOf(dir);
    if (stamp === seen || stamp === undefined) return;
    seen = stamp;
    try {
      const damage = await damageOf(dir, { only: WEIGHTS });
      if (damage !== undefined) throw new Error(`it is damaged: ${damage}`);
      await use(dir);
      log(`${name}: new requests use ${dir}`);
    } catch (error) {
      log(`warning: ${name} keeps its weights, because ${dir} cannot be used: ${(error as Error).message}`);
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
