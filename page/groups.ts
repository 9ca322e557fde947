/** The rewards of each group of attempts, at a step to choose. */
import type { GroupEntry, GroupsLine } from "../src/train/log/run_files.ts";
import { type Placed, placed, state } from "./data.ts";
import { h, inputValue, section } from "./dom.ts";
import { number, precise } from "./format.ts";

export function groupSection(render: () => void): HTMLElement | undefined {
  const runs = placed().filter(({ run }) => run.groups.length > 0);
  const chosen = runs.find(({ i }) => i === state.groupRun) ?? runs[0];
  if (!chosen) return undefined;
  const picker = h("div", { class: "pick" });
  const body = h("div");
  picker.append(
    ...[runs.length > 1 ? runSelect(runs, chosen, render) : [], stepPicker(chosen.run.groups, body)].flat(),
  );
  return section(
    "Groups",
    "One row a group, one cell an attempt: its reward; then how many attempts solved the task. Groups of equal rewards teach nothing.",
    h("div", { class: "card groups" }, picker, body),
  );
}

function runSelect(runs: readonly Placed[], chosen: Placed, render: () => void): HTMLElement {
  const onchange = (event: Event) => {
    state.groupRun = Number(inputValue(event));
    state.groupStep = -1;
    render();
  };
  const options = runs.map(({ run, i }) => h("option", { value: String(i), selected: i === chosen.i }, run.name));
  return h("select", { "aria-label": "Run", onchange }, options);
}

/** Fills `body` with the chosen step, and returns what chooses it. */
function stepPicker(lines: readonly GroupsLine[], body: HTMLElement): HTMLElement[] {
  const last = lines.length - 1;
  const place = state.groupStep < 0 || state.groupStep > last ? last : state.groupStep;
  const label = h("span");
  const show = (to: number) => {
    label.textContent = `step ${lines[to]!.step}`;
    body.replaceChildren(...strips(lines[to]!));
  };
  show(place);
  if (last === 0) return [label];
  const oninput = (event: Event) => {
    const to = Number(inputValue(event));
    // The last step stays the last one while more come.
    state.groupStep = to === last ? -1 : to;
    show(to);
  };
  const ends = { min: "0", max: String(last), value: String(place) };
  return [label, h("input", { type: "range", ...ends, "aria-label": "Step", oninput })];
}

const MOST_STRIPS = 96;

/** The groups of a step, the best first, and a key to the colors. */
function strips({ groups }: GroupsLine): HTMLElement[] {
  const rewards = groups.flatMap((group) => group.rewards).filter((reward) => reward !== null);
  const [low, high] = [Math.min(...rewards, 0), Math.max(...rewards, 1)];
  const meanOf = (group: GroupEntry) =>
    group.rewards.reduce((total: number, reward) => total + (reward ?? low), 0) / Math.max(group.rewards.length, 1);
  const sorted = [...groups].sort((a, b) => meanOf(b) - meanOf(a));
  const isNamed = new Set(groups.map((group) => group.name)).size > 1;
  const rows = sorted.slice(0, MOST_STRIPS).map((group) => strip(group, { low, high, isNamed }));
  const even = groups.filter(isEven).length;
  const more = sorted.length > MOST_STRIPS ? `, the first ${MOST_STRIPS} shown` : "";
  const swatch = (background: string) => h("i", { style: `background:var(${background})` });
  return [
    h("div", { class: "strips" }, rows),
    h("div", { class: "key" }, [
      h("span", {}, swatch("--card"), `reward ${number(low)}`),
      h("span", {}, swatch("--run-0"), `reward ${number(high)}`),
      h("span", {}, `${groups.length} groups${more}; ${groups.length - even} teach, ${even} are all alike`),
    ]),
  ];
}

const isEven = ({ rewards }: GroupEntry) => new Set(rewards).size === 1;

function strip(group: GroupEntry, it: { low: number; high: number; isNamed: boolean }): HTMLElement {
  const { rewards, solved, task, name } = group;
  const level = (reward: number) => Math.round((100 * (reward - it.low)) / Math.max(it.high - it.low, 1e-9));
  const cells = rewards.map((reward) =>
    h("i", {
      title: reward === null ? "no reward" : precise(reward),
      style: reward === null ? "" : `background:color-mix(in oklab, var(--run-0) ${level(reward)}%, var(--card))`,
    }),
  );
  const title = it.isNamed ? `${task}, ${name}` : task;
  const text = `${solved} of ${rewards.length}`;
  const label = `${title}: ${text} solved, rewards ${rewards.map(number).join(" ")}`;
  return h(
    "div",
    { class: isEven(group) ? "strip even" : "strip", role: "img", title, "aria-label": label },
    h("span", { class: "cells" }, cells),
    h("span", { class: "sum" }, text),
  );
}
