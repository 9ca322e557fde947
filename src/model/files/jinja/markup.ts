/** HTML escapes, as MarkupSafe's. */
import { textOf } from "./print.ts";
import { Markup, textIn, type Value, type Work } from "./value.ts";

const ENTITIES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  "'": "&#39;",
  '"': "&#34;",
};

const escapedText = (text: string) => text.replace(/[&<>'"]/g, (each) => ENTITIES[each]!);

/** The text of a value with escapes, unless the value is marked as HTML. */
export const escaped = (value: Value, text: string) => (value instanceof Markup ? text : escapedText(text));

/** `value | escape`; `forceescape` does it whatever the mark. */
export function toMarkup(value: Value, work: Work, isForced = false): Markup {
  if (value instanceof Markup && !isForced) return value;
  const text = escapedText(textOf(value, work));
  work.room(text.length);
  return new Markup(text);
}

/** `value | safe` */
export const safe = (value: Value, work: Work) =>
  value instanceof Markup ? value : new Markup(textIn(value) ?? textOf(value, work));
