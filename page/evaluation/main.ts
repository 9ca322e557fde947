/** The page of an evaluation: scores with their intervals, differences, and every task with its attempts. */
import type { EvaluationPageData } from "../../src/train/evaluation/contract.ts";
import { h } from "../element.ts";
import { followSystemTheme, toggleTheme } from "../theme.ts";
import { differenceSection, scoreSections } from "./scores.ts";
import { taskSection } from "./tasks.ts";

const data: EvaluationPageData = JSON.parse(document.getElementById("data")?.textContent ?? "{}");
const page = document.getElementById("page")!;

function header(): HTMLElement {
  const [first] = data.models;
  const title =
    data.models.length === 1 ? `Evaluation of ${first!.model}` : `Evaluation of ${data.models.length} models`;
  const facts = `${data.tasks.length} tasks shown · ${first!.attempts} attempts by each model · ${new Date(data.made).toLocaleString()}`;
  return h(
    "header",
    {},
    h("div", {}, h("h1", {}, title), h("p", { class: "soft" }, facts)),
    h("div", { class: "controls" }, h("button", { type: "button", onclick: toggleTheme }, "Light / dark")),
  );
}

followSystemTheme(() => {});
page.replaceChildren(header(), ...scoreSections(data), ...differenceSection(data), taskSection(data));
