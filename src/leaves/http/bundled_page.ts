/** Pages that the build bundles from page/: one HTML file with its style, its script and its data. */
import { ConfigError } from "../errors.ts";
import { nodeModule } from "../node_module.ts";

export interface BundledPage {
  /** Name of the script in dist/page: `main` takes main.js and its style. */
  readonly script: string;
  readonly style: string;
  readonly title: string;
  /** Data of the page's script, from the element `data`. */
  readonly data: unknown;
  /** Nonce of the page's scripts, where its Content-Security-Policy names one. */
  readonly nonce?: string | undefined;
  /** Text where no script runs. */
  readonly noscript: string;
}

/** The whole page as one text that needs nothing else. @throws {ConfigError} where the page was not built */
export function bundledPage({ script, style, title, data, nonce, noscript }: BundledPage): string {
  const mark = nonce === undefined ? "" : ` nonce="${nonce}"`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)} · grpu</title>
<link rel="icon" href="data:,">
<style>${pageFile(style)}</style>
</head>
<body>
<main id="page"><noscript>${noscript}</noscript></main>
<div id="said" class="hidden" role="status" aria-live="polite"></div>
<script id="data" type="application/json"${mark}>${asJson(data)}</script>
<script type="module"${mark}>${asScript(pageFile(script))}</script>
</body>
</html>
`;
}

/** Text of a bundle that the build made of page/. The same path holds from `src/leaves/http` and from `dist/leaves/http`. */
function pageFile(name: string): string {
  const file = new URL(`../../../dist/page/${name}`, import.meta.url);
  try {
    return nodeModule("node:fs").readFileSync(file, "utf8");
  } catch (cause) {
    throw new ConfigError(
      `Cannot draw the page: ${(cause as Error).message}. Run \`npm run build\` in a checkout, or reinstall grpu.`,
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
