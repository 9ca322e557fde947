/** What each filter of the loop dropped over the whole run, and how attempts ended that were cut short. */
import type { RunData } from "../src/train/log/page/page_data.ts";
import { curve, isMany, type Placed, shown } from "./data.ts";
import { h, headSwatch, section, table } from "./dom.ts";
import { number } from "./format.ts";

/** What a filter took, in `what`; `seen` is the metric of all there was. */
interface Filter {
  readonly title: string;
  readonly what: "trajectories" | "groups";
  /** A metric, or a count made of several. */
  readonly dropped: string | ((run: RunData) => number | undefined);
  readonly seen?: string;
}

const FILTERS: readonly Filter[] = [
  {
    title: "Compact filtering, names",
    what: "trajectories",
    dropped: compacted,
    seen: "groups/num_trajs_before_filter",
  },
  {
    title: "Too few trajectories in the group",
    what: "groups",
    dropped: "batch/groups_dropped_insufficient_trajs",
    seen: "batch/groups_before_filter",
  },
  {
    title: "Groups of equal rewards",
    what: "groups",
    dropped: "batch/groups_dropped_uniform",
    seen: "batch/groups_before_filter",
  },
  {
    title: "Rejected by the mode or a function of yours",
    what: "groups",
    dropped: rejected,
    seen: "batch/groups_before_filter",
  },
  {
    title: "Held back for a later step",
    what: "groups",
    dropped: "batch/groups_held",
    seen: "batch/groups_before_filter",
  },
  {
    title: "Too few trajectories (async)",
    what: "groups",
    dropped: "groups/dropped_min_trajs",
    seen: "groups/num_groups",
  },
  {
    title: "No advantage (async)",
    what: "groups",
    dropped: "groups/dropped_zero_adv",
    seen: "groups/num_groups",
  },
  { title: "Tokens that do not match", what: "trajectories", dropped: "batch/dropped_malformed_sequences" },
];

const REASONS = [
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "max_turns_exceeded",
  "timeout",
  "unknown",
  "error",
];

const total = (run: RunData, name: string) => curve(run, "train", name)?.sum;

function compacted(run: RunData): number | undefined {
  const [before, after] = ["before", "after"].map((when) => total(run, `groups/num_trajs_${when}_filter`));
  return before === undefined || after === undefined ? undefined : before - after;
}

/** Groups that no other filter explains. */
function rejected(run: RunData): number | undefined {
  const names = ["before_filter", "after_filter", "dropped_insufficient_trajs", "dropped_uniform"];
  const [before, after, few = 0, even = 0] = names.map((name) => total(run, `batch/groups_${name}`));
  if (before === undefined || after === undefined) return undefined;
  const rest = before - after - few - even;
  return rest > 0 ? rest : undefined;
}

export function filterSection(): HTMLElement | undefined {
  const runs = shown();
  const rows = [...FILTERS.map((it) => filterRow(it, runs)), ...REASONS.map((it) => reasonRow(it, runs))];
  const found = rows.filter((row) => row !== undefined);
  if (found.length === 0) return undefined;
  const heads = runs.flatMap((it) => [
    h("th", { class: "number", scope: "col" }, isMany() ? [headSwatch(it), `${it.run.name}: dropped`] : "dropped"),
    h("th", { class: "number", scope: "col" }, "share"),
  ]);
  return section(
    "Filters",
    "What each filter took out over the whole run, and how attempts ended that did not end by themselves.",
    table(["", ...heads], found),
  );
}

const numberCell = (text: string, kind = "number") => h("td", { class: kind }, text);
const shareCell = (part: number | undefined, of: number | undefined) =>
  numberCell(part !== undefined && of ? `${number((100 * part) / of)}%` : "–", "number soft");

function filterRow({ title, what, dropped, seen }: Filter, runs: readonly Placed[]) {
  const counts = runs.map(({ run }) => (typeof dropped === "string" ? total(run, dropped) : dropped(run)));
  if (counts.every((count) => count === undefined)) return undefined;
  const cells = counts.flatMap((count, k) => [
    numberCell(number(count)),
    shareCell(count, seen === undefined ? undefined : total(runs[k]!.run, seen)),
  ]);
  return h("tr", {}, h("th", { scope: "row" }, title, h("span", { class: "soft" }, ` ${what}`)), cells);
}

function reasonRow(reason: string, runs: readonly Placed[]) {
  const found = runs.map(
    ({ run }) =>
      curve(run, "train", `batch/termination_reason/${reason}`) ??
      curve(run, "train", `episode/termination_reason/${reason}`),
  );
  if (found.every((it) => !it || it.sum === 0)) return undefined;
  const what = h("span", { class: "soft" }, " attempts");
  const head = h("th", { scope: "row" }, "Ended by ", h("code", {}, reason), what);
  return h(
    "tr",
    {},
    head,
    found.flatMap((it) => [h("td", {}, ""), shareCell(it?.sum, it?.count)]),
  );
}
