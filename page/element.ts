/** Elements of any page. */
export type Child = Node | string | undefined | readonly Child[];
type Attributes = Readonly<Record<string, string | boolean | undefined | EventListener>>;

/** An element. Text is always text, never markup; a function is the listener of the event after `on`. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  const flat = (children as readonly unknown[]).flat(Number.POSITIVE_INFINITY);
  element.append(...flat.filter(isShown));
  return element;
}

const isShown = (child: unknown): child is Node | string => child !== undefined && child !== "";

/** The value of the input or the selection that an event is about. */
export const inputValue = ({ target }: Event) => (target as HTMLInputElement | HTMLSelectElement).value;
