/** The page of a run as a file, written when the run ends. */
import { writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { makeFolders } from "../folder/make_folders.ts";
import type { Logger, LogRecord } from "../logger.ts";
import { renderPage } from "../page/render.ts";
import { RunFolder } from "../page/run_folder.ts";
import { REPORT_FILE, RUN_FILE, type RunFacts } from "../run_files.ts";

/** Texts at the top of the page that {@link ReportFile} writes. */
export interface ReportOptions {
  /** Default: the folder's name. */
  readonly title?: string | undefined;
  /** Subtitle, for instance the task, the model, the device. */
  readonly subtitle?: string | undefined;
}

/**
 * Writes `report.html` into a run's folder when the run ends: the page of what {@link jsonlFiles} wrote there.
 * @example
 *     const loggers = [...jsonlFiles("runs/sums"), new ReportFile("runs/sums", { title: "Sums" })];
 *     await train({ ...run, loggers });
 */
export class ReportFile implements Logger {
  readonly name = "report";
  private readonly dir: string;
  private readonly options: ReportOptions;
  private readonly started = new Date().toISOString();
  private last: LogRecord | undefined;

  constructor(dir: string, options: ReportOptions = {}) {
    this.dir = dir;
    this.options = options;
  }

  log(record: LogRecord): void {
    // Warm-up counts its own steps.
    if (record.phase !== "warmup") this.last = record;
  }

  finish(): void {
    const { step, totalSteps } = this.last ?? { step: 0, totalSteps: 0 };
    const { title = basename(this.dir), subtitle = "" } = this.options;
    const ended = {
      ended: new Date().toISOString(),
      complete: this.last !== undefined && step === totalSteps,
    };
    writeFacts(this.dir, { title, subtitle, total_steps: totalSteps, started: this.started, ...ended });
    const run = new RunFolder(this.dir);
    run.poll();
    writeFileSync(join(this.dir, REPORT_FILE), renderPage([run.data()]), { mode: 0o600 });
  }
}

/** Writes `run.json`. */
export function writeFacts(dir: string, facts: RunFacts): void {
  makeFolders(dir);
  writeFileSync(join(dir, RUN_FILE), `${JSON.stringify(facts, null, 2)}\n`);
}
