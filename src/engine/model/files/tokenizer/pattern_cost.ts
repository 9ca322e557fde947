/**
 * Refuses regular expressions whose time at one place grows faster than the text: `(a+)+$` takes 2^n steps. What can be
 * tried in more than one way, and then fail, multiplies; a rule that is too strict refuses a pattern and is safe.
 */

/** Element of a sequence: a character, a look around, or a group. */
interface Element {
  /** Element as JavaScript writes one character or class; undefined for groups and looks around. */
  readonly atom?: string;
  readonly branches?: readonly (readonly Element[])[];
  readonly isLook?: boolean;
  readonly min: number;
  readonly max: number;
}

/** Ways in which optional parts before a failure may be tried. */
const MOST_WAYS = 10_000;

/** @param source of a JavaScript expression with the flag u. @throws for one that may take too long. */
export function checkPattern(source: string): void {
  for (const branch of new Reader(source).branches()) checkSequence(branch, source);
}

function checkSequence(sequence: readonly Element[], source: string): void {
  for (const element of sequence) {
    for (const branch of element.branches ?? []) checkSequence(branch, source);
    if (element.branches && !element.isLook && element.max > 1 && !isFixed(element.branches))
      throw slow(source, "it repeats a group of varying length");
  }
  const flat = flatten(sequence);
  const last = flat.findLastIndex(({ min, isLook }) => isLook || min > 0);
  const before = flat.slice(0, Math.max(last, 0));
  const open = before.filter((element, i) => isUnbounded(element) && !isClosed(element, flat[i + 1]));
  if (open.length > 1) throw slow(source, "parts of any length follow one another");
  const ways = before.reduce((product, each) => product * waysOf(each), 1);
  if (ways > MOST_WAYS) throw slow(source, "it has too many optional parts");
}

const isUnbounded = ({ max }: Element) => max === Number.POSITIVE_INFINITY;

/** Groups that occur at most once, in place of themselves: the worst of their branches. */
function flatten(sequence: readonly Element[]): Element[] {
  return sequence.flatMap((element) => {
    const { branches, isLook, min, max } = element;
    if (!branches || isLook || max > 1) return [element];
    const worst = branches.map(flatten).sort((a, b) => b.filter(isUnbounded).length - a.filter(isUnbounded).length)[0];
    const choice: Element[] = branches.length > 1 ? [{ min: 0, max: branches.length - 1 }] : [];
    return [...choice, ...(worst ?? []).map((each) => (min === 0 ? { ...each, min: 0 } : each))];
  });
}

function waysOf({ min, max }: Element): number {
  return max === Number.POSITIVE_INFINITY ? 1 : max - min + 1;
}

/** A group that is one fixed sequence of characters: repeating it leaves no choice. */
function isFixed(branches: readonly (readonly Element[])[]): boolean {
  const [only, ...others] = branches;
  return (
    others.length === 0 &&
    only !== undefined &&
    only.every(
      ({ atom, branches: inner, isLook, min, max }) =>
        isLook || (min === max && (atom !== undefined || (inner !== undefined && isFixed(inner)))),
    )
  );
}

/** A run that ends at a character which it cannot contain leaves no choice. */
function isClosed(run: Element, next: Element | undefined): boolean {
  if (run.atom === undefined || next?.atom === undefined || next.min === 0) return false;
  const [first, other] = [new RegExp(run.atom, "u"), new RegExp(next.atom, "u")];
  return !samples().some((character) => first.test(character) && other.test(character));
}

let sampled: readonly string[] | undefined;

/** Characters of every kind: all of the first plane's first quarter, and some of the rest. */
function samples(): readonly string[] {
  sampled ??= Array.from({ length: 0x8000 }, (_, i) =>
    String.fromCodePoint(i < 0x4000 ? i : ((i * 61) % 0x10_0000) + 0x10000),
  );
  return sampled;
}

function slow(source: string, reason: string): Error {
  return new Error(
    `a regular expression may take too long on some texts, because ${reason} (${source.slice(0, 80)}). Use the tokenizer that was published with the model`,
  );
}

/** Reads JavaScript's syntax with the flag u. The expression is valid: it has been compiled. */
class Reader {
  private readonly source: string;
  private at = 0;

  constructor(source: string) {
    this.source = source;
  }

  branches(): Element[][] {
    const branches: Element[][] = [[]];
    while (this.at < this.source.length && this.source[this.at] !== ")") {
      if (this.source[this.at] === "|") {
        this.at++;
        branches.push([]);
      } else branches.at(-1)!.push(this.element());
    }
    return branches;
  }

  private element(): Element {
    const body = this.body();
    return { ...body, ...this.count() };
  }

  private body(): Omit<Element, "min" | "max"> {
    const group = this.take(/\((?:\?(?:<?[=!]|<[^>]*>|[a-z-]*:))?/y);
    if (group !== undefined) {
      const branches = this.branches();
      this.at++;
      return { branches, isLook: /[=!]$/.test(group) };
    }
    const atom = this.take(
      /\\(?:[pPu]\{[^}]*\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|k<[^>]*>|c[A-Za-z]|\d+|[\s\S])|\[(?:\\[\s\S]|[^\]\\])*\]|[\s\S]/uy,
    )!;
    // A backreference is of any length.
    if (/^\\(?:[1-9]|k)/.test(atom)) return { branches: [[{ min: 0, max: Number.POSITIVE_INFINITY }]] };
    return /^(?:\^|\$|\\[bB])$/.test(atom) ? { isLook: true } : { atom };
  }

  private count(): { min: number; max: number } {
    const text = this.take(/(?:[*+?]|\{\d+(?:,\d*)?\})\??/y) ?? "";
    const [, low, comma, high] = /^\{(\d+)(,?)(\d*)/.exec(text) ?? [];
    if (low !== undefined) {
      const min = Number(low);
      return { min, max: high ? Number(high) : comma ? Number.POSITIVE_INFINITY : min };
    }
    const min = text[0] === "*" || text[0] === "?" ? 0 : 1;
    return { min, max: text[0] === "*" || text[0] === "+" ? Number.POSITIVE_INFINITY : 1 };
  }

  private take(sticky: RegExp): string | undefined {
    sticky.lastIndex = this.at;
    const [text] = sticky.exec(this.source) ?? [];
    if (text !== undefined) this.at += text.length;
    return text;
  }
}
