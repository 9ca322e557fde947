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
  const it = objectOf(line);
  return it && PHASES.has(it.phase) && Number.isFinite(it.step) ? (it as MetricsLine) : undefined;
}

/** A line of `samples.jsonl`, or undefined for one that is damaged. */
export function sampleOf(line: string): SampleLine | undefined {
  const it = objectOf(line);
  const texts = [it?.task, it?.prompt, it?.response];
  const isWhole =
    Number.isFinite(it?.step) &&
    texts.every((text) => typeof text === "string") &&
    isReward(it?.reward) &&
    typeof it?.is_correct === "boolean";
  return isWhole ? (it as unknown as SampleLine) : undefined;
}

/** A line of `groups.jsonl`, or undefined for one that is damaged. */
export function groupsOf(line: string): GroupsLine | undefined {
  const it = objectOf(line);
  const isWhole = Number.isFinite(it?.step) && Array.isArray(it?.groups) && it.groups.every(isGroup);
  return isWhole ? (it as unknown as GroupsLine) : undefined;
}

/** The valid fields of `run.json`. */
export function factsOf(text: string): Partial<RunFacts> {
  const it = objectOf(text) ?? {};
  const only = (name: string, type: string) => (typeof it[name] === type ? { [name]: it[name] } : {});
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
