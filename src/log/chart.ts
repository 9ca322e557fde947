/** Line charts as SVG text, for a page that needs no library. */

export interface Series {
  readonly points: readonly (readonly [x: number, y: number])[];
}

export interface ChartOptions {
  readonly title: string;
  /** Name of the metric, under the title. */
  readonly metric: string;
  /** What the numbers are: `tokens/s`. */
  readonly unit?: string;
  /** Fixed ends of the y axis, where the quantity has them. */
  readonly range?: readonly [low: number, high: number];
  /** Marks every point: for curves of few, far apart. */
  readonly marked?: boolean;
  /** What x counts. Default `step`. */
  readonly axis?: string;
}

const WIDTH = 520;
const HEIGHT = 210;
const LEFT = 50;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 26;

/** Curves of more points than this are drawn faintly, under their moving average. */
const SMOOTHED_FROM = 30;
/** Width of the moving average's window, as a share of all points. */
const WINDOW_SHARE = 0.15;

/** A card with a title, the last value and the curve. Empty text when there is nothing to draw. */
export function chartCard({ points }: Series, options: ChartOptions): string {
  const finite = points.filter(([, y]) => Number.isFinite(y));
  if (finite.length === 0) return "";
  const last = finite[finite.length - 1][1];
  const unit = options.unit ? ` <span class="unit">${escapeHtml(options.unit)}</span>` : "";
  return `<figure class="card chart" data-points="${escapeHtml(JSON.stringify(finite.map(roundPoint)))}" data-axis="${escapeHtml(options.axis ?? "step")}">
<figcaption><h3>${escapeHtml(options.title)}</h3><code>${escapeHtml(options.metric)}</code><strong>${tickLabel(last)}${unit}</strong></figcaption>
${svg(finite, options)}
</figure>`;
}

function roundPoint([x, y]: readonly [number, number]): [number, number] {
  return [x, Number(y.toPrecision(5))];
}

type Scale = (value: number) => number;

function svg(points: Series["points"], options: ChartOptions): string {
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const [low, high] = options.range ?? padded(Math.min(...ys), Math.max(...ys));
  const [first, final] = [Math.min(...xs), Math.max(...xs)];
  const x: Scale = (value) =>
    LEFT + ((value - first) / Math.max(final - first, 1e-9)) * (WIDTH - LEFT - RIGHT);
  const y: Scale = (value) =>
    HEIGHT - BOTTOM - ((value - low) / Math.max(high - low, 1e-12)) * (HEIGHT - TOP - BOTTOM);
  const isSmoothed = points.length > SMOOTHED_FROM && !options.marked;
  const marks = options.marked || points.length === 1 ? points : [];
  const drawn = isSmoothed ? smooth(points) : points;
  const label = `${options.title}: from ${tickLabel(ys[0])} to ${tickLabel(ys[ys.length - 1])}`;
  return `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escapeHtml(label)}" data-x="${LEFT},${WIDTH - RIGHT},${first},${final}" data-y="${HEIGHT - BOTTOM},${TOP},${low},${high}">
<g class="grid">${ticks(low, high, 4)
    .map((value) => yTick(value, y))
    .join("")}</g>
<g class="axis">${wholeTicks(first, final, 6)
    .map((value) => xTick(value, x))
    .join("")}<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${HEIGHT - BOTTOM}" y2="${HEIGHT - BOTTOM}"/></g>
${isSmoothed ? `<path class="raw" d="${path(points, x, y)}"/>` : ""}<path class="area" d="${path(drawn, x, y)}L${round(x(final))} ${HEIGHT - BOTTOM}L${round(x(first))} ${HEIGHT - BOTTOM}Z"/>
<path class="line" d="${path(drawn, x, y)}"/>${marks.map(([px, py]) => `<circle class="mark" cx="${round(x(px))}" cy="${round(y(py))}" r="3.5"/>`).join("")}
<g class="cursor" hidden><line y1="${TOP}" y2="${HEIGHT - BOTTOM}"/><circle r="4.5"/></g>
</svg>`;
}

/** The mean over a window around each point, smaller at the ends: the trend under the noise, without lag. */
function smooth(points: Series["points"]): [number, number][] {
  const reach = Math.max(Math.round((points.length * WINDOW_SHARE) / 2), 1);
  return points.map(([x], i) => {
    const room = Math.min(reach, i, points.length - 1 - i);
    const near = points.slice(i - room, i + room + 1);
    return [x, near.reduce((sum, [, y]) => sum + y, 0) / near.length];
  });
}

function path(points: Series["points"], x: Scale, y: Scale): string {
  return points.map(([px, py], i) => `${i === 0 ? "M" : "L"}${round(x(px))} ${round(y(py))}`).join("");
}

function yTick(value: number, y: Scale): string {
  const at = round(y(value));
  return `<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${at}" y2="${at}"/><text x="${LEFT - 8}" y="${at + 4}" text-anchor="end">${tickLabel(value)}</text>`;
}

function xTick(value: number, x: Scale): string {
  return `<text x="${round(x(value))}" y="${HEIGHT - 8}" text-anchor="middle">${tickLabel(value)}</text>`;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

/** Room above and below, so that a flat curve lies in the middle. */
function padded(low: number, high: number): [number, number] {
  if (low === high) {
    const room = Math.abs(low) > 0 ? Math.abs(low) * 0.1 : 1;
    return [low - room, high + room];
  }
  const room = (high - low) * 0.06;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** About `count` round numbers (1, 2 or 5 times a power of ten) within the range. */
export function ticks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Round whole numbers: steps have no halves. */
function wholeTicks(low: number, high: number, count: number): number[] {
  return ticks(low, high, Math.min(count, Math.max(high - low, 1))).filter(Number.isInteger);
}

function tickLabel(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size > 0 && size < 1e-3) return value.toExponential(1).replace("e-", "e−");
  return String(Number(value.toPrecision(3)));
}

export function escapeHtml(text: string): string {
  const entities: Record<string, string> = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&#39;",
  };
  return text.replace(/[&<>"']/g, (character) => entities[character]);
}
