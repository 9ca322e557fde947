/** The page of an evaluation: one HTML file that needs nothing else. */
import { bundledPage } from "../../leaves/http/bundled_page.ts";
import type { EvaluationPageData } from "./contract.ts";

/** @throws {ConfigError} where the page was not built */
export function evaluationPage(data: EvaluationPageData): string {
  return bundledPage({
    script: "evaluation/main.js",
    style: "evaluation/style.css",
    title: `Evaluation of ${data.models.map(({ model }) => model).join(", ")}`,
    data,
    noscript: "The tables of this page are drawn by its script: allow it.",
  });
}
