/** Parts of status pages: tiles, bars and tables as HTML text, on a page that refreshes itself. */

/** A whole page. @param nonce of its script, as in its Content-Security-Policy */
export function refreshedPage({ title, nonce, content }: { title: string; nonce: string; content: string }): string {
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>${escapeHtml(title)}</title><noscript><meta http-equiv="refresh" content="5"></noscript><style>${STYLE}</style></head>
<body><main>${content}</main><script nonce="${nonce}">${SCRIPT}</script></body></html>`;
}

/** Rows shown of a table; further ones are counted. */
const MOST_ROWS = 12;

/** Cells are HTML; `none` is the text of an empty table. */
export function table(
  title: string,
  of: { head: readonly string[]; rows: readonly (readonly string[])[]; none: string },
): string {
  const count = of.rows.length > 0 ? ` <span class="soft">${of.rows.length}</span>` : "";
  if (of.rows.length === 0) return `<h2>${title}</h2><p class="soft">${of.none}</p>`;
  const cells = (tag: string, row: readonly string[]) =>
    `<tr>${row.map((cell) => `<${tag}>${cell}</${tag}>`).join("")}</tr>`;
  const shown = of.rows.slice(0, MOST_ROWS).map((row) => cells("td", row));
  const rest = of.rows.length > MOST_ROWS ? `<p class="soft rest">and ${of.rows.length - MOST_ROWS} more</p>` : "";
  return `<h2>${title}${count}</h2><div class="card scroll"><table>${cells("th", of.head)}${shown.join("")}</table>${rest}</div>`;
}

/** A large figure with its label, both HTML. */
export function tile(value: string | number, label: string): string {
  return `<div class="card tile"><b>${value}</b><span>${label}</span></div>`;
}

/** A share of a whole in [0, 1], with its label and text as HTML. */
export function bar(label: string, { share, text }: { share: number; text: string }): string {
  const percent = Math.min(Math.max(share, 0), 1) * 100;
  return `<div class="bar"><span>${label}</span><i><u style="width:${percent.toFixed(1)}%"></u></i><span class="soft">${text}</span></div>`;
}

/** Text as code, escaped. */
export function mono(text: string): string {
  return `<code>${escapeHtml(text)}</code>`;
}

/** Text for an element or an attribute. */
export function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

/** The noun for that many. */
export function plural(count: number, noun: string): string {
  return count === 1 ? noun : `${noun}s`;
}

/** Three significant digits: `12.3 k`. */
export function compact(value: number): string {
  for (const [unit, size] of [
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e4],
  ] as const)
    if (value >= size) return `${Number((value / (size === 1e4 ? 1e3 : size)).toPrecision(3))} ${unit}`;
  return String(value >= 100 ? Math.round(value) : Number(value.toPrecision(3)));
}

/** `1.5 GiB`. */
export function sizeText(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value > 0 ? Math.min(Math.floor(Math.log2(value) / 10), units.length - 1) : 0;
  return `${Number((value / 1024 ** power).toPrecision(3))} ${units[power]}`;
}

/** `90 s`, `12 min`, `3 h`, `4 days`. */
export function roughDuration(seconds: number): string {
  if (seconds < 90) return `${Math.max(Math.round(seconds), 0)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  return seconds < 36 * 3600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}

const SCRIPT = `
const refresh = async () => {
  let text = "";
  try { const answer = await fetch(location.href, { cache: "no-store" }); if (answer.ok) text = await answer.text(); } catch {}
  document.body.classList.toggle("lost", text === "");
  if (text) document.querySelector("main").innerHTML = new DOMParser().parseFromString(text, "text/html").querySelector("main").innerHTML;
  setTimeout(refresh, 2000);
};
setTimeout(refresh, 2000);`;

const STYLE = `
:root { color-scheme: light dark; --page: #f7f7f5; --card: #ffffff; --ink: #1d2129; --soft: #667080; --line: #e4e5e1; --accent: #2563c9; --good: #14804a; --warn: #a15c00; --bad: #b4343a; }
@media (prefers-color-scheme: dark) { :root { --page: #14171c; --card: #1c2027; --ink: #e8eaee; --soft: #98a2b0; --line: #2d333d; --accent: #74a7ff; --good: #5fcf95; --warn: #e6b35a; --bad: #f08a8e; } }
* { box-sizing: border-box; } body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 1160px; margin: 0 auto; padding: 36px 20px 64px; } p { margin: 0; } .soft { color: var(--soft); } .warn { color: var(--warn); }
header { display: flex; justify-content: space-between; gap: 24px; } header > p { text-align: right; white-space: nowrap; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; } h2 { font-size: 18px; margin: 36px 0 12px; } h2 .soft { font-weight: 400; }
.live { color: var(--good); } .live::before { content: "● "; } .lost .live { font-size: 0; } .lost .live::after { font-size: 15px; color: var(--bad); content: "● no answer"; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; } .scroll { overflow-x: auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin-top: 24px; }
.tile { padding: 14px 16px; } .tile b { display: block; font-size: 24px; line-height: 1.25; font-weight: 620; } .tile span { color: var(--soft); font-size: 13px; }
.rows { padding: 8px 16px; } .bar { display: grid; grid-template-columns: 190px minmax(80px, 1fr) minmax(0, 1.6fr); gap: 14px; align-items: center; padding: 6px 0; font-size: 14px; } .bar .soft { overflow-wrap: anywhere; }
.bar i { height: 8px; border-radius: 4px; background: var(--line); overflow: hidden; } .bar u { display: block; height: 100%; background: var(--accent); border-radius: 4px; }
table { width: 100%; border-collapse: collapse; font-size: 14px; } th { text-align: left; font-size: 13px; color: var(--soft); font-weight: 500; }
th, td { padding: 9px 14px; border-bottom: 1px solid var(--line); white-space: nowrap; } tr:last-child td { border-bottom: 0; } .rest { padding: 9px 14px; border-top: 1px solid var(--line); }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 0.88em; }
@media (max-width: 640px) { main { padding: 22px 12px 40px; } .bar { grid-template-columns: 1fr; gap: 4px; } }`;
