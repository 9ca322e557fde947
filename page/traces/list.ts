/** The list of sessions. */
import type { ListedSession } from "../../src/serve/gateway/page/trace_data.ts";
import { h, inputValue } from "../element.ts";
import { counted, number } from "../format.ts";
import { found, state } from "./state.ts";

export interface ListActions {
  readonly open: (id: string) => void;
  readonly render: () => void;
  readonly more: () => void;
}

export function sessionList({ open, render, more }: ListActions): HTMLElement {
  const shown = found();
  const search = h("input", {
    type: "search",
    placeholder: "Search sessions ( / )",
    "aria-label": "Search sessions",
    value: state.search,
    oninput: (event) => {
      state.search = inputValue(event);
      render();
    },
  });
  const items = shown.map((session) => item(session, open));
  const isAll = shown.length === state.list?.sessions.length;
  const count = isAll ? counted(shown.length) : `${shown.length} of ${state.list?.sessions.length}`;
  return h(
    "nav",
    { class: "list", "aria-label": "Sessions" },
    search,
    h("p", { class: "soft count" }, `${count} sessions, newest first`),
    items.length > 0 ? h("ul", {}, items) : h("p", { class: "soft" }, nothing()),
    state.list?.isCut ? h("button", { type: "button", onclick: more }, "Older sessions") : undefined,
  );
}

function nothing(): string {
  return state.search === "" ? "Nothing was recorded yet." : "No session fits the search.";
}

function item(session: ListedSession, open: (id: string) => void): HTMLElement {
  const { session_id, title, outcome, trace_count, first_at, weight_version } = session;
  const isOpen = session_id === state.open;
  const facts = [
    trace_count === 1 ? "1 call" : `${trace_count} calls`,
    weight_version === null ? undefined : `weights ${weight_version}`,
    first_at === null ? undefined : `${age(Date.now() / 1000 - first_at)} ago`,
  ].filter((fact) => fact !== undefined);
  return h(
    "li",
    {},
    h(
      "button",
      {
        type: "button",
        class: isOpen ? "session open" : "session",
        "data-id": session_id,
        "aria-current": isOpen ? "true" : undefined,
        onclick: () => open(session_id),
      },
      h("span", { class: "title" }, title || session_id),
      title === "" ? undefined : h("span", { class: "soft id" }, session_id),
      h("span", { class: "soft facts" }, facts.join(" · "), outcome ? rewardMark(outcome) : undefined),
    ),
  );
}

/** A reward, those of single trajectories, or its lack. */
export function rewardMark({ reward, trajectory_rewards = {} }: NonNullable<ListedSession["outcome"]>): HTMLElement {
  const each = Object.values(trajectory_rewards);
  if (reward === null)
    return h("span", { class: "mark" }, each.length > 0 ? `rewards ${each.map(number).join(", ")}` : "no reward");
  return h("span", { class: reward > 0 ? "mark right" : "mark" }, `reward ${number(reward)}`);
}

/** `12 s`, `5 min`, `3 h`, `4 days`. */
function age(seconds: number): string {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  return seconds < 36 * 3600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}
