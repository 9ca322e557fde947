/** The page of one run or of several: one HTML file that needs nothing else, or the same page served live. */
import { readFileSync } from "node:fs";
import { ConfigError } from "../../errors.ts";
import type { PageData, RunData } from "./page_data.ts";

export interface PageOptions {
  /** The page follows its server's news. */
  readonly isLive?: boolean;
  /** When it was made, in ms since 1970. Default: now. */
  readonly made?: number;
  /** Of its scripts, where the page's Content-Security-Policy names one. */
  readonly nonce?: string;
}

/** Renders the whole page: style, script and data in one text. */
export function renderPage(runs: readonly RunData[], options: PageOptions = {}): string {
  const { isLive = false, made = Date.now(), nonce } = options;
  const mark = nonce === undefined ? "" : ` nonce="${nonce}"`;
  const data: PageData = { runs, made, live: isLive };
  const title = runs.length === 1 ? runs[0]!.title : runs.map((run) => run.name).join(", ");
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)} · grpu</title>
<link rel="icon" href="data:,">
<style>${pageFile("style.css")}</style>
</head>
<body>
<main id="page"><noscript>The curves of this page are drawn by its script: allow it.</noscript></main>
<div id="said" class="hidden" role="status" aria-live="polite"></div>
<script id="data" type="application/json"${mark}>${asJson(data)}</script>
<script type="module"${mark}>${asScript(pageFile("main.js"))}</script>
</body>
</html>
`;
}

/** Text of a bundle that the build made of page/. The same path holds from `src/log/page` and from `dist/log/page`. */
function pageFile(name: string): string {
  const file = new URL(`../../../dist/page/${name}`, import.meta.url);
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new ConfigError(
      `Cannot draw the page of a run: ${(cause as Error).message}. Run \`npm run build\` in a checkout, or reinstall grpu.`,
      { kind: "data" },
    );
  }
}

/** JSON that no text in it can end the script element of. */
export function asJson(data: unknown): string {
  return JSON.stringify(data).replaceAll("<", "\\u003c");
}

function asScript(text: string): string {
  return text.replaceAll("</script", "<\\/script");
}

function escapeHtml(text: string): string {
  const entities: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return text.replace(/[&<>"]/g, (character) => entities[character]!);
}
