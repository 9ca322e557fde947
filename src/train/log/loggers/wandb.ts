/**
 * Weights & Biases. The run is always written to disk in W&B's own format (see wandb_file.ts); online it is streamed
 * in addition by `@wandb/sdk`, an optional package. It runs in a worker, because it ends the process on Ctrl-C, prints
 * to standard output and throws errors that cannot be caught: none of these may end a training run.
 */
import { existsSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";
import { ConfigError } from "../../../leaves/errors.ts";
import type { Logger, LogRecord } from "../logger.ts";
import { WandbFile, type WandbRun, wandbStep } from "./wandb_file.ts";

type Environment = Readonly<Record<string, string | undefined>>;

/** Project, run and environment for Weights & Biases. */
export interface WandbOptions extends Omit<WandbRun, "id" | "entity"> {
  /** The run's folder: `wandb/` in it holds what W&B keeps. */
  readonly dir: string;
  /** Read for WANDB_MODE, WANDB_API_KEY, WANDB_BASE_URL and WANDB_ENTITY, like W&B's own clients. */
  readonly env: Environment;
  readonly notify: (message: string) => void;
}

const MODES = ["online", "offline", "disabled"] as const;
type Mode = (typeof MODES)[number];

/**
 * Checks, before anything runs, what the first step needs.
 * @throws {ConfigError} for an unknown mode, and online without a key or without the package.
 */
export function checkWandb(env: Environment): Mode {
  const mode = (env.WANDB_MODE || "online") as Mode;
  if (!MODES.includes(mode))
    throw new ConfigError(`Cannot log to W&B: WANDB_MODE has an unknown value (${mode}). Use ${MODES.join(", ")}.`);
  if (mode !== "online") return mode;
  if (!env.WANDB_API_KEY) {
    throw new ConfigError(
      "Cannot log to W&B: WANDB_API_KEY is not set. Set it, or WANDB_MODE=offline to keep the run on disk for `wandb sync`.",
    );
  }
  if (findSdk() === undefined) {
    throw new ConfigError(
      "Cannot log to W&B: the package @wandb/sdk is not installed. Run `npm install @wandb/sdk`, or set WANDB_MODE=offline.",
    );
  }
  return mode;
}

/** Finds the SDK beside grpu, or in the project that is worked in. */
function findSdk(): string | undefined {
  for (const from of [import.meta.url, pathToFileURL(join(process.cwd(), "package.json")).href]) {
    try {
      return pathToFileURL(createRequire(from).resolve("@wandb/sdk")).href;
    } catch {}
  }
  return undefined;
}

/**
 * Opens the loggers for Weights & Biases.
 * @throws {ConfigError} as `checkWandb`
 */
export function openWandb(options: WandbOptions): readonly Logger[] {
  const { env, dir, notify } = options;
  const mode = checkWandb(env);
  if (mode === "disabled") return [];
  const { id, folder, isResumed } = placeOf(join(dir, "wandb"), mode);
  const run: WandbRun = { ...options, id, ...(env.WANDB_ENTITY && { entity: env.WANDB_ENTITY }) };
  const file = new WandbFile(join(folder, `run-${id}.wandb`), run);
  if (mode === "offline") {
    notify(`wandb   offline; upload it with:  wandb sync ${folder}`);
    return [file];
  }
  if (isResumed) {
    // The SDK writes rows from the first on, over those of the earlier part.
    notify(`wandb   @wandb/sdk cannot go on with a run; upload the whole of it with:  wandb sync ${folder}`);
    return [file];
  }
  return [file, new WandbStream({ run, env, folder, notify })];
}

/** The folder that a resumed run continues, or a new one, under W&B's own names. */
function placeOf(parent: string, mode: Mode): { id: string; folder: string; isResumed: boolean } {
  const prefix = mode === "offline" ? "offline-run" : "run";
  const names = existsSync(parent) ? readdirSync(parent).sort() : [];
  const earlier = names.findLast((name) => new RegExp(`^${prefix}-\\d{8}_\\d{6}-\\w+$`).test(name));
  if (earlier) return { id: earlier.split("-").at(-1) as string, folder: join(parent, earlier), isResumed: true };
  const letters = "abcdefghijklmnopqrstuvwxyz0123456789";
  const id = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => letters[byte % 36]).join("");
  const time = new Date().toISOString().replace(/[-:]/g, "").replace("T", "_").slice(0, 15);
  return { id, folder: join(parent, `${prefix}-${time}-${id}`), isResumed: false };
}

