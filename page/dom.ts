/** Elements, and the shapes that several parts of the page share. */
import { data, isMany, type Placed } from "./data.ts";
import { h } from "./element.ts";

export { type Child, h, inputValue } from "./element.ts";

/** Of run or line `i`: eight colors, then the first again. */
export const colorName = (i: number) => `--run-${i % 8}`;
export const color = (i: number) => `var(${colorName(i)})`;

/** The value of a CSS variable of the theme in use. */
export const resolved = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A run's swatch in a table's head. */
export const headSwatch = ({ i }: Pick<Placed, "i">) =>
  h("span", { class: "swatch", style: `color:${color(i)};margin-right:7px` });

/** One head for each run. */
export const runHeads = (kind = "number") =>
  data.runs.map((run, i) => h("th", { scope: "col", class: kind }, headSwatch({ i }), run.name));

export function table(heads: readonly (Node | string)[], body: readonly Node[], kind = ""): HTMLElement {
  const cells = heads.map((head) => (typeof head === "string" ? h("th", { scope: "col" }, head) : head));
  const parts = [h("thead", {}, h("tr", {}, cells)), h("tbody", {}, body)];
  return h("div", { class: "card scroll" }, h("table", { class: kind }, parts));
}

/** Undefined where it has no content. */
export function section(title: string, note: string | undefined, ...content: readonly (Node | undefined)[]) {
  const inside = content.filter((it) => it !== undefined);
  if (inside.length === 0) return undefined;
  return h("section", {}, h("h2", {}, title), note && h("p", { class: "soft" }, note), inside);
}

/** The text where runs are side by side; nothing on the page of one run. */
export const ifMany = (text: string) => (isMany() ? text : "");
