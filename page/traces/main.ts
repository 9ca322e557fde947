/** The page of recorded conversations: a list of sessions, and the tokens of the one that is open. */
import { h } from "../element.ts";
import { followSystemTheme, toggleTheme } from "../theme.ts";
import { data, fetchSession, fetchSessions, withKey } from "./api.ts";
import { KEYS, listenToKeys } from "./keys.ts";
import { sessionList } from "./list.ts";
import { sessionPane } from "./session.ts";
import { found, state } from "./state.ts";

const page = document.getElementById("page")!;
const said = document.getElementById("said")!;
const REFRESH_MS = 5000;

const help = h(
  "dialog",
  { "aria-label": "Keys" },
  h(
    "dl",
    {},
    KEYS.map(([keys, action]) => h("div", {}, h("dt", {}, keys), h("dd", {}, action))),
  ),
  h("button", { type: "button", onclick: () => help.close() }, "Close"),
);

function render(): void {
  const hadSearch = document.activeElement instanceof HTMLInputElement;
  const top = page.querySelector(".list ul")?.scrollTop ?? 0;
  page.classList.toggle("has-open", state.open !== undefined);
  page.replaceChildren(header(), body());
  const list = page.querySelector(".list ul");
  if (list) list.scrollTop = top;
  if (!hadSearch) return;
  const search = page.querySelector<HTMLInputElement>("input[type=search]");
  search?.focus();
  search?.setSelectionRange(state.search.length, state.search.length);
}

function header(): HTMLElement {
  const home = data.home === undefined ? undefined : h("a", { class: "button", href: withKey(data.home) }, "Back");
  return h(
    "header",
    {},
    h("div", {}, h("h1", {}, "Conversations"), state.fault ? h("p", { class: "fault" }, state.fault) : undefined),
    h("div", { class: "controls" }, [
      home,
      h("button", { type: "button", onclick: () => help.showModal() }, "Keys ( ? )"),
      h("button", { type: "button", onclick: toggleTheme }, "Light / dark"),
    ]),
  );
}

function body(): HTMLElement {
  const pane = state.view
    ? sessionPane(state.view, { close, render })
    : h("p", { class: "soft conversation" }, state.open === undefined ? "Choose a session." : "Loading …");
  return h("div", { class: "panes" }, sessionList({ open: (id) => void open(id), render, more }), pane);
}

/** Shows a session, and keeps it in the page's address. */
async function open(id: string): Promise<void> {
  state.open = id;
  state.view = undefined;
  history.replaceState(null, "", `${location.pathname}${location.search}#${encodeURIComponent(id)}`);
  render();
  await guarded(async () => {
    const view = await fetchSession(id);
    if (state.open !== id) return;
    state.view = view;
    said.textContent = `Session ${id}, ${view.traces.length} calls`;
  });
  render();
  if (matchMedia("(max-width: 760px)").matches) scrollTo(0, 0);
}

function close(): void {
  const id = state.open;
  [state.open, state.view] = [undefined, undefined];
  history.replaceState(null, "", `${location.pathname}${location.search}`);
  render();
  if (id !== undefined) page.querySelector<HTMLElement>(`[data-id="${CSS.escape(id)}"]`)?.focus();
}

function more(): void {
  state.limit = Math.min(state.limit + 200, 1000);
  void refresh();
}

async function guarded(work: () => Promise<void>): Promise<void> {
  try {
    await work();
    state.fault = "";
  } catch (error) {
    state.fault = (error as Error).message;
  }
}

/** Draws again only when something is new, so that a selection of text stays. */
async function refresh(): Promise<void> {
  const shown = () => JSON.stringify([state.list, state.view, state.fault]);
  const before = shown();
  await guarded(async () => {
    const known = listed(state.open);
    state.list = await fetchSessions(state.limit);
    await refreshOpen(known);
  });
  if (shown() !== before) render();
}

/** What the list says of a session. Undefined for one that is not in it. */
function listed(id: string | undefined): string | undefined {
  const found = state.list?.sessions.find(({ session_id }) => session_id === id);
  return found && JSON.stringify(found);
}

/** Fetches the session that is shown where the list says something new of it, or nothing. */
async function refreshOpen(known: string | undefined): Promise<void> {
  const { open: id, view } = state;
  const now = listed(id);
  if (id === undefined || !view || (now !== undefined && now === known)) return;
  const fetched = await fetchSession(id);
  if (state.open === id) state.view = fetched;
}

/** The session of the page's address. What is not encoded as in a URL is taken as it is. */
function idInAddress(): string {
  const id = location.hash.slice(1);
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

function step(by: number): void {
  const shown = found();
  const at = shown.findIndex(({ session_id }) => session_id === state.open);
  const next = shown[at < 0 ? 0 : Math.min(Math.max(at + by, 0), shown.length - 1)];
  if (!next || next.session_id === state.open) return;
  void open(next.session_id);
  page.querySelector(".session.open")?.scrollIntoView({ block: "nearest" });
}

function stepCall(by: number): void {
  const calls = [...page.querySelectorAll<HTMLElement>(".call")];
  const first = calls.findIndex((call) => call.getBoundingClientRect().top >= -1);
  const at = calls.includes(document.activeElement as HTMLElement)
    ? calls.indexOf(document.activeElement as HTMLElement) + by
    : first + Math.max(by - 1, -1);
  const target = calls[Math.min(Math.max(at, 0), calls.length - 1)];
  target?.scrollIntoView();
  target?.focus({ preventScroll: true });
}

document.body.append(help);
followSystemTheme(() => {});
listenToKeys({
  step,
  call: stepCall,
  close,
  search: () => page.querySelector<HTMLInputElement>("input[type=search]")?.focus(),
  recolor: () => {
    state.coloring = state.coloring === "mask" ? "logprob" : "mask";
    render();
  },
  tokens: () => {
    state.showsTokens = !state.showsTokens;
    render();
  },
  theme: toggleTheme,
  help: () => help.showModal(),
});
render();
await refresh();
if (location.hash.length > 1) await open(idInAddress());
setInterval(() => void refresh(), REFRESH_MS);
