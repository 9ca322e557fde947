/** A logger whose files lie in a run's folder. */
import type { Logger } from "../../log/logger.ts";

/** The folder, as far as its loggers are concerned. */
export interface LoggedPlace {
  /** The run continues the one in the folder. */
  readonly isContinued: boolean;
  /** The run only adds a validation to the one in the folder. */
  readonly isAddition: boolean;
  /** @throws {RemoteError} when the folder is no longer this process's. */
  write(): Promise<void>;
  /** Called once attempts were made and scored. */
  markBegun(): void;
}

/** Writes only while the folder is this process's, and rewinds only right before it writes. */
export function placedLogger(inner: Logger, place: LoggedPlace): Logger {
  let rewindTo: number | undefined;
  let hasLogged = false;
  const ready = async () => {
    await place.write();
    const position = rewindTo;
    rewindTo = undefined;
    if (position !== undefined) await inner.rewind?.(position);
  };
  return {
    ...(inner.name !== undefined && { name: inner.name }),
    log: async (record) => {
      await ready();
      hasLogged = true;
      await inner.log(record);
      if (record.phase !== "warmup") place.markBegun();
    },
    ...(inner.during && { during: (moment) => inner.during?.(moment) }),
    ...(inner.stopping && { stopping: () => inner.stopping?.() }),
    ...(inner.warn && { warn: (message) => inner.warn?.(message) }),
    position: async () => {
      // The position after the rewind that is due.
      const limit = rewindTo ?? Number.POSITIVE_INFINITY;
      if (!place.isContinued) await ready();
      return limit === 0 ? 0 : Math.min(limit, (await inner.position?.()) ?? 0);
    },
    rewind: async (position) => {
      if (!place.isAddition) rewindTo = position;
    },
    finish: async () => {
      if (place.isContinued && !hasLogged) return;
      await ready();
      await inner.finish?.();
    },
  };
}
