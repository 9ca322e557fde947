/** Follows the server of a live page: new data when there is any, and a mark when the server is gone. */
import { replaceData, state } from "./data.ts";

const page = document.getElementById("page")!;
/** A person who drags a slider or reads a value holds the page still for at most this long. */
const MOST_HELD_MS = 5000;
const RETRY_MS = 1000;
let lastRender = 0;

function isHeld(): boolean {
  const held = page.querySelector("input[type=range]:active, .plot:hover .u-over");
  return held !== null && Date.now() - lastRender < MOST_HELD_MS;
}

/** Fetches the data and renders it, without a jump of the window. */
async function refresh(render: () => void): Promise<void> {
  if (isHeld()) return void setTimeout(refresh, RETRY_MS, render);
  replaceData(await (await fetch("data.json")).json());
  lastRender = Date.now();
  const top = scrollY;
  page.style.minHeight = `${page.offsetHeight}px`;
  render();
  page.style.minHeight = "";
  scrollTo(0, top);
}

export function follow(render: () => void): void {
  const events = new EventSource("events");
  events.onmessage = () => refresh(render);
  events.onerror = () => {
    state.isLost = true;
    render();
  };
  events.onopen = () => {
    if (!state.isLost) return;
    state.isLost = false;
    void refresh(render);
  };
}
