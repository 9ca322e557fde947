/** The page of one run or of several: one HTML file that needs nothing else, or the same page served live. */
import { bundledPage } from "../../../leaves/http/bundled_page.ts";
import type { PageData, RunData } from "./page_data.ts";

export interface PageOptions {
  /** The page follows its server's news. */
  readonly isLive?: boolean;
  /** Address of the page of recorded conversations, where the run has some. */
  readonly traces?: string | undefined;
  /** When it was made, in ms since 1970. Default: now. */
  readonly made?: number;
  /** Nonce of its scripts, where the page's Content-Security-Policy names one. */
  readonly nonce?: string;
}

/** Renders the whole page: style, script and data in one text. */
export function renderPage(runs: readonly RunData[], options: PageOptions = {}): string {
  const { isLive = false, made = Date.now(), nonce, traces } = options;
  const data: PageData = { runs, made, live: isLive, ...(traces !== undefined && { traces }) };
  return bundledPage({
    script: "main.js",
    style: "style.css",
    title: runs.length === 1 ? runs[0]!.title : runs.map((run) => run.name).join(", "),
    data,
    nonce,
    noscript: "The curves of this page are drawn by its script: allow it.",
  });
}
