/** The answers of a group, token by token: how likely each token was, the reward, and the advantage. */
import { h } from "../../element.ts";
import { number } from "../../format.ts";
import { promptTokens, sampledTokens, tokenKey } from "../../traces/tokens.ts";
import type { AttemptView, GroupView } from "../protocol.ts";
import { current, state } from "../state.ts";

export interface RolloutActions {
  /** Another group is chosen, or the answers are held. */
  changed(): void;
}

export function rolloutSection({ changed }: RolloutActions): HTMLElement | undefined {
  const { view } = current();
  const { rollouts, groups } = view;
  if (rollouts.length === 0) return undefined;
  const at = Math.min(state.group, rollouts.length - 1);
  const go = (by: number) => () => {
    state.group = (at + by + rollouts.length) % rollouts.length;
    changed();
  };
  const toggle = () => {
    state.isHeld = !state.isHeld;
    changed();
  };
  return h(
    "section",
    { "aria-labelledby": "rollouts-title" },
    h("h2", { id: "rollouts-title" }, "What it answers"),
    h(
      "p",
      { class: "soft" },
      "One prompt and the answers to it, which are compared with each other. The color of a token says how likely it was when it was drawn; the bar says what the update made of the answer.",
    ),
    h(
      "div",
      { class: "card rollouts" },
      h("div", { class: "row" }, [
        h("button", { type: "button", id: "group-before", onclick: go(-1), "aria-label": "Previous group" }, "‹"),
        h("span", { class: "count" }, `Group ${at + 1} of ${rollouts.length}, step ${groups?.step ?? "–"}`),
        h("button", { type: "button", id: "group-after", onclick: go(1), "aria-label": "Next group" }, "›"),
        h(
          "button",
          { type: "button", id: "still", onclick: toggle, "aria-pressed": String(state.isHeld) },
          "Hold still",
        ),
      ]),
      attempts(rollouts[at]!),
      tokenKey("logprob"),
    ),
  );
}

function attempts({ attempts: all }: GroupView): HTMLElement {
  const most = Math.max(...all.map(({ advantage = 0 }) => Math.abs(advantage)), 1e-9);
  return h(
    "ol",
    { class: "attempts" },
    all.map((attempt) => h("li", {}, text(attempt), verdict(attempt, most))),
  );
}

function text({ passages }: AttemptView): HTMLElement {
  const parts = passages.map(({ isSampled, tokens }) =>
    isSampled ? sampledTokens(tokens, "logprob", true) : promptTokens(tokens),
  );
  return h("span", { class: "text" }, parts);
}

function verdict({ reward, isCorrect, advantage }: AttemptView, most: number): HTMLElement {
  return h(
    "span",
    { class: "verdict" },
    h("span", { class: isCorrect ? "mark right" : "mark" }, `reward ${number(reward)}`),
    advantage === undefined ? h("span", { class: "soft" }, "not trained on") : advantageBar(advantage, most),
  );
}

/** To the right of the middle: made more likely; to the left: less. */
function advantageBar(advantage: number, most: number): HTMLElement {
  const width = (50 * Math.abs(advantage)) / most;
  const side = advantage >= 0 ? "left:50%" : "right:50%";
  const sign = advantage > 0 ? "+" : advantage < 0 ? "−" : "";
  return h(
    "span",
    { class: "advantage" },
    h(
      "span",
      { class: "track", "aria-hidden": "true" },
      h("i", { class: advantage >= 0 ? "up" : "down", style: `${side};width:${width}%` }),
    ),
    h("span", { class: "value" }, `advantage ${sign}${number(Math.abs(advantage))}`),
  );
}