interface StreamOptions {
  readonly run: WandbRun;
  readonly env: Environment;
  readonly folder: string;
  readonly notify: (message: string) => void;
}

/** How long the end of a run waits for the last upload. */
const FINISH_MS = 60_000;

/** Source of the worker: the SDK, driven by messages. */
const WORKER = `
const { parentPort, workerData } = require("node:worker_threads");
const sdk = import(workerData.sdk).then(({ default: it }) => (it.init ? it : it.default));
const opened = sdk.then((wandb) => wandb.init(workerData.init));
let last = opened.then((run) => parentPort.postMessage({ url: run.url() }));
parentPort.on("message", ({ metrics, step }) => {
  last = last.then(async () => {
    const wandb = await sdk;
    if (metrics) return wandb.log(metrics, step);
    await wandb.finish();
    parentPort.postMessage({ isFinished: true });
  });
});
`;

class WandbStream implements Logger {
  readonly name = "wandb";
  private readonly options: StreamOptions;
  private readonly worker: Worker;
  private readonly ended: Promise<void>;
  private row: { step: number; metrics: Record<string, number> } | undefined;
  private failure: string | undefined;

  constructor(options: StreamOptions) {
    this.options = options;
    const { run, env } = options;
    this.worker = new Worker(WORKER, {
      eval: true,
      // Its prints are not ours.
      stdout: true,
      stderr: true,
      env: { ...env } as NodeJS.Dict<string>,
      workerData: {
        sdk: findSdk(),
        init: {
          project: run.project,
          name: run.name,
          id: run.id,
          entity: run.entity,
          config: run.config,
          settings: { silent: true },
        },
      },
    });
    this.worker.unref();
    for (const stream of [this.worker.stdout, this.worker.stderr]) stream.resume();
    this.ended = new Promise((resolve) => this.listen(resolve));
  }

  private listen(end: () => void): void {
    this.worker.on("message", ({ url, isFinished }: { url?: string; isFinished?: boolean }) => {
      if (url) this.options.notify(`wandb   ${url}`);
      if (isFinished) end();
    });
    this.worker.on("error", ({ message }) => {
      this.fail(message);
      end();
    });
    this.worker.on("exit", () => {
      this.fail("its worker ended");
      end();
    });
  }

  /** Reports a failure once; the run on disk is complete. */
  private fail(reason: string): void {
    if (this.failure !== undefined) return;
    this.failure = reason;
    const { env, folder, notify } = this.options;
    const shown = env.WANDB_API_KEY ? reason.replaceAll(env.WANDB_API_KEY, "***") : reason;
    notify(
      `warning: W&B gets nothing more of this run: ${shown}. It is kept on disk; upload it with:  wandb sync ${folder}`,
    );
  }

  /** One row per step, because W&B accepts no second one. */
  log({ phase, step, metrics }: LogRecord): void {
    const at = wandbStep(this.options.run, { phase, step });
    if (this.row && this.row.step !== at) this.send();
    this.row = { step: at, metrics: { ...this.row?.metrics, ...metrics } };
  }

  private send(): void {
    if (this.row && this.failure === undefined) this.worker.postMessage(this.row);
    this.row = undefined;
  }

  async finish(): Promise<void> {
    this.send();
    if (this.failure === undefined) {
      this.worker.postMessage({});
      let timer: NodeJS.Timeout | undefined;
      const late = new Promise<void>((resolve) => {
        timer = setTimeout(() => {
          this.fail("the last upload took too long");
          resolve();
        }, FINISH_MS);
      });
      await Promise.race([this.ended, late]);
      clearTimeout(timer);
    }
    this.failure ??= "finished";
    await this.worker.terminate();
  }
}
