/** Figures: tiles for one run, tables of final figures and differing settings for several. */
import type { Phase } from "../src/train/log/logger.ts";
import { type CurveData, MEAN_REWARD, type RunData } from "../src/train/log/page/page_data.ts";
import { curve, data, isMany, mean, metricNames, seconds, steps, sum } from "./data.ts";
import { h, runHeads, section, table } from "./dom.ts";
import { counted, duration, number } from "./format.ts";

const TOKENS = "perf/total_num_tokens";

export function tiles(): HTMLElement | undefined {
  if (isMany()) return undefined;
  const run = data.runs[0]!;
  const accuracy = metricNames("val", /\/pass@1$/)[0];
  const tokens = sum(run, "train", TOKENS);
  return h("div", { class: "tiles" }, [
    fromTo(accuracy && curve(run, "val", accuracy), "validation accuracy"),
    fromTo(curve(run, "train", MEAN_REWARD), "mean reward"),
    fromTo(curve(run, "train", "train/loss"), "loss"),
    fromTo(curve(run, "val", "val/loss"), "held-out loss"),
    stepsTile(run),
    tile(duration(seconds(run)), "in all"),
    tokens > 0 ? tile(number(tokens), "tokens, prompts included") : undefined,
  ]);
}

const tile = (value: string, label: string, bar?: HTMLElement) =>
  h("div", { class: "card tile" }, h("b", {}, value), h("span", {}, label), bar);

function stepsTile(run: RunData): HTMLElement {
  const [done, total] = [steps(run), run.totalSteps];
  if (!total) return tile(counted(done), "training steps");
  const width = `width:${(100 * done) / total}%`;
  const bar = done < total ? h("div", { class: "bar" }, h("i", { style: width })) : undefined;
  return tile(`${counted(done)} / ${counted(total)}`, "training steps", bar);
}

function fromTo(it: CurveData | "" | undefined, label: string): HTMLElement | undefined {
  if (!it) return undefined;
  const arrow = h("span", { class: "arrow" }, "→");
  const values = h("b", {}, it.first.toFixed(2), arrow, it.last.toFixed(2));
  return h("div", { class: "card tile" }, values, h("span", {}, label));
}

interface Row {
  readonly label: string;
  readonly note?: string;
  readonly of: (run: RunData) => number | undefined;
  readonly show?: (value: number) => string;
  /** The greatest value of the row is bold. */
  readonly isBestGreatest?: boolean;
}

const last = (phase: Phase, name: string) => (run: RunData) => curve(run, phase, name)?.last;

function finalRows(): Row[] {
  const isBestGreatest = true;
  const accuracies = metricNames("val", /\/pass@\d+$/).flatMap((name): Row[] => [
    { label: name.slice(4), note: "last", of: last("val", name), isBestGreatest },
    { label: name.slice(4), note: "best", of: (run) => curve(run, "val", name)?.max, isBestGreatest },
  ]);
  const rewards = metricNames("val", /^val\/reward\/.*\/mean$/).map(
    (name): Row => ({ label: name, note: "last", of: last("val", name), isBestGreatest }),
  );
  const meanOf = (name: string) => (run: RunData) => mean(curve(run, "train", name));
  return [
    ...accuracies,
    ...rewards,
    { label: "reward", note: "last", of: last("train", MEAN_REWARD), isBestGreatest },
    { label: "reward", note: "mean", of: meanOf(MEAN_REWARD), isBestGreatest },
    { label: "val/loss", note: "last", of: last("val", "val/loss") },
    { label: "val/loss", note: "least", of: (run) => curve(run, "val", "val/loss")?.min },
    { label: "training steps", of: steps },
    { label: "time", of: seconds, show: duration },
    { label: "tokens, prompts included", of: (run) => sum(run, "train", TOKENS) || undefined },
    { label: "tokens/s", note: "mean", of: meanOf("perf/throughput") },
    ...["train/loss", "actor/entropy", "actor/ppo_kl", "response_length/mean"].map(
      (name): Row => ({ label: name, note: "last", of: last("train", name) }),
    ),
  ];
}

/** The runs side by side; the best of a row is bold where the runs differ. */
export function finalFigures(): HTMLElement | undefined {
  if (!isMany()) return undefined;
  const rows = finalRows().filter((row) => data.runs.some((run) => row.of(run) !== undefined));
  return section("Final figures", undefined, table(["", ...runHeads()], rows.map(figureRow)));
}

function figureRow({ label, note, of, isBestGreatest, show = number }: Row): HTMLElement {
  const values = data.runs.map(of);
  const known = values.filter((value) => value !== undefined);
  const isBest = (value: number) => isBestGreatest && value === Math.max(...known) && value > Math.min(...known);
  const cells = values.map((value) => {
    if (value === undefined) return h("td", { class: "number" }, "–");
    return h("td", { class: isBest(value) ? "number best" : "number" }, show(value));
  });
  const head = h("th", { scope: "row" }, label, note && h("span", { class: "soft" }, ` ${note}`));
  return h("tr", {}, head, cells);
}

export function differingSettings(): HTMLElement | undefined {
  if (!isMany() || data.runs.every((run) => run.config === "")) return undefined;
  const paths = [...new Set(data.runs.flatMap((run) => Object.keys(run.settings)))];
  const isSame = (path: string) => new Set(data.runs.map((run) => run.settings[path])).size === 1;
  const differing = paths.filter((path) => !isSame(path)).sort();
  if (differing.length === 0) return section("Settings", "All runs have the same settings.", h("div"));
  const rows = differing.map((path) => {
    const cells = data.runs.map((run) => h("td", { class: "mono value" }, run.settings[path] ?? "–"));
    return h("tr", {}, h("th", { scope: "row" }, h("code", {}, path)), cells);
  });
  return section("Differing settings", undefined, table(["", ...runHeads("")], rows));
}
