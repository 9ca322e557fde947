/** What the page shows, and what a person has chosen. */
import type { News } from "./protocol.ts";
import type { RecipeName } from "./recipes.ts";
import { RunView } from "./run_view.ts";
import { Runner } from "./runner.ts";
import { type Address, type DeviceChoice, type Given, readAddress, START, writeAddress } from "./settings.ts";

/** A run on the page: its settings, its worker, and what that has told. */
export interface Slot {
  given: Given;
  view: RunView;
  readonly runner: Runner;
  /** Why the worker took a setting back, or refused a command. */
  fault: string | undefined;
}

interface State {
  recipe: RecipeName;
  device: DeviceChoice;
  slots: Slot[];
  /** The run that the controls are of. */
  current: number;
  model: { readonly name: string; readonly files: ReadonlyMap<string, Blob> } | undefined;
  modelFault: string | undefined;
  /** Of the address, and of what cannot be kept. */
  faults: readonly string[];
  /** What WebGPU the page has, before a run; undefined while it is asked. */
  adapter: { readonly isThere: boolean; readonly name: string } | undefined;
  /** Of the rollouts that are shown. */
  group: number;
  isHeld: boolean;
}

export const state: State = {
  recipe: START.recipe,
  device: START.device,
  slots: [],
  current: 0,
  model: undefined,
  modelFault: undefined,
  faults: [],
  adapter: undefined,
  group: 0,
  isHeld: false,
};

export const current = (): Slot => state.slots[state.current]!;
export const isActive = () => state.slots.some(({ view }) => view.isActive);
/** True once a run has begun: the task and the device then stay until the reset. */
export const hasBegun = () => state.slots.some(({ view }) => view.status !== "idle");

/** Makes the runs of an address; `onNews` gets what their workers tell. */
export function restore(hash: string, onNews: (slot: Slot, news: News) => void): void {
  const { address, faults } = readAddress(hash);
  for (const { runner } of state.slots) runner.close();
  state.slots = [];
  Object.assign(state, { recipe: address.recipe, device: address.device, faults, current: 0 });
  for (const given of address.runs) addSlot(given, onNews);
}

/** At most two. */
export function addSlot(given: Given, onNews: (slot: Slot, news: News) => void): Slot {
  const slot: Slot = {
    given,
    view: new RunView(`Run ${state.slots.length + 1}`),
    runner: new Runner((news) => onNews(slot, news)),
    fault: undefined,
  };
  state.slots.push(slot);
  describe(slot);
  return slot;
}

/** Asks the worker for the values of all settings; it answers with them, or with what is wrong. */
export function describe({ runner, given }: Slot): void {
  runner.send({ type: "describe", recipe: state.recipe, given });
}

/** Forgets a run; its settings stay. */
export function resetSlot(slot: Slot): void {
  const { values, choices, name } = slot.view;
  slot.runner.reset();
  slot.view = Object.assign(new RunView(name), { values, choices });
  slot.fault = undefined;
  describe(slot);
}

export function addressOfState(): Address {
  const [first, second] = state.slots;
  const runs: Address["runs"] = second ? [first!.given, second.given] : [first!.given];
  return { recipe: state.recipe, device: state.device, runs };
}

/** Keeps the settings in the address, without a new entry in the history. */
export function keepAddress(): void {
  const hash = writeAddress(addressOfState());
  history.replaceState(null, "", hash === "" ? location.pathname + location.search : hash);
}
