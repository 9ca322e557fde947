/** What is drawn: a line of a chart, and the plots on the page. */
import type uPlot from "uplot";
import type { CurveData } from "../src/train/log/page/page_data.ts";
import type { Chart, Line } from "./chart_list.ts";
import { isMany, type Placed } from "./data.ts";
import { color, ifMany } from "./dom.ts";

/** A line of a chart with values: metric `j` of the chart, of run `i`. */
export interface Drawn extends Line, Placed {
  readonly j: number;
  readonly curve: CurveData;
}

export interface Plot {
  readonly chart: Chart;
  readonly drawn: readonly Drawn[];
  readonly figure: HTMLElement;
  /** uPlot's parent; takes the keyboard. */
  readonly box: HTMLElement;
  uplot?: uPlot;
  /** By series of `uplot`; undefined for the x axis and for smoothed trends. */
  series: readonly (Drawn | undefined)[];
}

/** The plots on the page, in its order. */
export const plots: Plot[] = [];

/** Within a chart of several metrics, one run tells them apart by color, several runs by dashes. */
export const lineColor = (it: Drawn) => color(isMany() ? it.i : it.j);

/** The run and the metric, as far as the chart has several. */
export const nameOf = ({ run, label }: Drawn) => [ifMany(run.name), label ?? ""].filter(Boolean).join(" ");
