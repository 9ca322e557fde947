/** Tokens in a row, each with its color and what is known of it. */
import type { TokenView } from "../../src/serve/gateway/page/trace_data.ts";
import { h } from "../element.ts";
import { number } from "../format.ts";
import type { Coloring } from "./state.ts";

/** Upper bounds of the classes of surprise, -log p. The first is for tokens that were nearly certain. */
const SURPRISE = [0.05, 0.3, 0.7, 1.5, 3, 5] as const;

/** 0 for a likely token, 6 for one of a probability below 1 %. */
export function surpriseClass(logprob: number): number {
  const at = SURPRISE.findIndex((bound) => -logprob <= bound);
  return at < 0 ? SURPRISE.length : at;
}

/** Tokens of the prompt: never trained on. */
export const promptTokens = (tokens: readonly TokenView[]) =>
  h(
    "span",
    { class: "tokens given" },
    tokens.map((token) => tokenElement(token, "given")),
  );

export function sampledTokens(tokens: readonly TokenView[], coloring: Coloring, isTrainable: boolean): HTMLElement {
  const kind = ({ logprob }: TokenView) => {
    if (!isTrainable || logprob === undefined) return "unknown";
    return coloring === "mask" ? "trained" : `s${surpriseClass(logprob)}`;
  };
  return h(
    "span",
    { class: "tokens sampled" },
    tokens.map((token) => tokenElement(token, kind(token))),
  );
}

function tokenElement(token: TokenView, kind: string): HTMLElement {
  return h("span", { class: `t ${kind}`, title: titleOf(token) }, visible(token.text));
}

function titleOf({ id, text, logprob }: TokenView): string {
  const parts = [`${JSON.stringify(text)} · id ${id}`];
  if (logprob !== undefined) parts.push(`log p ${number(logprob)} · p ${number(Math.exp(logprob))}`);
  return parts.join("\n");
}

/** Line ends are seen, and still end lines. */
const visible = (text: string) => text.replaceAll("\n", "⏎\n") || "∅";

/** What the colors mean. */
export function tokenKey(coloring: Coloring): HTMLElement {
  const entry = (kind: string, text: string) => h("span", {}, h("i", { class: `t ${kind}` }), text);
  const own =
    coloring === "mask"
      ? [entry("trained", "sampled, mask 1")]
      : [entry("s0", "p > 95 %"), entry("s2", "p ≈ 60 %"), entry("s4", "p ≈ 10 %"), entry("s6", "p < 1 %")];
  return h("div", { class: "key" }, [
    ...own,
    entry("unknown", "without log-probs: cannot be trained on"),
    entry("given", "prompt, mask 0"),
  ]);
}
