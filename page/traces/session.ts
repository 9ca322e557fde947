/** One session: its facts, and its calls from the first to the last. */
import type { SessionView, TraceView } from "../../src/serve/gateway/page/trace_data.ts";
import { type Child, h } from "../element.ts";
import { counted, number } from "../format.ts";
import { rewardMark } from "./list.ts";
import { state } from "./state.ts";
import { promptTokens, sampledTokens, tokenKey } from "./tokens.ts";

export interface SessionActions {
  readonly close: () => void;
  readonly render: () => void;
}

export function sessionPane(view: SessionView, { close, render }: SessionActions): HTMLElement {
  const { session, traces, rest } = view;
  const change = (set: () => void) => () => {
    set();
    render();
  };
  const toggle = (text: string, isOn: boolean, set: () => void) =>
    h("button", { type: "button", "aria-pressed": String(isOn), onclick: change(set) }, text);
  return h(
    "article",
    { class: "conversation", tabindex: "-1" },
    h(
      "div",
      { class: "head" },
      h("button", { type: "button", class: "back", onclick: close }, "← Sessions"),
      h("h2", {}, session.session_id),
    ),
    facts(view),
    h("div", { class: "controls" }, [
      toggle("Tokens", state.showsTokens, () => (state.showsTokens = !state.showsTokens)),
      toggle("Color by log-prob", state.coloring === "logprob", () => (state.coloring = "logprob")),
      toggle("Color by mask", state.coloring === "mask", () => (state.coloring = "mask")),
    ]),
    state.showsTokens ? tokenKey(state.coloring) : undefined,
    traces.map((trace, i) => call(trace, { i, traces })),
    rest > 0 ? h("p", { class: "soft" }, `${counted(rest)} further calls are not shown.`) : undefined,
    traces.length === 0 ? h("p", { class: "soft" }, "The session has no calls.") : undefined,
  );
}

function facts({ session, traces }: SessionView): HTMLElement {
  const { outcome, metadata } = session;
  const versions = [...new Set(traces.map(({ weight_version }) => weight_version ?? "unknown"))];
  const rows: (readonly [string, Child])[] = [
    ["Reward", outcome ? rewardMark(outcome) : "none yet"],
    ...(outcome?.is_correct === undefined ? [] : [["Correct", outcome.is_correct ? "yes" : "no"] as const]),
    ...(outcome?.termination_reason ? [["Ended by", outcome.termination_reason] as const] : []),
    ["Weights", versions.join(", ") || "–"],
    ...Object.entries({ ...outcome?.metrics, ...outcome?.signals }).map(
      ([name, value]) => [name, number(value)] as const,
    ),
    ...Object.entries(outcome?.trajectory_rewards ?? {}).map(
      ([name, value]) => [`reward of ${name}`, number(value)] as const,
    ),
    ...Object.entries(metadata).map(([name, value]) => [name, plain(value)] as const),
  ];
  return h(
    "dl",
    { class: "card facts" },
    rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

const plain = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));

const ORIGINS: Readonly<Record<string, readonly [kind: string, text: string]>> = {
  rendered: ["", "rendered from messages"],
  continued: ["good", "continues the tokens of an earlier reply"],
  spliced: ["warn", "earlier replies kept their tokens; the template rewrote the text before them"],
  diverged: ["bad", "earlier replies were changed, and rendered from text"],
  tokens: ["", "token ids of the caller"],
};

function call(trace: TraceView, { i, traces }: { i: number; traces: readonly TraceView[] }): HTMLElement {
  const parent = traces.findIndex(({ trace_id }) => trace_id === trace.parent_trace_id);
  const [kind, text] = ORIGINS[trace.prompt_origin ?? ""] ?? ["", "unknown"];
  const badges = [
    trace.weight_version === null ? undefined : h("span", { class: "chip" }, `weights ${trace.weight_version}`),
    h("span", { class: `chip ${kind}`, title: text }, trace.prompt_origin ?? "origin unknown"),
    parent < 0 ? undefined : linkTo(parent + 1),
    h("span", { class: "chip" }, trace.finish_reason ?? "no finish reason"),
  ];
  const { prompt, completion } = trace.token_counts;
  return h(
    "section",
    { class: "card call", id: `call-${i + 1}`, tabindex: "-1" },
    h("header", {}, h("h3", {}, `Call ${i + 1}`), h("span", { class: "chips" }, badges)),
    h(
      "p",
      { class: "soft" },
      `${trace.model} · ${counted(prompt)} + ${counted(completion)} tokens · ${number(trace.latency_ms)} ms${timing(trace)}`,
    ),
    state.showsTokens ? tokenText(trace) : messageText(trace),
  );
}

/** The address keeps the session, which is its fragment. */
function linkTo(place: number): HTMLElement {
  const onclick = (event: Event) => {
    event.preventDefault();
    const target = document.getElementById(`call-${place}`);
    target?.scrollIntoView();
    target?.focus({ preventScroll: true });
  };
  return h("a", { class: "chip", href: `#call-${place}`, onclick }, `from call ${place}`);
}

function timing({ timings }: TraceView): string {
  const parts = [
    timings.queue_ms === undefined ? undefined : `${number(timings.queue_ms)} ms waiting`,
    timings.first_token_ms === undefined ? undefined : `first token after ${number(timings.first_token_ms)} ms`,
  ].filter((part) => part !== undefined);
  return parts.length > 0 ? ` (${parts.join(", ")})` : "";
}

function tokenText({ shared, prompt, completion, isTrainable }: TraceView): HTMLElement {
  const before = shared > 0 ? h("span", { class: "chip" }, `${counted(shared)} tokens as before`) : undefined;
  return h(
    "div",
    { class: "text" },
    before,
    promptTokens(prompt),
    sampledTokens(completion, state.coloring, isTrainable),
  );
}

function messageText({ messages, response_message }: TraceView): HTMLElement {
  const all = [...messages, response_message as { role?: string; content?: unknown }];
  return h(
    "div",
    { class: "messages" },
    all.map((message, i) =>
      h(
        "div",
        { class: i === all.length - 1 ? "message reply" : "message" },
        h("b", {}, message.role ?? "assistant"),
        reasoningOf(message),
        h("div", { class: "text" }, plain(message.content ?? "")),
        callsOf(message),
      ),
    ),
  );
}

function reasoningOf(message: object): HTMLElement | undefined {
  const { reasoning_content } = message as { reasoning_content?: unknown };
  return typeof reasoning_content === "string" ? h("div", { class: "text soft" }, reasoning_content) : undefined;
}

function callsOf(message: object): HTMLElement | undefined {
  const { tool_calls } = message as { tool_calls?: unknown };
  return Array.isArray(tool_calls) ? h("pre", {}, JSON.stringify(tool_calls, null, 1)) : undefined;
}
