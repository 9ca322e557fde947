/** Draws charts with uPlot, again when data, size, theme or smoothing change. */
import uPlot from "uplot";
import type { Chart } from "./chart_list.ts";
import { isMany, shown, state } from "./data.ts";
import { colorName, h, resolved } from "./dom.ts";
import { type Drawn, type Plot, plots } from "./drawn.ts";
import { number } from "./format.ts";
import { showTip } from "./tip.ts";

/** The mean over a window around each point, smaller at the ends: the trend under the noise, without lag. */
function smooth(ys: readonly number[]): number[] {
  const reach = Math.round((ys.length * state.smoothing) / 2);
  const sums = [0];
  for (const y of ys) sums.push(sums.at(-1)! + y);
  return ys.map((_, i) => {
    const room = Math.max(Math.min(reach, i, ys.length - 1 - i), Math.ceil(reach / 3));
    const [from, to] = [Math.max(i - room, 0), Math.min(i + room + 1, ys.length)];
    return (sums[to]! - sums[from]!) / (to - from);
  });
}

/** Curves of more points than this get a trend. */
const SMOOTHED_FROM = 25;
/** Of several metrics of a chart, where runs have the colors. */
const DASHES = [undefined, [6, 4], [2, 3], [10, 4, 2, 4]];

interface Series {
  readonly options: uPlot.Series;
  readonly table: readonly [x: readonly number[], y: readonly number[]];
  readonly of: Drawn | undefined;
}

/** The values of a line, and their trend where they are many. */
function seriesOf(it: Drawn, chart: Chart): Series[] {
  const { x, y } = it.curve;
  const isSmooth = !chart.isMarked && x.length > SMOOTHED_FROM && state.smoothing > 0;
  const stroke = resolved(colorName(isMany() ? it.i : it.j));
  const dash = isMany() ? DASHES[it.j % 4] : undefined;
  const shared = { ...(dash && { dash }), spanGaps: true };
  const isMarked = chart.isMarked || x.length === 1;
  const points = { show: isMarked, size: isMarked ? 7 : 5, fill: resolved("--card"), width: 2 };
  const line = { ...shared, points, stroke: isSmooth ? `${stroke}52` : stroke, width: isSmooth ? 1 : 2 };
  const values: Series = { options: line, table: [x, y], of: it };
  if (!isSmooth) return [values];
  const trend = { ...shared, stroke, width: 2, points: { show: false } };
  return [values, { options: trend, table: [x, smooth(y)], of: undefined }];
}

function drawPlot(plot: Plot): void {
  const series = plot.drawn.flatMap((it) => seriesOf(it, plot.chart));
  const options = series.map((it) => it.options);
  if (plot.drawn.length === 1) options.at(-1)!.fill = `${resolved(colorName(plot.drawn[0]!.i))}12`;
  const tables = series.map(({ table }) => table as unknown as uPlot.AlignedData);
  const values = tables.length === 1 ? tables[0] : uPlot.join(tables);
  plot.series = [undefined, ...series.map(({ of }) => of)];
  plot.uplot?.destroy();
  plot.uplot = new uPlot(optionsOf(plot, options), values, plot.box);
}

const HEIGHT = 190;
const STEPS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6];

function optionsOf(plot: Plot, series: readonly uPlot.Series[]): uPlot.Options {
  const { box, chart } = plot;
  return {
    width: Math.max(box.clientWidth, 120),
    height: HEIGHT,
    padding: [8, 16, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false, range: () => xRange(chart) },
      y: { range: (_, low, high) => yRange(chart, low, high) },
    },
    axes: axes(),
    series: [{}, ...series],
    cursor: {
      y: false,
      drag: { x: false, y: false },
      focus: { prox: -1 },
      // A run that has no value at this step shows none, unless its nearest is a finger's width away.
      hover: { prox: 14 },
      sync: { key: chart.phase === "warmup" ? "warmup" : "step" },
      points: cursorPoints(plot),
    },
    hooks: { setCursor: [(u) => showTip(u, plot)] },
  };
}

function axes(): uPlot.Axis[] {
  const axis = {
    stroke: resolved("--soft"),
    font: "12px system-ui, sans-serif",
    ticks: { show: false },
    grid: { stroke: resolved("--line"), width: 1 },
  };
  const x: uPlot.Axis = {
    ...axis,
    grid: { show: false },
    size: 26,
    space: 60,
    incrs: STEPS,
    values: (_, ticks) => ticks.map((tick) => (tick >= 1e4 ? number(tick) : String(tick))),
  };
  return [x, { ...axis, size: 50, space: 34, values: (_, ticks, _axis, _space, step) => labels(ticks, step) }];
}

/** Three significant digits, and more where they do not tell two ticks apart. */
function labels(ticks: readonly (number | null)[], step: number): string[] {
  const texts = ticks.map((tick) => (tick === null ? "" : number(tick)));
  const shown = texts.filter((text) => text !== "");
  if (new Set(shown).size === shown.length) return texts;
  const decimals = Math.max(0, Math.ceil(-Math.log10(step)));
  return ticks.map((tick) => (tick === null ? "" : tick.toFixed(decimals)));
}

/** A dot on each value at the cursor, none on trends. */
function cursorPoints(plot: Plot): uPlot.Cursor.Points {
  const stroke = (u: uPlot, i: number) => opaque((u.series[i]!.stroke as (u: uPlot, i: number) => string)(u, i));
  const show = (u: uPlot, i: number) =>
    plot.series[i] && h("div", { class: "u-cursor-pt dot", style: `border-color:${stroke(u, i)}` });
  return {
    size: 9,
    width: 2,
    stroke,
    fill: () => resolved("--card"),
    // uPlot takes an absent element for no dot, which its types leave out.
    show: show as (u: uPlot, i: number) => HTMLElement,
  };
}

/** `#rrggbbaa` without its last two digits. */
const opaque = (stroke: string) => (stroke.length === 9 ? stroke.slice(0, 7) : stroke);

/** Charts of one kind share their steps, even where some have no value. */
function xRange({ phase }: Chart): uPlot.Range.MinMax {
  const phases = phase === "warmup" ? (["warmup"] as const) : (["train", "val"] as const);
  const curves = shown().flatMap(({ run }) => phases.flatMap((each) => Object.values(run.curves[each])));
  const low = Math.min(...curves.map(({ x }) => x[0]!));
  const high = Math.max(...curves.map(({ x }) => x.at(-1)!));
  return low === high ? [low - 1, high + 1] : [low, high];
}

/** The ends that the quantity has, or room above and below; a flat curve lies in the middle. */
function yRange({ range }: Chart, low: number | null, high: number | null): uPlot.Range.MinMax {
  if (range) return [range[0] - 0.02, range[1] + 0.02];
  if (low === null || high === null) return [0, 1];
  const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.08;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** Destroys the plots on the page, or those within one of its elements. */
export function forgetPlots(within?: HTMLElement): void {
  for (const plot of [...plots]) {
    if (within && !within.contains(plot.figure)) continue;
    plot.uplot?.destroy();
    plots.splice(plots.indexOf(plot), 1);
  }
}

/** Draws the plots on the page, or those within one of its elements. */
export function drawAll(within?: HTMLElement): void {
  for (const it of plots) if (it.figure.isConnected && (!within || within.contains(it.figure))) drawPlot(it);
}
