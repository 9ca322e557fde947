/** The page of one run or several, drawn from the JSON in it (`PageData`), and again whenever its server has news. */
import { chartSection } from "./chart_card.ts";
import { stalenessCharts, trainingCharts, warmupCharts } from "./chart_list.ts";
import { data, state } from "./data.ts";
import { h } from "./dom.ts";
import { plots } from "./drawn.ts";
import { differingSettings, finalFigures, tiles } from "./figures.ts";
import { filterSection } from "./filters.ts";
import { followWidth } from "./follow_width.ts";
import { groupSection } from "./groups.ts";
import { header, legend } from "./header.ts";
import { follow } from "./live.ts";
import { moreSection } from "./more.ts";
import { drawAll, forgetPlots } from "./plot.ts";
import { sampleSection } from "./samples.ts";
import { followSystemTheme } from "./theme.ts";

const page = document.getElementById("page")!;

function render(): void {
  const restore = rememberFocus();
  forgetPlots();
  page.replaceChildren(...parts().filter((part) => part !== undefined));
  drawAll();
  restore();
}

/** The page from top to bottom. */
function parts(): (HTMLElement | undefined)[] {
  const isEmpty = data.runs.every(({ curves }) =>
    Object.values(curves).every((each) => Object.keys(each).length === 0),
  );
  return [
    header(),
    legend(render),
    isEmpty ? nothing() : tiles(),
    finalFigures(),
    chartSection("Training", undefined, trainingCharts()),
    groupSection(render),
    filterSection(),
    chartSection("Staleness", "How many weight updates a group waited, and where it waited.", stalenessCharts()),
    chartSection("Warm-up", undefined, warmupCharts()),
    sampleSection(),
    differingSettings(),
    moreSection(),
  ];
}

function nothing(): HTMLElement {
  const text = data.live
    ? "Nothing was measured yet: this page draws the first step as soon as it is done."
    : "Nothing was measured.";
  return h("div", { class: "card nothing" }, text);
}

/** Remembers the chart or the search that has the keyboard. Returns what gives it back after a new rendering. */
function rememberFocus(): () => void {
  const active = document.activeElement;
  const focused = plots.findIndex(({ box }) => box === active);
  const left = plots[focused]?.uplot?.cursor.left;
  const isSearching = active instanceof HTMLInputElement && active.type === "search";
  return () => {
    if (isSearching) {
      const search = page.querySelector<HTMLInputElement>("input[type=search]");
      search?.focus();
      search?.setSelectionRange(state.search.length, state.search.length);
      return;
    }
    const plot = plots[focused];
    plot?.box.focus({ preventScroll: true });
    if (left !== undefined) plot?.uplot?.setCursor({ left, top: 20 });
  };
}

followSystemTheme(drawAll);
render();
followWidth(page, drawAll);
if (data.live) follow(render);
