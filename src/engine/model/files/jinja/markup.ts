/** HTML escapes, as MarkupSafe's. */
import { pythonStr } from "./print.ts";
import { type JinjaValue, Markup, textIn, type WorkCounter } from "./value.ts";

const ENTITIES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  "'": "&#39;",
  '"': "&#34;",
};

const escapedText = (text: string) => text.replace(/[&<>'"]/g, (each) => ENTITIES[each]!);

/** The text of a value with escapes, unless the value is marked as HTML. */
export const escaped = (value: JinjaValue, text: string) => (value instanceof Markup ? text : escapedText(text));

/** `value | escape`; `forceescape` does it whatever the mark. */
export function toMarkup(value: JinjaValue, work: WorkCounter, isForced = false): Markup {
  if (value instanceof Markup && !isForced) return value;
  const text = escapedText(pythonStr(value, work));
  work.room(text.length);
  return new Markup(text);
}

/** `value | safe` */
export const safe = (value: JinjaValue, work: WorkCounter) =>
  value instanceof Markup ? value : new Markup(textIn(value) ?? pythonStr(value, work));
