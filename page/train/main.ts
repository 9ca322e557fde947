/** The page that trains a model: draws what its workers report, and sends them what a person does. */
import { replaceData } from "../data.ts";
import { followWidth } from "../follow_width.ts";
import { number } from "../format.ts";
import { drawAll } from "../plot.ts";
import { followSystemTheme } from "../theme.ts";
import { download } from "./download.ts";
import { draw, drawAnswers, layOut } from "./layout.ts";
import type { News } from "./protocol.ts";
import type { Change } from "./run_view.ts";
import { say, sayRarely } from "./say.ts";
import { addSlot, current, describe, keepAddress, resetSlot, restore, type Slot, state } from "./state.ts";
import { drawCharts, forgetCharts } from "./view/charts.ts";
import { findAdapter } from "./view/intro.ts";

/** News of a run: kept, then drawn where it shows. */
function onNews(slot: Slot, news: News): void {
  const { view } = slot;
  const changes = view.changes.length;
  view.take(news);
  if (news.type === "record") onRecord(slot, news);
  else if (news.type === "exported") onExported(news);
  else if (news.type === "refused") onRefused(slot, news);
  else if (news.type === "changed") sayChanges(view.changes.slice(changes));
  else if (news.type === "ended") say(`${view.name} is done at step ${news.step}.`);
  else if (news.type === "failed") say(`${view.name} ended with an error. ${news.message}`);
  draw("status");
  if (!FREQUENT.has(news.type)) draw("controls", "intro", "tasks");
}

/** News that change no control. */
const FREQUENT: ReadonlySet<News["type"]> = new Set(["stage", "progress", "record"]);

function onRecord({ view }: Slot, { phase, step, totalSteps }: News & { type: "record" }): void {
  drawCharts();
  if (phase === "train") drawAnswers();
  if (phase === "val") draw("samples");
  const { accuracy, reward } = view;
  if (phase === "val") say(`${view.name}, step ${step}: held-out accuracy ${number(accuracy?.last)}.`);
  else
    sayRarely(
      `${view.name}, ${phase === "warmup" ? "warm-up step" : "step"} ${step} of ${totalSteps}${reward ? `: mean reward ${number(reward.last)}` : ""}.`,
    );
}

function onExported({ name, bytes }: News & { type: "exported" }): void {
  download(name, bytes);
  say(`${name} is in your downloads.`);
}

function onRefused(slot: Slot, { about, message }: News & { type: "refused" }): void {
  slot.fault = message;
  if (about === "start") slot.view.status = "idle";
  if (about === "change") {
    // The run keeps what it had.
    slot.given = slot.view.accepted;
    keepAddress();
  }
  say(message);
}

function sayChanges(changes: readonly Change[]): void {
  for (const { fromStep, text } of changes) say(`From step ${fromStep}: ${text}.`);
}

const actions = {
  choose(recipe: typeof state.recipe): void {
    const device = state.device;
    restore(`#task=${recipe}`, onNews);
    state.device = device;
    redraw();
  },
  changed: () => draw("tasks", "status"),
  set(path: string, value: string): void {
    const slot = current();
    slot.fault = undefined;
    const { [path]: _, ...others } = slot.given;
    slot.given = value === "" ? others : { ...others, [path]: value };
    if (slot.view.isActive) slot.runner.send({ type: "change", given: slot.given });
    else describe(slot);
    keepAddress();
  },
  setDevice(device: typeof state.device): void {
    state.device = device;
    keepAddress();
    draw("intro", "controls");
  },
  start(): void {
    const slot = current();
    const { recipe, device, model } = state;
    slot.fault = undefined;
    slot.view.status = "opening";
    slot.view.accepted = slot.given;
    slot.runner.send({ type: "start", recipe, device, given: slot.given, model });
    say(`${slot.view.name} starts.`);
    draw("controls", "status", "tasks");
  },
  hold(): void {
    const { view, runner } = current();
    const isPause = view.status === "training";
    if (isPause) view.status = "pausing";
    runner.send({ type: isPause ? "pause" : "continue" });
    draw("controls", "status");
  },
  reset(): void {
    resetSlot(current());
    forgetCharts();
    redraw();
  },
  exportModel: () => current().runner.send({ type: "export" }),
  select(index: number): void {
    state.current = index;
    draw("controls", "status", "rollouts");
  },
  compare(): void {
    if (state.slots.length > 1) {
      state.slots.pop()!.runner.close();
      state.current = 0;
    } else {
      addSlot(state.slots[0]!.given, onNews);
      state.current = 1;
    }
    forgetCharts();
    redraw();
  },
  copyLink(): void {
    const said = () => say("The link with these settings is copied.");
    navigator.clipboard.writeText(location.href).then(said, () => say(`Copy the address: ${location.href}`));
  },
};

function redraw(): void {
  keepAddress();
  draw("intro", "tasks", "controls", "status", "rollouts", "samples");
  drawCharts();
}

replaceData({ runs: [], made: Date.now(), live: true });
restore(location.hash, onNews);
followSystemTheme(drawAll);
layOut(actions);
followWidth(document.getElementById("page")!, drawAll);
// Not by the address, which holds the settings.
document.querySelector(".skip")!.addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("part-controls")!.focus();
});
addEventListener("hashchange", () => {
  restore(location.hash, onNews);
  forgetCharts();
  draw("intro", "tasks", "controls", "status", "rollouts", "samples");
});
void findAdapter().then(() => draw("intro"));
