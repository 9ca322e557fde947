/** Metrics and sample rollouts as files of one JSON object a line. */
import { join } from "node:path";
import type { Logger, LogRecord } from "../logger.ts";
import { groupsLine, sampleLines } from "../record_lines.ts";
import { GROUPS_FILE, type GroupsLine, METRICS_FILE, SAMPLES_FILE, type SampleLine } from "../run_files.ts";
import { AppendedFile } from "./appended_file.ts";

/**
 * The loggers that write a run's metrics, samples and groups as JSONL into its folder. `grpu view` and `grpu report`
 * read them.
 * @example
 *     await train({ ...run, loggers: [...jsonlFiles("runs/sums")] });
 */
export function jsonlFiles(dir: string): readonly Logger[] {
  return [
    new MetricsFile(join(dir, METRICS_FILE)),
    new SamplesFile(join(dir, SAMPLES_FILE)),
    new GroupsFile(join(dir, GROUPS_FILE)),
  ];
}

/** Appends lines. What a resumed run repeats is cut off first, so that no line ever comes twice. */
abstract class LinesFile extends AppendedFile {
  protected abstract lines(record: LogRecord): readonly unknown[];

  protected encode(record: LogRecord): string {
    return this.lines(record)
      .map((line) => `${JSON.stringify(line)}\n`)
      .join("");
  }
}

/** Every step's metrics. The same seed gives the same lines, but for names under `time/` and `perf/`. */
export class MetricsFile extends LinesFile {
  protected lines({ phase, step, metrics }: LogRecord): readonly unknown[] {
    return [{ phase, step, ...metrics }];
  }
}

/** The first attempts of every validation, always at the same tasks: what changed between before and after. */
export class SamplesFile extends LinesFile {
  protected lines(record: LogRecord): readonly SampleLine[] {
    return sampleLines(record);
  }
}

/** Rewards and solve counts of every group of every training step, before anything is filtered. */
export class GroupsFile extends LinesFile {
  protected lines(record: LogRecord): readonly GroupsLine[] {
    const line = groupsLine(record);
    return line ? [line] : [];
  }
}
