/** `grpu traces`: what agents' model calls left in a trace store. */
import type { Command, Input, Io, Option } from "../command.ts";
import { RETENTION_OPTIONS } from "./retention_options.ts";

/** Default of the settings: `rllm.sdk.store.path`. */
export const DEFAULT_STORE = "~/.rllm/traces.db";

const STORE: Option = {
  flag: "--store",
  value: "FILE",
  describe: "the trace database (rllm.sdk.store.path)",
  default: DEFAULT_STORE,
};
const JSON_OUTPUT: Option = { flag: "--json", describe: "print JSON on standard output" };
const SINCE: Option = {
  flag: "--since",
  value: "TIME",
  describe: "only sessions with something since then: 2026-11-22, 2026-11-22T10:30, or 30m, 12h, 7d ago",
};
const FORMAT: Option = {
  flag: "--format",
  value: "NAME",
  describe: "of the file; default by its ending",
  choices: ["jsonl", "parquet", "otlp"],
};

type Run = (input: Input, io: Io) => Promise<void>;

/** Loads the command's module when it runs. */
const inStore = (name: "listTraces" | "deleteTraces" | "pruneTraces" | "rewardTraces"): Run => {
  return async (input, io) => (await import("./traces_store.ts"))[name](input, io);
};
const withFiles = (name: "exportTraces" | "importTraces"): Run => {
  return async (input, io) => (await import("./traces_files.ts"))[name](input, io);
};

export const tracesCommands: readonly Command[] = [
  {
    path: "traces list",
    summary: "list sessions, the newest first",
    options: [
      STORE,
      SINCE,
      { flag: "--limit", value: "N", describe: "at most N sessions", default: "50" },
      JSON_OUTPUT,
    ],
    examples: ["grpu traces list", "grpu traces list --store run/traces.db --since 12h --limit 10"],
    run: inStore("listTraces"),
  },
  {
    path: "traces show",
    summary: "print the conversation of a session or a single call, with tokens, log-probs and reward",
    args: "<ID>",
    options: [STORE, { flag: "--tokens", describe: "print every token id with its log-prob" }, JSON_OUTPUT],
    examples: ["grpu traces show sum-1:0:0", "grpu traces show sum-1:0:0 --tokens --store run/traces.db"],
    notes: "ID is a session's or a trace's. A later call shows only the messages that are new in it.",
    async run(input, io) {
      const { showTraces } = await import("./traces_show.ts");
      return showTraces(input, io);
    },
  },
  {
    path: "traces export",
    summary: "write sessions and traces as JSON lines, a Parquet table or OpenTelemetry spans",
    args: "[SESSION ...]",
    options: [
      STORE,
      { flag: "--output", value: "FILE", describe: "default: JSON lines on standard output" },
      FORMAT,
      SINCE,
    ],
    examples: [
      "grpu traces export --output traces.jsonl",
      "grpu traces export --output traces.parquet --since 7d",
      "grpu traces export sum-1:0:0 --output spans.otlp.json",
    ],
    notes:
      "Endings: .jsonl, .parquet, and .otlp, .otlp.json, .otlp.jsonl for spans of OpenTelemetry's GenAI conventions.\n" +
      "Spans carry token ids and log-probs as attributes grpu.*, because the conventions have no names for them.",
    run: withFiles("exportTraces"),
  },
  {
    path: "traces import",
    summary: "read what traces export wrote, another trace database, or OpenTelemetry spans",
    args: "<FILE> [FILE ...]",
    options: [STORE, FORMAT, JSON_OUTPUT],
    examples: ["grpu traces import traces.jsonl --store run/traces.db", "grpu traces import spans.otlp.json other.db"],
    notes: "A trace or session with a known id is replaced, so that a second import changes nothing.",
    run: withFiles("importTraces"),
  },
  {
    path: "traces reward",
    summary: "set the rewards of sessions from a file",
    args: "<FILE.jsonl>",
    options: [STORE, JSON_OUTPUT],
    examples: ["grpu traces reward rewards.jsonl --store run/traces.db"],
    notes:
      'A line is {"session_id": "...", "reward": 1}; is_correct, trajectory_rewards, metrics, signals and\n' +
      "termination_reason may follow. An error in any line changes nothing.",
    run: inStore("rewardTraces"),
  },
  {
    path: "traces delete",
    summary: "delete sessions with their traces",
    args: "<SESSION> [SESSION ...]",
    options: [STORE, JSON_OUTPUT],
    examples: ["grpu traces delete sum-1:0:0 sum-1:1:0"],
    run: inStore("deleteTraces"),
  },
  {
    path: "traces prune",
    summary: "delete the oldest sessions until the store keeps to limits",
    options: [STORE, ...RETENTION_OPTIONS, JSON_OUTPUT],
    examples: ["grpu traces prune --max-age 30d", "grpu traces prune --max-traces 100000 --max-size 2GiB"],
    notes: "Sessions go as a whole. One that has not ended and was active in the last ten minutes stays.",
    run: inStore("pruneTraces"),
  },
];
