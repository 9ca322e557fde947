/** `grpu report`: the page of a run, or of several side by side, at any time. */
import { join } from "node:path";
import { writeText } from "../../train/run/files.ts";
import type { Command, Input, Io } from "../command.ts";

export const reportCommand: Command = {
  path: "report",
  summary: "write the page of a run, or of several side by side",
  args: "<RUN> [RUN ...]",
  options: [
    {
      flag: "--output",
      value: "FILE",
      describe: "the page; default RUN/report.html, and runs.html for several",
    },
  ],
  examples: [
    "grpu report checkpoints/grpu/arithmetic",
    "grpu report checkpoints/grpu/arithmetic checkpoints/grpu/arithmetic.1 --output compared.html",
  ],
  notes:
    "RUN is the folder of a run: finished, in progress, or crashed. The page is one file and opens offline.\n" +
    "With several runs it overlays their curves and lists final figures and differing settings.",
  run: writeReport,
};

async function writeReport({ args, options }: Input, io: Io): Promise<void> {
  const { openRuns } = await import("../../train/run/place/runs.ts");
  const { renderPage } = await import("../../train/log/page/render.ts");
  const runs = openRuns(args);
  for (const run of runs) run.poll();
  const output = options.output ?? (runs.length === 1 ? join(runs[0]!.dir, "report.html") : "runs.html");
  writeText(String(output), renderPage(runs.map((run) => run.data())), "report");
  io.out(`${output}\n`);
}
