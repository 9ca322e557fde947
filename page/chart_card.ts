/** Charts as cards with a caption. */
import type { Chart } from "./chart_list.ts";
import { curve, isMany, shown } from "./data.ts";
import { h, section } from "./dom.ts";
import { type Drawn, lineColor, nameOf, type Plot, plots } from "./drawn.ts";
import { number } from "./format.ts";
import { moveCursor } from "./tip.ts";

/** A chart as a card, to be drawn once it is on the page; undefined where no shown run has a value. */
export function chartCard(chart: Chart): HTMLElement | undefined {
  const drawn = shown().flatMap(({ run, i }) =>
    chart.lines.flatMap((line, j): Drawn[] => {
      const it = curve(run, chart.phase, line.name);
      return it ? [{ ...line, run, i, j, curve: it }] : [];
    }),
  );
  if (drawn.length === 0) return undefined;
  const box = h("div", {
    class: "plot",
    tabindex: "0",
    role: "img",
    "aria-label": describe(chart, drawn),
    onkeydown: (event) => moveCursor(event as KeyboardEvent, plot),
    onblur: () => plot.uplot?.setCursor({ left: -10, top: -10 }),
  });
  const figure = h("figure", { class: "card chart" }, caption(chart, drawn), box);
  const plot: Plot = { chart, drawn, figure, box, series: [] };
  plots.push(plot);
  return figure;
}

function caption(chart: Chart, drawn: readonly Drawn[]): HTMLElement {
  const unit = chart.unit ? h("span", { class: "unit" }, ` ${chart.unit}`) : "";
  const value =
    drawn.length === 1
      ? h("strong", {}, number(drawn[0]!.curve.last), unit)
      : h("strong", { class: "unit" }, chart.unit ?? "");
  const parts = chart.lines.length > 1 ? partsOf(chart, drawn) : undefined;
  return h("figcaption", {}, h("h3", {}, chart.title), h("code", {}, chart.metric), value, parts);
}

const SWATCHES = ["", "dashed", "dotted"];

function partsOf(chart: Chart, drawn: readonly Drawn[]): HTMLElement {
  const firsts = chart.lines.flatMap((line) => drawn.find((it) => it.name === line.name) ?? []);
  const parts = firsts.map((it, j) => {
    const style = isMany() ? "color:var(--soft)" : `color:${lineColor(it)}`;
    const kind = isMany() ? `swatch ${SWATCHES[j % 3]}` : "swatch";
    const value = isMany() ? "" : ` ${number(it.curve.last)}`;
    return h("span", {}, h("span", { class: kind, style }), `${it.label}${value}`);
  });
  return h("div", { class: "parts" }, parts);
}

function describe(chart: Chart, drawn: readonly Drawn[]): string {
  const each = drawn.map((it) => {
    const { first, last, min, max } = it.curve;
    const who = nameOf(it);
    return `${who ? `${who}: ` : ""}from ${number(first)} to ${number(last)}, between ${number(min)} and ${number(max)}`;
  });
  return `${chart.title}, ${each.join("; ")}. Left and right arrows read values.`;
}

export function chartSection(title: string, note: string | undefined, charts: readonly Chart[]) {
  const cards = charts.map(chartCard).filter((card) => card !== undefined);
  return cards.length > 0 ? section(title, note, h("div", { class: "charts" }, cards)) : undefined;
}
