/** Records that a run left in its folder, and the page of it. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setting } from "../../config/schema.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { RunData } from "../../log/page/page_data.ts";
import { renderPage } from "../../log/page/render.ts";
import { REPORT_FILE } from "../../log/run_files.ts";
import { openRuns } from "./runs.ts";

/** The run's files, read in bounded memory whatever their length. */
export function readRun(dir: string): RunData {
  const [run] = openRuns([dir]);
  run!.poll();
  return run!.data();
}

export function writeReport(config: Tree, { dir, run }: { dir: string; run: RunData }): string | undefined {
  if (!setting(config, "rllm.trainer.logger").includes("report")) return undefined;
  const file = join(dir, REPORT_FILE);
  writeFileSync(file, renderPage([run]));
  return file;
}
