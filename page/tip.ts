/** Values at the cursor of a chart, by pointer or by arrow keys. */

import type uPlot from "uplot";
import { h } from "./dom.ts";
import { lineColor, nameOf, type Plot } from "./drawn.ts";
import { precise, trimmed } from "./format.ts";

const said = document.getElementById("said")!;

/** Shows the values at the cursor; announces them to screen readers while the chart has keyboard focus. */
export function showTip(u: uPlot, plot: Plot): void {
  const { box, figure, series } = plot;
  figure.querySelector(".tip")?.remove();
  const isHere = box.matches(":hover") || document.activeElement === box;
  const { idx, left } = u.cursor;
  if (!isHere || idx === null || idx === undefined || left === undefined || left < 0) return;
  const lines = series.flatMap((it, i) => {
    const value = u.data[i]?.[u.cursor.idxs?.[i] ?? -1];
    return it && value !== null && value !== undefined ? [{ it, value }] : [];
  });
  if (lines.length === 0) return;
  const step = `step ${trimmed(u.data[0][idx]!.toFixed(1))}`;
  const isSingle = lines.length === 1;
  const rows = lines.map(({ it, value }) =>
    h(
      "div",
      {},
      isSingle ? undefined : h("span", { class: "swatch", style: `color:${lineColor(it)}` }),
      isSingle ? step : h("span", { class: "name" }, nameOf(it)),
      h("b", {}, precise(value)),
    ),
  );
  const tip = h("div", { class: "tip" }, isSingle ? undefined : step, rows);
  figure.append(tip);
  place(tip, plot, box.offsetLeft + u.bbox.left / devicePixelRatio + left);
  if (document.activeElement === box)
    said.textContent = `${step}: ${lines.map(({ it, value }) => `${nameOf(it)} ${precise(value)}`.trim()).join(", ")}`;
}

/** To the right of the cursor at `x`, or to its left where the card ends. */
function place(tip: HTMLElement, { figure, box }: Plot, x: number): void {
  const most = figure.clientWidth - tip.offsetWidth - 6;
  const beside = x + 14 > most ? x - tip.offsetWidth - 14 : x + 14;
  tip.style.left = `${Math.min(Math.max(beside, 6), most)}px`;
  tip.style.top = `${box.offsetTop + 10}px`;
}

/** Left, right, Home and End move the cursor over the values. */
export function moveCursor(event: KeyboardEvent, { uplot: u }: Plot): void {
  if (!u) return;
  const steps = u.data[0];
  const last = steps.length - 1;
  const now = u.cursor.idx ?? -1;
  const targets: Readonly<Record<string, number>> = {
    ArrowRight: Math.min(now + 1, last),
    ArrowLeft: now < 0 ? last : Math.max(now - 1, 0),
    Home: 0,
    End: last,
  };
  const to = targets[event.key];
  if (to === undefined) return;
  event.preventDefault();
  u.setCursor({ left: u.valToPos(steps[to]!, "x"), top: 20 });
}
