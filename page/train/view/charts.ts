/** The charts of all runs, drawn by the page of runs' own parts, one a task. */
import { chartCard } from "../../chart_card.ts";
import { type Chart, trainingCharts, warmupCharts } from "../../chart_list.ts";
import { replaceData } from "../../data.ts";
import { plots } from "../../drawn.ts";
import { h } from "../../element.ts";
import { legend } from "../../header.ts";
import { drawAll, forgetPlots } from "../../plot.ts";
import { schedule } from "../schedule.ts";
import { state } from "../state.ts";

/** A chart is drawn again at most this often. */
const EVERY_MS = 900;
/** A person who reads values off a chart holds it for at most this long. */
const MOST_HELD_MS = 5000;

const grid = h("div", { class: "charts" });
const legendPlace = h("div");
const places = new Map<string, HTMLElement>();
const drawnAt = new Map<string, number>();

export function chartSection(): HTMLElement {
  return h(
    "section",
    { "aria-labelledby": "charts-title" },
    h("h2", { id: "charts-title" }, "What is measured"),
    h(
      "p",
      { class: "soft" },
      "The reward is what the model is trained for; held-out accuracy says whether it has learned, and not learned by heart. Entropy is how undecided it is.",
    ),
    legendPlace,
    grid,
  );
}

/** Draws what has changed, soon. */
export function drawCharts(): void {
  schedule("charts", drawSoon, EVERY_MS);
}

/** Gives what the workers have reported to the parts that the page of runs draws. */
export function collectRuns(): void {
  const shown = state.slots.filter(({ view }) => view.phase !== undefined);
  replaceData({ runs: shown.map(({ view }) => view.data(state.recipe)), made: Date.now(), live: true });
}

function drawSoon(): void {
  collectRuns();
  legendPlace.replaceChildren(...[legend(drawCharts)].filter((it) => it !== undefined));
  const charts = [...trainingCharts(), ...warmupCharts()].map(
    (chart) => [`${chart.phase} ${chart.metric}`, chart] as const,
  );
  for (const [key, chart] of charts) schedule(`chart ${key}`, () => drawOne(key, chart));
  if (charts.some(([key]) => !places.has(key))) grid.replaceChildren(...charts.map(([key]) => placeOf(key)));
}

function drawOne(key: string, chart: Chart): void {
  const place = placeOf(key);
  if (isRead(place) && performance.now() - (drawnAt.get(key) ?? 0) < MOST_HELD_MS) return;
  drawnAt.set(key, performance.now());
  const hadFocus = place.contains(document.activeElement);
  forgetPlots(place);
  const card = chartCard(chart);
  place.hidden = card === undefined;
  place.replaceChildren(...(card ? [card] : []));
  drawAll(place);
  if (hadFocus) plots.find(({ figure }) => figure === card)?.box.focus({ preventScroll: true });
}

function placeOf(key: string): HTMLElement {
  const place = places.get(key) ?? h("div", { class: "chart-place" });
  places.set(key, place);
  return place;
}

const isRead = (place: HTMLElement) => place.querySelector(".plot:hover, .plot:focus") !== null;

/** After a reset: nothing is measured. */
export function forgetCharts(): void {
  for (const [key, place] of places) {
    forgetPlots(place);
    place.replaceChildren();
    place.hidden = true;
    drawnAt.delete(key);
  }
  drawCharts();
}
