/** Everything else, closed until it is asked for: a chart of each metric, and the settings as text. */
import type { Phase } from "../src/train/log/logger.ts";
import { chartCard } from "./chart_card.ts";
import { metricChart } from "./chart_list.ts";
import { data, isMany, metricNames, state } from "./data.ts";
import { h, inputValue, section } from "./dom.ts";
import { drawAll, forgetPlots } from "./plot.ts";

export const moreSection = () => section("More", undefined, allMetrics(), ...settingsTexts());

interface Metric {
  readonly phase: Phase;
  readonly name: string;
}

function everyMetric(): Metric[] {
  const phases = ["train", "val", "warmup"] as const;
  return phases
    .flatMap((phase) =>
      // Every name but that of the mean over the roles, which no file has.
      metricNames(phase, /^(?!reward$)/).map((name) => ({ phase, name })),
    )
    .sort((a, b) => (a.name < b.name ? -1 : 1));
}

function allMetrics(): HTMLElement | undefined {
  const metrics = everyMetric();
  if (metrics.length === 0) return undefined;
  const charts = h("div", { class: "charts" });
  const details = h(
    "details",
    {
      class: "card",
      open: state.isAllOpen,
      ontoggle: () => {
        state.isAllOpen = details.open;
        if (details.open) fill(charts, metrics);
      },
    },
    h("summary", {}, `All ${metrics.length} metrics`),
    h("input", {
      type: "search",
      placeholder: "Part of a name, for instance advantage",
      "aria-label": "Search metrics",
      value: state.search,
      oninput: (event) => {
        state.search = inputValue(event);
        fill(charts, metrics);
      },
    }),
    charts,
  );
  return details;
}

/** Draws the metrics that the search finds. */
function fill(charts: HTMLElement, metrics: readonly Metric[]): void {
  forgetPlots(charts);
  const wanted = state.search.toLowerCase();
  const found = metrics.filter(({ name }) => name.toLowerCase().includes(wanted));
  const cards = found.map(({ phase, name }) => chartCard(metricChart(phase, name)));
  charts.replaceChildren(...cards.filter((card) => card !== undefined));
  drawAll(charts);
}

function settingsTexts(): HTMLElement[] {
  const runs = data.runs.filter((run) => run.config !== "");
  return runs.map((run) => {
    const details = h(
      "details",
      {
        class: "card",
        open: !isMany() && state.isSettingsOpen,
        ontoggle: () => {
          state.isSettingsOpen = details.open;
        },
      },
      h("summary", {}, isMany() ? `Settings of ${run.name}` : "Settings of this run"),
      h("pre", {}, run.config),
    );
    return details;
  });
}
