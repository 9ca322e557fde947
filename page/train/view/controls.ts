/** The settings of a run and the buttons that drive it. */
import { h, inputValue } from "../../element.ts";
import type { RunView } from "../run_view.ts";
import { DEVICES, type DeviceChoice, PAGE_SETTINGS, type PageSetting } from "../settings.ts";
import { current, hasBegun, type Slot, state } from "../state.ts";
import { noteOf } from "./method_notes.ts";

export interface ControlActions {
  set(path: string, value: string): void;
  setDevice(device: DeviceChoice): void;
  start(): void;
  hold(): void;
  reset(): void;
  exportModel(): void;
  /** Shows the controls of that run. */
  select(index: number): void;
  /** Adds the second run, or takes it away. */
  compare(): void;
  copyLink(): void;
}

export function controlSection(actions: ControlActions): HTMLElement {
  const slot = current();
  const [live, atStart] = [true, false].map((isLive) => PAGE_SETTINGS.filter((each) => each.isLive === isLive));
  return h(
    "section",
    { class: "card panel", "aria-labelledby": "settings-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "settings-title" }, "Settings"), runTabs(actions)),
    h("p", { class: "soft" }, "These act at once, and during training at the next step:"),
    h(
      "div",
      { class: "fields" },
      live!.map((setting) => field(setting, slot, actions)),
    ),
    h(
      "details",
      { id: "more-settings" },
      h("summary", { id: "more-settings-summary" }, "Settings that act when a run starts"),
      h(
        "div",
        { class: "fields" },
        atStart!.map((setting) => field(setting, slot, actions)),
        deviceField(actions),
      ),
    ),
    slot.fault && h("p", { class: "fault", role: "alert" }, slot.fault),
    changesOf(slot),
    h("div", { class: "buttons" }, buttons(slot, actions)),
  );
}

function runTabs({ select, compare }: ControlActions): HTMLElement {
  const tabs = state.slots.map(({ view }, i) =>
    h(
      "button",
      { type: "button", id: `run-${i}`, "aria-pressed": String(i === state.current), onclick: () => select(i) },
      h("span", { class: "swatch", style: `color:var(--run-${i})` }),
      view.name,
    ),
  );
  const second = state.slots.length > 1 ? "Remove run 2" : "Compare with a second run";
  return h("div", { class: "row", role: "group", "aria-label": "Runs" }, [
    ...(tabs.length > 1 ? tabs : []),
    h("button", { type: "button", id: "compare", onclick: compare }, second),
  ]);
}

function field(setting: PageSetting, { view, given }: Slot, { set }: ControlActions): HTMLElement {
  const { path, label, hint, kind, isLive } = setting;
  const id = `set-${path}`;
  const value = given[path] ?? view.values[path] ?? "";
  const common = {
    ...{ id, "aria-describedby": `${id}-hint`, "data-path": path },
    disabled: view.status !== "idle" && !(isLive && takesChanges(view)),
    onchange: (event: Event) => {
      committed(event);
      set(path, inputValue(event).trim());
    },
  };
  const offered = view.choices[path] ?? [];
  // Also one that only the address can hold, such as an estimator under rLLM's name.
  const choices = offered.includes(value) ? offered : [value, ...offered];
  const control =
    kind === "choice"
      ? h(
          "select",
          common,
          choices.map((name) => h("option", { value: name, selected: name === value }, name)),
        )
      : h("input", { ...common, value, inputmode: "decimal", autocomplete: "off", spellcheck: "false" });
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    control,
    h("p", { class: "hint", id: `${id}-hint` }, (kind === "choice" && noteOf(value)) || hint),
  );
}

/** A run that is being opened has no step yet that could take one. */
const takesChanges = ({ isActive, status }: RunView) => isActive && status !== "opening";

/** What was typed is the page's from here on: the next drawing shows the value that the run has. */
function committed({ target }: Event): void {
  if (target instanceof HTMLInputElement) target.defaultValue = target.value;
}

function deviceField({ setDevice }: ControlActions): HTMLElement {
  const names: Readonly<Record<DeviceChoice, string>> = {
    auto: "WebGPU, else CPU",
    webgpu: "WebGPU",
    cpu: "CPU",
  };
  const onchange = (event: Event) => setDevice(inputValue(event) as DeviceChoice);
  const options = DEVICES.map((name) => h("option", { value: name, selected: name === state.device }, names[name]));
  return h(
    "div",
    { class: "field" },
    h("label", { for: "device" }, "Device"),
    h("select", { id: "device", disabled: hasBegun(), "aria-describedby": "device-hint", onchange }, options),
    h("p", { class: "hint", id: "device-hint" }, "The CPU runs the kernels' references: the same figures, slowly."),
  );
}

function changesOf({ view: { changes } }: Slot): HTMLElement | undefined {
  if (changes.length === 0) return undefined;
  return h(
    "ul",
    { class: "changes" },
    changes.slice(-4).map(({ fromStep, text }) => h("li", {}, `From step ${fromStep}: ${text}`)),
  );
}

interface ButtonState {
  readonly isPrimary?: boolean;
  readonly disabled?: boolean;
}

function button(id: string, text: string, onclick: () => void, { isPrimary, disabled }: ButtonState = {}): HTMLElement {
  return h("button", { type: "button", id, onclick, disabled, class: isPrimary ? "primary" : undefined }, text);
}

function buttons({ view }: Slot, actions: ControlActions): HTMLElement[] {
  const { reset, exportModel, copyLink } = actions;
  const isTrained = view.device !== undefined && view.status !== "opening";
  return [
    ...drivingButton(view, actions),
    button("reset", "Reset", reset, { disabled: view.status === "idle" }),
    button("export", state.recipe === "stories" ? "Export adapter" : "Export model", exportModel, {
      isPrimary: view.status === "ended",
      disabled: !isTrained,
    }),
    button("link", "Copy link", copyLink),
  ];
}

/** Start, Pause or Continue; none once the run has ended. */
function drivingButton(view: RunView, { start, hold }: ControlActions): HTMLElement[] {
  const which = state.slots.length > 1 ? ` ${view.name.toLowerCase()}` : "";
  if (view.status === "idle") return [button("start", `Start${which}`, start, { isPrimary: true })];
  if (!view.isActive) return [];
  const text = view.status === "paused" || view.status === "pausing" ? "Continue" : "Pause";
  if (takesChanges(view)) return [button("hold", text, hold, { isPrimary: true })];
  // A disabled button would lose the focus that it has from Start.
  const waiting = button("hold", text, () => {}, { isPrimary: true });
  waiting.setAttribute("aria-disabled", "true");
  return [waiting];
}
