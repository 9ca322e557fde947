/** Parses lines of a run's files: returns well-formed values, and undefined for damaged lines. */

import type { Phase } from "../logger.ts";
import type { GroupEntry, GroupsLine, MetricsLine, RunFacts, SampleLine } from "../run_files.ts";

const PHASES: ReadonlySet<unknown> = new Set<Phase>(["warmup", "train", "val"]);

type Fields = Readonly<Record<string, unknown>>;

/** The object that a line of JSON holds, or undefined. */
function objectOf(text: string): Fields | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** A line of `metrics.jsonl`, or undefined for one that is damaged. */
export function parseMetricsLine(line: string): MetricsLine | undefined {
  const fields = objectOf(line);
  return fields && PHASES.has(fields.phase) && Number.isFinite(fields.step) ? (fields as MetricsLine) : undefined;
}

/** A line of `samples.jsonl`, or undefined for one that is damaged. */
export function sampleOf(line: string): SampleLine | undefined {
  const fields = objectOf(line);
  const texts = [fields?.task, fields?.prompt, fields?.response];
  const isWhole =
    Number.isFinite(fields?.step) &&
    texts.every((text) => typeof text === "string") &&
    isReward(fields?.reward) &&
    typeof fields?.is_correct === "boolean";
  return isWhole ? (fields as unknown as SampleLine) : undefined;
}

/** A line of `groups.jsonl`, or undefined for one that is damaged. */
export function groupsOf(line: string): GroupsLine | undefined {
  const fields = objectOf(line);
  const isWhole = Number.isFinite(fields?.step) && Array.isArray(fields?.groups) && fields.groups.every(isGroup);
  return isWhole ? (fields as unknown as GroupsLine) : undefined;
}

/** The valid fields of `run.json`. */
export function factsOf(text: string): Partial<RunFacts> {
  const fields = objectOf(text) ?? {};
  const only = (name: string, type: string) => (typeof fields[name] === type ? { [name]: fields[name] } : {});
  return {
    ...only("title", "string"),
    ...only("subtitle", "string"),
    ...only("started", "string"),
    ...only("ended", "string"),
    ...only("complete", "boolean"),
    ...only("total_steps", "number"),
  };
}

function isGroup(value: unknown): value is GroupEntry {
  if (!isObject(value)) return false;
  const { task, name, rewards, solved } = value;
  const isNamed = typeof task === "string" && typeof name === "string";
  return isNamed && Number.isFinite(solved) && Array.isArray(rewards) && rewards.every(isReward);
}

function isReward(value: unknown): boolean {
  return value === null || Number.isFinite(value);
}

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
