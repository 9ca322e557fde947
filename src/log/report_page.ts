/** Style and script of the report: what a browser needs beside the numbers. */

export const STYLE = `
:root { color-scheme: light dark; --page: #f7f7f5; --card: #ffffff; --ink: #1d2129; --soft: #667080; --line: #e4e5e1;
  --accent: #2563c9; --accent-soft: #2563c914; --good: #14804a; --good-soft: #14804a17; --bad: #b4343a; --bad-soft: #b4343a14; }
@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) { --page: #14171c; --card: #1c2027; --ink: #e8eaee; --soft: #98a2b0;
  --line: #2d333d; --accent: #74a7ff; --accent-soft: #74a7ff1c; --good: #5fcf95; --good-soft: #5fcf951c; --bad: #f08a8e; --bad-soft: #f08a8e1c; } }
:root[data-theme=dark] { color-scheme: dark; --page: #14171c; --card: #1c2027; --ink: #e8eaee; --soft: #98a2b0; --line: #2d333d;
  --accent: #74a7ff; --accent-soft: #74a7ff1c; --good: #5fcf95; --good-soft: #5fcf951c; --bad: #f08a8e; --bad-soft: #f08a8e1c; }
:root[data-theme=light] { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 36px 20px 64px; }
header { display: flex; justify-content: space-between; align-items: flex-start; gap: 16px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 40px 0 14px; }
p { margin: 0; } .soft { color: var(--soft); }
button { font: inherit; font-size: 13px; color: var(--soft); background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 5px 11px; cursor: pointer; }
button:hover { color: var(--ink); }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 0.88em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin-top: 24px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.tile { padding: 14px 16px; } .tile b { display: block; font-size: 24px; line-height: 1.25; font-weight: 620; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.arrow { color: var(--soft); font-weight: 400; margin: 0 .15em; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 14px; }
.chart { margin: 0; padding: 14px 14px 8px; position: relative; }
figcaption { display: grid; grid-template-columns: 1fr auto; align-items: baseline; padding: 0 4px 6px; }
figcaption h3 { margin: 0; font-size: 15px; font-weight: 600; } figcaption code { grid-row: 2; color: var(--soft); font-size: 12px; }
figcaption strong { grid-row: 1 / 3; grid-column: 2; align-self: center; font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; }
.unit { color: var(--soft); font-size: 12px; font-weight: 400; }
svg { display: block; width: 100%; height: auto; overflow: visible; touch-action: pan-y; }
svg text { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.grid line { stroke: var(--line); } .axis line { stroke: var(--soft); opacity: .45; }
.line { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.raw { fill: none; stroke: var(--accent); stroke-width: 1; opacity: .32; } .area { fill: var(--accent-soft); }
.mark { fill: var(--card); stroke: var(--accent); stroke-width: 2; }
.cursor[hidden] { display: none; } .cursor line { stroke: var(--soft); stroke-dasharray: 3 3; } .cursor circle { fill: var(--accent); stroke: var(--card); stroke-width: 2; }
.tip { position: absolute; pointer-events: none; background: var(--ink); color: var(--page); border-radius: 7px; padding: 3px 9px; font-size: 12.5px; white-space: nowrap; transform: translate(-50%, -130%); font-variant-numeric: tabular-nums; z-index: 2; }
.samples { width: 100%; border-collapse: collapse; } .samples th { text-align: left; font-size: 13px; color: var(--soft); font-weight: 500; padding: 10px 14px; border-bottom: 1px solid var(--line); }
.samples td { padding: 9px 14px; border-bottom: 1px solid var(--line); vertical-align: top; white-space: pre-wrap; overflow-wrap: anywhere; } .samples tr:last-child td { border-bottom: 0; }
.scroll { overflow-x: auto; } .mark-good, .mark-bad { display: inline-block; font-size: 12px; border-radius: 6px; padding: 1px 7px; margin-left: 8px; font-variant-numeric: tabular-nums; }
.mark-good { color: var(--good); background: var(--good-soft); } .mark-bad { color: var(--bad); background: var(--bad-soft); }
details { margin-top: 14px; padding: 12px 16px; } summary { cursor: pointer; } pre { overflow-x: auto; font-size: 12.5px; margin: 12px 0 4px; }
@media (max-width: 520px) { main { padding: 22px 12px 40px; } .tile b { font-size: 20px; } }
@media print { button { display: none; } .card { break-inside: avoid; } }
`;

/** Theme switch, and the value under the pointer on every chart. */
export const SCRIPT = `
const root = document.documentElement;
document.querySelector("button.theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
});
for (const card of document.querySelectorAll(".chart")) {
  const points = JSON.parse(card.dataset.points);
  const svg = card.querySelector("svg"), cursor = svg.querySelector(".cursor");
  const [x0, x1, first, last] = svg.dataset.x.split(",").map(Number);
  const [y0, y1, low, high] = svg.dataset.y.split(",").map(Number);
  const toX = (x) => x0 + ((x - first) / Math.max(last - first, 1e-9)) * (x1 - x0);
  const toY = (y) => y0 + ((y - low) / Math.max(high - low, 1e-12)) * (y1 - y0);
  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; card.append(tip);
  const hide = () => { tip.hidden = true; cursor.setAttribute("hidden", ""); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), frame = card.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const at = (event.clientX - box.left) / scale;
    let best = points[0];
    for (const point of points) if (Math.abs(toX(point[0]) - at) < Math.abs(toX(best[0]) - at)) best = point;
    const x = toX(best[0]), y = toY(best[1]);
    cursor.removeAttribute("hidden");
    cursor.querySelector("line").setAttribute("x1", x); cursor.querySelector("line").setAttribute("x2", x);
    cursor.querySelector("circle").setAttribute("cx", x); cursor.querySelector("circle").setAttribute("cy", y);
    tip.textContent = card.dataset.axis + " " + best[0] + ": " + best[1];
    tip.hidden = false;
    tip.style.left = Math.min(Math.max(box.left - frame.left + x * scale, 60), frame.width - 60) + "px";
    tip.style.top = box.top - frame.top + y * scale + "px";
  });
  svg.addEventListener("pointerleave", hide);
}
`;
