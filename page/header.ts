/** The page's head: what it shows, whether it runs, smoothing and theme; and the legend of several runs. */
import type { RunData } from "../src/train/log/page/page_data.ts";
import { data, isMany, placed, state } from "./data.ts";
import { color, h, inputValue } from "./dom.ts";
import { duration } from "./format.ts";
import { drawAll } from "./plot.ts";
import { toggleTheme } from "./theme.ts";

/** A run that has written nothing for this long no longer counts as running. */
const QUIET_MS = 120_000;

function statusOf(run: RunData): readonly [kind: string, text: string] {
  if (run.status !== "open") return [run.status, run.status];
  const quiet = (data.live ? Date.now() : data.made) - run.updated;
  if (quiet < QUIET_MS) return ["running", data.live ? "running" : "running when this was made"];
  return ["stopped", `unfinished, silent for ${duration(quiet / 1000)}`];
}

export function header(): HTMLElement {
  const first = data.runs[0]!;
  const names = data.runs.map((run) => run.name).join(" · ");
  return h(
    "header",
    {},
    h(
      "div",
      {},
      h("h1", {}, isMany() ? "Runs side by side" : first.title),
      h("p", { class: "soft" }, isMany() ? names : first.subtitle),
      badLines(),
    ),
    h("div", { class: "controls" }, [
      state.isLost ? h("span", { class: "badge lost" }, "no longer live") : undefined,
      isMany() ? undefined : badge(first),
      data.traces === undefined ? undefined : h("a", { class: "button", href: data.traces }, "Conversations"),
      h("label", {}, "Smoothing", smoothing()),
      h("button", { type: "button", onclick: switchTheme }, "Light / dark"),
    ]),
  );
}

function badge(run: RunData): HTMLElement {
  const [kind, text] = statusOf(run);
  return h("span", { class: `badge ${kind}` }, text);
}

function smoothing(): HTMLElement {
  const oninput = (event: Event) => {
    state.smoothing = Number(inputValue(event));
    drawAll();
  };
  const value = String(state.smoothing);
  return h("input", { type: "range", min: "0", max: "0.4", step: "0.02", value, oninput });
}

function switchTheme(): void {
  toggleTheme();
  drawAll();
}

function badLines(): HTMLElement | undefined {
  const count = data.runs.reduce((total, run) => total + run.badLines, 0);
  if (count === 0) return undefined;
  return h("p", { class: "soft" }, `${count} damaged ${count === 1 ? "line is" : "lines are"} left out`);
}

/** A button for each run, which hides and shows it. */
export function legend(render: () => void): HTMLElement | undefined {
  if (!isMany()) return undefined;
  const buttons = placed().map(({ run, i }) => {
    const [kind, text] = statusOf(run);
    const attributes = {
      type: "button",
      "aria-pressed": String(!state.hidden.has(run.name)),
      title: `${run.subtitle} (${text})`,
      onclick: () => {
        if (!state.hidden.delete(run.name)) state.hidden.add(run.name);
        render();
      },
    };
    const swatch = h("span", { class: "swatch", style: `color:${color(i)}` });
    return h("button", attributes, swatch, run.name, kind === "running" ? " ●" : "");
  });
  return h("div", { class: "legend", role: "group", "aria-label": "Runs" }, buttons);
}
