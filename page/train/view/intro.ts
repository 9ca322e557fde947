/** The page's head: what it is, and on what it computes. */
import { h } from "../../element.ts";
import { drawAll } from "../../plot.ts";
import { toggleTheme } from "../../theme.ts";
import { state } from "../state.ts";

export function intro(): HTMLElement {
  return h(
    "header",
    {},
    h(
      "div",
      {},
      h("p", { class: "brand" }, "grpu"),
      h("h1", {}, "Train a language model in this tab"),
      h(
        "p",
        { class: "soft lead" },
        "Reinforcement learning, step by step: the model answers, each answer gets a reward, and answers that were better than expected become more likely. Everything runs on your GPU through WebGPU; nothing leaves this page.",
      ),
    ),
    h("div", { class: "controls" }, [
      h("span", { class: adapterClass(), id: "adapter" }, adapterText()),
      h("button", { type: "button", id: "theme", onclick: switchTheme }, "Light / dark"),
    ]),
  );
}

function switchTheme(): void {
  toggleTheme();
  drawAll();
}

function adapterClass(): string {
  if (!state.adapter) return "badge";
  return state.adapter.isThere ? "badge complete" : "badge stopped";
}

function adapterText(): string {
  if (!state.adapter) return "looking for a GPU";
  return state.adapter.isThere ? `WebGPU${state.adapter.name && `: ${state.adapter.name}`}` : "no WebGPU: CPU";
}

/** Asks the browser once, before any run. */
export async function findAdapter(): Promise<void> {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  const { vendor = "", architecture = "", description = "" } = adapter?.info ?? {};
  const name = description || [vendor, architecture].filter(Boolean).join(" ");
  state.adapter = { isThere: !!adapter, name };
}

/** A note where a run computes, or would compute, on the CPU; and the faults of the address. */
export function notes(): HTMLElement | undefined {
  const used = state.slots.flatMap(({ view }) => view.device ?? []);
  const isCpu = used.some(({ kind }) => kind === "cpu") || state.adapter?.isThere === false || state.device === "cpu";
  const isAsked = state.device === "cpu";
  const cpu = isAsked
    ? "Runs compute on the CPU because this device is chosen: the same figures, much slower than on a GPU."
    : "This browser gives no WebGPU adapter, so runs compute on the CPU: the same figures, much slower. Digits is the task for it. Chrome, Edge, Safari 26 and Firefox have WebGPU; a page needs https or localhost for it.";
  const all = [...(isCpu ? [cpu] : []), ...state.faults];
  if (all.length === 0) return undefined;
  return h(
    "div",
    { class: "card notes", role: "note" },
    all.map((text) => h("p", {}, text)),
  );
}
