/** The parts of the page and how each is drawn again without taking the keyboard from a person. */
import { data } from "../data.ts";
import { h } from "../element.ts";
import { sampleSection } from "../samples.ts";
import { schedule } from "./schedule.ts";
import { state } from "./state.ts";
import { chartSection, collectRuns } from "./view/charts.ts";
import { type ControlActions, controlSection } from "./view/controls.ts";
import { intro, notes } from "./view/intro.ts";
import { rolloutSection } from "./view/rollouts.ts";
import { statusSection } from "./view/status.ts";
import { type TaskActions, taskSection } from "./view/tasks.ts";

const PARTS = ["intro", "tasks", "controls", "status", "rollouts", "samples"] as const;
type Part = (typeof PARTS)[number];

/** What a part that changes with every step is drawn at most once in, ms. */
const EVERY_MS: Partial<Record<Part, number>> = { status: 250, rollouts: 1000, samples: 1000 };

const placeOf = (part: Part) => h("div", { id: `part-${part}`, tabindex: "-1" });
const place: Record<Part, HTMLElement> = {
  intro: placeOf("intro"),
  tasks: placeOf("tasks"),
  controls: placeOf("controls"),
  status: placeOf("status"),
  rollouts: placeOf("rollouts"),
  samples: placeOf("samples"),
};

let actions: ControlActions & TaskActions;

/** Puts the page together. */
export function layOut(given: ControlActions & TaskActions): void {
  actions = given;
  const { intro, tasks, controls, status, rollouts, samples } = place;
  const side = h("div", { class: "side" }, controls, status);
  document.getElementById("page")!.replaceChildren(intro, tasks, side, rollouts, chartSection(), samples);
  for (const part of PARTS) drawNow(part);
}

/** Draws parts again, soon. */
export function draw(...parts: readonly Part[]): void {
  for (const part of parts) schedule(part, () => drawNow(part), EVERY_MS[part]);
}

function drawNow(part: Part): void {
  const host = place[part];
  const restore = keepPlace(host);
  host.replaceChildren(...contentOf(part).filter((it) => it !== undefined));
  restore();
}

function contentOf(part: Part): (HTMLElement | undefined)[] {
  if (part === "intro") return [intro(), notes()];
  if (part === "tasks") return [taskSection(actions)];
  if (part === "controls") return [controlSection(actions)];
  if (part === "status") return [statusSection()];
  if (part === "rollouts") return [rolloutSection({ changed: () => drawNow("rollouts") })];
  collectRuns();
  return [data.runs.length > 0 ? sampleSection() : undefined];
}

/** Where the focus goes from a button that is gone or disabled, by their ids. Never to Reset, which ends a run. */
const NEXT_FOCUS: Readonly<Record<string, string>> = { start: "hold", hold: "export", reset: "start" };

/** Remembers the control with the focus, what is typed there, and which details are open. */
function keepPlace(host: HTMLElement): () => void {
  const active = document.activeElement;
  const id = active instanceof HTMLElement && host.contains(active) ? active.id : "";
  const isTyping = active instanceof HTMLInputElement && active.type === "text" && active.value !== active.defaultValue;
  const typed = isTyping ? active.value : undefined;
  const open = Array.from(host.querySelectorAll("details[open]"), (it) => it.id);
  return () => {
    for (const each of open) (document.getElementById(each) as HTMLDetailsElement | null)?.setAttribute("open", "");
    const same = id === "" ? null : document.getElementById(id);
    const again = same && !same.matches(":disabled") ? same : document.getElementById(NEXT_FOCUS[id] ?? "");
    again?.focus({ preventScroll: true });
    if (typed !== undefined && again instanceof HTMLInputElement) again.value = typed;
  };
}

/** New answers are shown unless a person holds those that are there. */
export function drawAnswers(): void {
  if (!state.isHeld) draw("rollouts");
}
