/** `grpu train --from-traces`: the recorded sessions that a run trains on. */

import type { Backend } from "../../engine/contract/backend.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { setting } from "../config/schema.ts";
import type { EpisodeSource } from "../loop/contract.ts";
import { checkRecorded } from "../loop/recorded/check.ts";
import { describeSkipped, openFixedSet, type RecordedRun } from "../loop/recorded/fixed_set.ts";
import { openLatest } from "../loop/recorded/latest.ts";
import type { RecordedOptions } from "../loop/recorded/load.ts";
import type { LoopSettings } from "../loop/settings.ts";
import { batchSizeOf, totalSteps } from "../loop/state.ts";
import { importItems } from "../trace/files/item.ts";
import { type OpenTraceStore, openTraceStore } from "../trace/mod.ts";
import type { Opening, TraceOptions } from "./recipe.ts";
import type { RunSession } from "./session.ts";
import { readTraceItems, traceFormat } from "./trace_files.ts";

/** A session whose training tasks are recorded groups. */
export interface TraceTraining {
  readonly session: RunSession;
  readonly source: EpisodeSource;
  /** Description for people of what is trained on. */
  readonly description: string;
  /** Prints warnings. @throws {ConfigError} when the tokens are not the model's */
  check(backend: Backend): void;
}

/** @throws {ConfigError} for options that contradict each other or the settings */
export function checkTraceOptions({ file, isLatest }: TraceOptions, { trainer }: LoopSettings): void {
  if (!isLatest) return;
  if (file === undefined)
    throw new ConfigError("Cannot use --latest: no trace store is given. Give --from-traces FILE.");
  if (traceFormat(file) !== "database")
    throw new ConfigError(
      `Cannot use --latest: ${file} does not grow while the run reads it. Name the database that the gateway writes.`,
    );
  if (trainer.total_batches <= 0)
    throw new ConfigError("Cannot use --latest: the run has no end. Set rllm.trainer.total_batches.", {
      path: "rllm.trainer.total_batches",
    });
}

interface Recorded {
  readonly session: RunSession;
  readonly settings: LoopSettings;
  readonly traces: TraceOptions;
}

/** Returns the argument of `--from-traces`; undefined where it was not given. */
export async function openRecorded(of: Recorded, opening: Opening): Promise<TraceTraining | undefined> {
  const { file } = of.traces;
  if (file === undefined) return undefined;
  const store = await openTraces(file);
  opening.onClose(() => store.close());
  return recordedSession(store, { ...of, ...opening, file });
}

/** A database as it is; a file in memory. */
async function openTraces(file: string): Promise<OpenTraceStore> {
  const format = traceFormat(file);
  if (format === "database") return openTraceStore(file, { mustExist: true });
  const store = await openTraceStore("memory");
  await importItems(store, await readTraceItems(file, format));
  return store;
}

async function recordedSession(
  store: OpenTraceStore,
  { session, settings, traces: { isLatest }, io, checkpoints, file }: Recorded & Opening & { readonly file: string },
): Promise<TraceTraining> {
  const { config, tasks, evaluate } = session;
  const options: RecordedOptions = {
    store,
    keys: {
      group: setting(config, "rllm.sdk.processing.groupby_key"),
      name: setting(config, "rllm.sdk.processing.traj_name_key"),
    },
    isJudged: evaluate !== undefined,
    tasks: tasks.train,
  };
  const run = isLatest
    ? openLatest({ ...options, batchSize: batchSizeOf(settings), groupSize: settings.rollout.n })
    : await openFixedSet({ ...options, state: (await checkpoints?.find())?.state.generation });
  totalSteps(run.tasks, settings);
  return {
    session: { ...session, tasks: { ...tasks, train: run.tasks } },
    source: run.source,
    description: isLatest ? `${file}, the newest groups of ${settings.rollout.n} sessions` : describe(file, run),
    check(backend) {
      const warnings = run.facts ? checkRecorded(run.facts, backend, { sampling: settings.rollout.train }) : [];
      for (const warning of warnings) io.err(`warning: ${warning}\n`);
    },
  };
}

function describe(file: string, { tasks, facts }: RecordedRun): string {
  const sessions = tasks.reduce((sum, { metadata }) => sum + (metadata.sessions as unknown[]).length, 0);
  const { calls = 0, diverged = 0, skipped = {} } = facts ?? {};
  const skips = describeSkipped(skipped);
  return [
    `${file}: ${sessions} sessions of ${tasks.length} tasks, ${calls} calls`,
    ...(diverged > 0 ? [`${diverged} of them with a rewritten history, in rows of their own`] : []),
    ...(skips ? [`left out: ${skips}`] : []),
  ].join("; ");
}
