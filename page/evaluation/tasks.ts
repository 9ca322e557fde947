/** The tasks: how many attempts of each model were correct, and what the attempts were. */
import type { EvaluationPageData, ShownAttempt, TaskRow } from "../../src/train/evaluation/contract.ts";
import { h, inputValue } from "../element.ts";
import { counted } from "../format.ts";

/** Rows that are drawn at first, and with each press of the button. */
const STEP = 100;

type Filter = "all" | "wrong" | "unlike";

const FILTERS: readonly (readonly [Filter, string])[] = [
  ["all", "all tasks"],
  ["wrong", "with a wrong attempt"],
  ["unlike", "where models differ"],
];

const state = { filter: "all" as Filter, search: "", limit: STEP };

export function taskSection(data: EvaluationPageData): HTMLElement {
  const list = h("div", { class: "card tasks" });
  const draw = () => list.replaceChildren(...rows(data, draw));
  const choices = data.models.length > 1 ? FILTERS : FILTERS.slice(0, 2);
  const filter = h(
    "select",
    {
      "aria-label": "Which tasks",
      onchange: (event) => {
        [state.filter, state.limit] = [inputValue(event) as Filter, STEP];
        draw();
      },
    },
    choices.map(([value, text]) => h("option", { value }, text)),
  );
  const search = h("input", {
    type: "search",
    placeholder: "Search prompts and responses",
    "aria-label": "Search prompts and responses",
    oninput: (event) => {
      [state.search, state.limit] = [inputValue(event).toLowerCase(), STEP];
      draw();
    },
  });
  draw();
  return h("section", {}, h("h2", {}, "Tasks"), h("div", { class: "choices" }, filter, search), list);
}

function rows({ tasks, models }: EvaluationPageData, draw: () => void): Node[] {
  const found = tasks.filter((task) => passes(task) && contains(task));
  const count = h("p", { class: "soft count" }, `${counted(found.length)} of ${counted(tasks.length)} tasks`);
  const shown = found.slice(0, state.limit).map((task) =>
    row(
      task,
      models.map(({ model }) => model),
    ),
  );
  const more = () => {
    state.limit += STEP;
    draw();
  };
  const button = h("button", { type: "button", onclick: more }, "Show more");
  return [count, ...shown, ...(found.length > state.limit ? [button] : [])];
}

const correct = (attempts: readonly ShownAttempt[]) => attempts.filter(({ is_correct }) => is_correct).length;

function passes({ models }: TaskRow): boolean {
  if (state.filter === "wrong") return models.some((attempts) => correct(attempts) < attempts.length);
  return state.filter === "all" || new Set(models.map(correct)).size > 1;
}

function contains({ prompt, models }: TaskRow): boolean {
  const texts = [prompt, ...models.flat().map(({ response }) => response)];
  return state.search === "" || texts.some((text) => text.toLowerCase().includes(state.search));
}

/** The attempts are drawn when the row is opened. */
function row(task: TaskRow, names: readonly string[]): HTMLElement {
  const counts = task.models.map((attempts, i) => {
    const right = correct(attempts);
    const tone = right === 0 ? "wrong" : right === attempts.length ? "right" : "";
    return h("span", { class: `mark ${tone}`, title: names[i] }, `${right}/${attempts.length}`);
  });
  const details = h(
    "details",
    {
      ontoggle: () => {
        if (details.open && details.children.length === 1) details.append(attemptsOf(task, names));
      },
    },
    h("summary", {}, h("span", { class: "prompt" }, task.prompt), h("span", { class: "counts" }, counts)),
  );
  return details;
}

function attemptsOf({ prompt, models }: TaskRow, names: readonly string[]): HTMLElement {
  const lists = models.map((attempts, i) =>
    h("div", { class: "attempts" }, names.length > 1 ? h("h3", {}, names[i]!) : undefined, attempts.map(attempt)),
  );
  return h("div", { class: "opened" }, h("pre", { class: "whole" }, prompt), lists);
}

function attempt({ reward, is_correct, answer, response, termination_reason }: ShownAttempt): HTMLElement {
  const facts = [`reward ${reward}`, answer === undefined ? "" : `answer ${answer}`];
  if (termination_reason !== "env_done") facts.push(termination_reason);
  const line = h("p", { class: is_correct ? "mark right" : "mark wrong" }, facts.filter(Boolean).join(" · "));
  return h("div", { class: "attempt" }, line, h("pre", {}, response));
}
