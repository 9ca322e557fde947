/** The settings that the page offers, under their names in a configuration, and how the address holds them. */
import { nearest } from "../../src/leaves/nearest.ts";
import { RECIPES, type RecipeName, recipeNamed } from "./recipes.ts";

export interface PageSetting {
  readonly path: string;
  readonly label: string;
  /** What it does, in a sentence. */
  readonly hint: string;
  /** `choice`: one of a list that the worker knows. */
  readonly kind: "number" | "choice";
  /** Acts at the next step of a running run; the others act when a run starts. */
  readonly isLive: boolean;
}

const live = (setting: Omit<PageSetting, "isLive">): PageSetting => ({ ...setting, isLive: true });
const atStart = (path: string, label: string, hint: string): PageSetting => ({
  ...{ path, label, hint },
  kind: "number",
  isLive: false,
});

export const PAGE_SETTINGS: readonly PageSetting[] = [
  live({
    path: "training.learning_rate",
    label: "Learning rate",
    hint: "How far one update moves the weights. Too high, and the model forgets what it knew.",
    kind: "number",
  }),
  live({
    path: "rllm.rollout.n",
    label: "Group size",
    hint: "Attempts at each prompt. They are compared with each other, so one alone teaches nothing.",
    kind: "number",
  }),
  live({
    path: "rllm.algorithm.adv_estimator",
    label: "Estimator",
    hint: "Turns the rewards of a group into advantages: how much better than expected each attempt was.",
    kind: "choice",
  }),
  live({
    path: "rllm.algorithm.loss_fn",
    label: "Loss",
    hint: "Turns advantages into a gradient, and limits how far one update may go.",
    kind: "choice",
  }),
  atStart("rllm.data.train_batch_size", "Prompts per step", "Different prompts that one step learns from."),
  atStart("rllm.trainer.total_batches", "Steps", "Updates of the whole run."),
  atStart("warmup.steps", "Warm-up steps", "Supervised steps on worked examples before the first reward."),
  atStart("training.seed", "Seed", "The same seed and settings give the same run, token for token."),
];

export const LIVE_PATHS: readonly string[] = PAGE_SETTINGS.filter(({ isLive }) => isLive).map(({ path }) => path);

/** Values by path, as typed. Paths that are absent have the recipe's value. */
export type Given = Readonly<Record<string, string>>;

export type DeviceChoice = "auto" | "webgpu" | "cpu";
export const DEVICES: readonly DeviceChoice[] = ["auto", "webgpu", "cpu"];

/** What the address says: a recipe, a device, and the settings of one run, or of two to compare. */
export interface Address {
  readonly recipe: RecipeName;
  readonly device: DeviceChoice;
  readonly runs: readonly [Given] | readonly [Given, Given];
}

export const START: Address = { recipe: "digits", device: "auto", runs: [{}] };

/** Marks a setting of the second run. */
const SECOND = "2:";

/** `#task=turns&training.learning_rate=2e-3&2:rllm.rollout.n=4`; empty for what the page starts with. */
export function writeAddress({ recipe, device, runs }: Address): string {
  const parts = new URLSearchParams();
  const [first, second] = runs;
  if (recipe !== START.recipe) parts.set("task", recipe);
  if (device !== START.device) parts.set("device", device);
  for (const [path, value] of Object.entries(first)) parts.set(path, value);
  if (second) parts.set("runs", "2");
  for (const [path, value] of Object.entries(second ?? {})) parts.set(`${SECOND}${path}`, value);
  const text = parts.toString().replaceAll("%3A", ":");
  return text === "" ? "" : `#${text}`;
}

/** Reads an address. What it cannot use is left out, with a message each. */
export function readAddress(hash: string): { readonly address: Address; readonly faults: readonly string[] } {
  const faults: string[] = [];
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const own = (name: string) => {
    const value = parts.get(name) ?? undefined;
    parts.delete(name);
    return value;
  };
  const recipe = oneOf(own("task"), {
    what: "task",
    names: RECIPES.map(({ name }) => name),
    usual: START.recipe,
    faults,
  });
  const device = oneOf(own("device"), { what: "device", names: DEVICES, usual: START.device, faults });
  const count = oneOf(own("runs"), { what: "runs", names: ["1", "2"], usual: "1", faults });
  const first: Record<string, string> = {};
  const second: Record<string, string> = {};
  for (const [key, value] of parts) {
    const path = key.startsWith(SECOND) ? key.slice(SECOND.length) : key;
    const fault = faultOf(path, value);
    if (fault) faults.push(fault);
    else (key === path ? first : second)[path] = value;
  }
  const isTwo = count === "2" || Object.keys(second).length > 0;
  const runs: Address["runs"] = isTwo ? [first, second] : [first];
  return { address: { recipe: recipeNamed(recipe)!.name, device: device as DeviceChoice, runs }, faults };
}

function oneOf(
  value: string | undefined,
  it: { what: string; names: readonly string[]; usual: string; faults: string[] },
): string {
  if (value === undefined || it.names.includes(value)) return value ?? it.usual;
  it.faults.push(
    `Cannot use ${it.what}=${value} of the address: there is no such ${it.what}. It takes ${it.names.join(", ")}.`,
  );
  return it.usual;
}

/** The message for a setting that the page does not offer or that has no value; its range is the worker's to check. */
export function faultOf(path: string, value: string): string | undefined {
  const names = PAGE_SETTINGS.map((setting) => setting.path);
  const known = PAGE_SETTINGS.find((setting) => setting.path === path);
  if (!known) {
    const close = nearest(path, names);
    const advice = close ? `Did you mean ${close}?` : `It has ${names.join(", ")}.`;
    return `Cannot use ${path} of the address: the page has no such setting. ${advice}`;
  }
  if (known.kind === "number" && (value.trim() === "" || !Number.isFinite(Number(value))))
    return `Cannot use ${path} of the address: it takes a number (${value}). Correct it, or remove it.`;
  if (known.kind === "choice" && !/^[\w.]+$/.test(value))
    return `Cannot use ${path} of the address: it takes a name (${value}). Correct it, or remove it.`;
  return undefined;
}
