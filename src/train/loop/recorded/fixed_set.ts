/** Offline training: a fixed set of recorded groups, epoch by epoch, in the order in which they were recorded. */

import { ConfigError } from "../../../leaves/errors.ts";
import type { Task } from "../../data/types.ts";
import { SKIP_REASONS, type SkipReason } from "../../trace/attempts.ts";
import type { EpisodeSource, GenerationState, StageContext } from "../contract.ts";
import { loadEpisodes, type RecordedOptions } from "./load.ts";
import { groupSessions, type RecordedGroup, type ScanFacts, scanSessions } from "./scan.ts";

/** Recorded sessions that a run trains on. */
export interface RecordedRun {
  /** One per group, for `train`. */
  readonly tasks: readonly Task[];
  readonly source: EpisodeSource;
  /** Facts about the store; undefined for a store that still grows. */
  readonly facts?: ScanFacts;
}

/**
 * Every session of the store that can be trained on, by task.
 * @param options.state of the checkpoint that the run continues from: it trains on the same sessions, whatever the store
 * holds by now
 * @throws {ConfigError} when no session can be trained on, or one of the run's is no longer in the store
 */
export async function openFixedSet(
  options: RecordedOptions & { readonly state?: GenerationState | undefined },
): Promise<RecordedRun> {
  const { store, state } = options;
  const wanted = state?.sessions && new Set(state.sessions);
  const trained = new Set(state?.trained);
  const isWanted = (id: string) => (wanted ? wanted.has(id) : !trained.has(id));
  const listed = (await store.sessions({})).filter(({ session_id }) => isWanted(session_id));
  const { sessions, facts } = await scanSessions(listed, options);
  if (wanted && sessions.length < wanted.size) refuseMissing(wanted.size - sessions.length, wanted.size);
  if (sessions.length === 0) refuseEmpty(facts.skipped);
  const groups = groupSessions(sessions);
  return { tasks: groups.map(taskOf), source: new FixedSet(groups, options), facts };
}

class FixedSet implements EpisodeSource {
  readonly state: GenerationState;
  private readonly options: RecordedOptions;
  private readonly groups: ReadonlyMap<unknown, RecordedGroup>;

  constructor(groups: readonly RecordedGroup[], options: RecordedOptions) {
    this.options = options;
    this.groups = new Map(groups.map((group) => [group.key, group]));
    const sessions = groups.flatMap((group) => group.sessions.map(({ session_id }) => session_id));
    this.state = { next: 0, pending: [], sessions };
  }

  generate(tasks: readonly Task[], context: StageContext) {
    const groups = tasks.map(({ metadata }) => this.groups.get(metadata.group)!);
    return loadEpisodes(groups, { ...this.options, context });
  }

  /** Does nothing, because the groups of a step follow from its number. */
  resume(): void {}

  async stop(): Promise<void> {}
}

function taskOf({ key, sessions }: RecordedGroup): Task {
  const { id, instruction } = sessions[0]!.task;
  return { id, instruction, metadata: { group: key, sessions: sessions.map(({ session_id }) => session_id) } };
}

/** `3 without a reward, 1 recorded in a validation`. */
export function describeSkipped(skipped: ScanFacts["skipped"]): string {
  return Object.entries(skipped)
    .map(([reason, count]) => `${count} ${SKIP_REASONS[reason as SkipReason]}`)
    .join(", ");
}

function refuseEmpty(skipped: ScanFacts["skipped"]): never {
  const why = describeSkipped(skipped);
  throw new ConfigError(
    `Cannot train on the traces: no session can be trained on (${why || "the store is empty"}). Give rewards with grpu traces reward, or record with token ids and log-probs.`,
    { kind: "data" },
  );
}

function refuseMissing(count: number, total: number): never {
  throw new ConfigError(
    `Cannot continue the run: ${count} of the ${total} sessions that it trains on are no longer in the trace store. Restore them, or start again with training.resume_mode=disable.`,
    { kind: "data" },
  );
}
