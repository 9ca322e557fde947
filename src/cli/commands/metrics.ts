/** `grpu metrics convert`: metric logs of verl and Trinity-RFT. */
import type { MetricRow } from "../../cluster/convert/metrics.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { readText, writeText } from "../../train/run/files.ts";
import type { Command, Input, Io } from "../command.ts";

export const metricsCommands: readonly Command[] = [
  {
    path: "metrics convert",
    summary: "rename and split JSONL metric logs between verl and Trinity-RFT",
    args: "<IN.jsonl> [IN.jsonl]",
    options: [
      {
        flag: "--from",
        value: "SYSTEM",
        describe: "the system that wrote the log",
        choices: ["verl", "trinity"],
        required: true,
      },
      {
        flag: "--to",
        value: "SYSTEM",
        describe: "the system whose names to write",
        choices: ["verl", "trinity"],
        required: true,
      },
      {
        flag: "--out",
        value: "FILE",
        describe: "output; for trinity, FILE_explorer.jsonl and FILE_trainer.jsonl",
      },
      { flag: "--sync-interval", value: "N", describe: "Trinity steps per iteration of verl", default: "1" },
    ],
    examples: [
      "grpu metrics convert --from verl --to trinity --sync-interval 4 verl.jsonl --out run",
      "grpu metrics convert --from trinity --to verl run_explorer.jsonl run_trainer.jsonl",
    ],
    notes:
      "Names that the other system lacks are kept and listed. Converting to verl averages the steps of an iteration.",
    run: convertMetrics,
  },
];

async function convertMetrics({ args, options }: Input, io: Io): Promise<number> {
  const { metricsToTrinity, metricsToVerl, writeMetricRows } = await import("../../cluster/convert/metrics.ts");
  const syncInterval = Number(options.syncInterval ?? 1);
  if (!Number.isInteger(syncInterval) || syncInterval < 1) {
    throw new ConfigError(
      `Cannot convert metrics: --sync-interval takes a whole number from 1 (${options.syncInterval}).`,
    );
  }
  if (options.from === options.to) {
    throw new ConfigError(`Cannot convert metrics: both sides are ${options.from}. Give another --to.`);
  }
  if (args.length === 0)
    throw new ConfigError("Cannot convert metrics: no log is given. Name a JSONL file, or - for standard input.");
  const unmapped: string[] = [];
  const onUnmapped = (name: string) => unmapped.push(name);
  const logs = await Promise.all(args.map((file) => readLog(file, io)));
  const isNested = logs.some((log) => log.isNested);
  const rows = logs.flatMap((log) => log.rows);
  if (options.to === "trinity") {
    const split = metricsToTrinity(rows, { syncInterval, onUnmapped });
    const base = String(options.out ?? "").replace(/\.jsonl$/, "");
    for (const side of ["explorer", "trainer"] as const) {
      const text = writeMetricRows(split[side], isNested);
      if (base) writeText(`${base}_${side}.jsonl`, text, "metrics");
      else io.out(text);
    }
  } else {
    const merged: readonly MetricRow[] = metricsToVerl({ explorer: [], trainer: rows }, { syncInterval, onUnmapped });
    const text = writeMetricRows(merged, isNested);
    if (options.out) writeText(String(options.out), text, "metrics");
    else io.out(text);
  }
  if (unmapped.length > 0) io.err(`kept, because they have no counterpart: ${unmapped.join(", ")}\n`);
  return 0;
}

async function readLog(file: string, io: Io) {
  const { readMetricRows } = await import("../../cluster/convert/metrics.ts");
  const text = file === "-" ? await io.stdin() : readText(file, "log");
  const read = readMetricRows(text);
  const [first] = read.problems;
  if (first) throw new ConfigError(first.message, { file, line: first.line });
  return read;
}
