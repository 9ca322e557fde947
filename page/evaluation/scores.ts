/** Tables of scores: a row a model, a column a measure, each with a bar of its interval. */
import type { Estimates, EvaluationPageData, IntervalEstimate } from "../../src/train/evaluation/contract.ts";
import { h } from "../element.ts";

const NOTE =
  "Means over tasks with 95% intervals. pass@k: the chance that one of k attempts is correct (unbiased). maj@k: that the most frequent answer of k is.";

/** One table per data source. */
export function scoreSections({ models }: EvaluationPageData): HTMLElement[] {
  const sources = new Set(models.flatMap((each) => Object.keys(each.sources)));
  return [...sources].map((source, i) => {
    const rows = models.map((each, m) => ({ m, name: each.model, estimates: each.sources[source] ?? {} }));
    const tasks = rows[0]?.estimates.reward?.tasks ?? 0;
    return section(`${source}, ${tasks} tasks`, i === 0 ? NOTE : "", table(rows, bar));
  });
}

/** The models after the first, compared with the first. */
export function differenceSection({ differences, models }: EvaluationPageData): HTMLElement[] {
  if (differences.length === 0) return [];
  const sources = new Set(differences.flatMap((each) => Object.keys(each.sources)));
  const note = `Task by task, less ${models[0]!.model}. In bold: the 95% interval does not contain 0.`;
  return [...sources].map((source) => {
    const rows = differences.map((each, i) => ({ m: i + 1, name: each.model, estimates: each.sources[source] ?? {} }));
    return section(`Differences on ${source}`, note, table(rows, signed));
  });
}

function section(title: string, note: string, content: Node): HTMLElement {
  return h("section", {}, h("h2", {}, title), note ? h("p", { class: "soft" }, note) : undefined, content);
}

interface Row {
  /** Place of the model, which chooses its color. */
  readonly m: number;
  readonly name: string;
  readonly estimates: Estimates;
}

type Cell = (it: IntervalEstimate, place: { color: string; isShare: boolean }) => Node;

function table(rows: readonly Row[], cell: Cell): HTMLElement {
  const measures = [...new Set(rows.flatMap(({ estimates }) => Object.keys(estimates)))];
  const heads = ["model", ...measures].map((text) => h("th", { scope: "col" }, text));
  const body = rows.map(({ m, name, estimates }) => {
    const color = `var(--run-${m % 8})`;
    const cells = measures.map((measure) => {
      const it = estimates[measure];
      return h("td", {}, it ? cell(it, { color, isShare: measure !== "reward" }) : "–");
    });
    return h("tr", {}, h("th", { scope: "row", class: "model" }, swatch(color), name), cells);
  });
  return h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body)));
}

const swatch = (color: string) => h("span", { class: "swatch", style: `color:${color};margin-right:7px` });

/** The value, and for a share its interval on a line from 0 to 1. */
function bar(it: IntervalEstimate, { color, isShare }: { color: string; isShare: boolean }): HTMLElement {
  const text = h("div", { class: "value" }, h("b", {}, it.mean.toFixed(3)), h("span", { class: "soft" }, ends(it)));
  if (!isShare || !it.interval) return h("div", {}, text);
  const [low, high] = it.interval;
  const span = h("i", { class: "span", style: `left:${low * 100}%;width:${(high - low) * 100}%;background:${color}` });
  const dot = h("i", { class: "dot", style: `left:${it.mean * 100}%;background:${color}` });
  return h("div", {}, text, h("div", { class: "interval", "aria-hidden": "true" }, span, dot));
}

function signed(it: IntervalEstimate): HTMLElement {
  const isClear = it.interval !== null && (it.interval[0] > 0 || it.interval[1] < 0);
  const tone = it.mean > 0 ? "up" : "down";
  const value = h(isClear ? "b" : "span", { class: isClear ? tone : "" }, withSign(it.mean));
  return h("div", { class: "value" }, value, h("span", { class: "soft" }, ends(it, withSign)));
}

const withSign = (value: number) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

const ends = ({ interval }: IntervalEstimate, show = (value: number) => value.toFixed(3)) =>
  interval ? ` ${interval.map(show).join(" to ")}` : "";
