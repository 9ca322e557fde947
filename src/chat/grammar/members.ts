/** Members of an object, or items of a set: in their order, each that is not required with or without. */
import { bracketed, SPACE } from "./json.ts";
import { choiceRule, GrammarRule, literal, type SymbolSequence } from "./rules.ts";

export interface Member {
  readonly symbols: SymbolSequence;
  readonly isRequired: boolean;
}

export interface MemberLimits {
  readonly least?: number;
  readonly most?: number;
}

const SEPARATOR: SymbolSequence = [...literal(","), SPACE];

/** @returns undefined where no number of members is within the limits */
export function inOrder(
  brackets: readonly [open: string, close: string],
  { members, least = 0, most = Number.POSITIVE_INFINITY }: MemberLimits & { readonly members: readonly Member[] },
): GrammarRule | undefined {
  const [open, close] = brackets;
  const texts = new MemberTexts(members, { least, most });
  if (!texts.isPossible(0, 0)) return undefined;
  const empty = least === 0 && members.every(({ isRequired }) => !isRequired) ? [literal(open + close)] : [];
  const hasOne = most > 0 && members.length > 0;
  return choiceRule(...empty, ...(hasOne ? [bracketed(open, texts.from(0, 0), close)] : []));
}

class MemberTexts {
  private readonly members: readonly Member[];
  private readonly least: number;
  private readonly most: number;
  /** Numbers of members beyond this one make no difference. */
  private readonly cap: number;
  /** Required members from each place on. */
  private readonly required: readonly number[];
  private readonly rules = new Map<string, GrammarRule>();

  constructor(members: readonly Member[], { least, most }: { least: number; most: number }) {
    this.members = members;
    this.least = least;
    this.most = most;
    this.cap = Math.max(1, least, Number.isFinite(most) ? Math.min(most, members.length) : 0);
    const required = [0];
    for (const { isRequired } of [...members].reverse()) required.push(required.at(-1)! + (isRequired ? 1 : 0));
    this.required = required.reverse();
  }

  /** Whether the text can end within the limits, with so many members before place `i`. */
  isPossible(i: number, taken: number): boolean {
    return taken + this.members.length - i >= this.least && taken + this.required[i]! <= this.most;
  }

  /** Returns the rule from member `i` on; at least one member where none was taken. */
  from(i: number, taken: number): GrammarRule {
    const count = Math.min(taken, this.cap);
    const key = `${i} ${count}`;
    const rule = this.rules.get(key) ?? new GrammarRule(() => this.alternatives(i, count));
    this.rules.set(key, rule);
    return rule;
  }

  private alternatives(i: number, taken: number): SymbolSequence[] {
    const member = this.members[i];
    if (!member) return taken > 0 ? [[]] : [];
    const { symbols, isRequired } = member;
    const separator = taken > 0 ? SEPARATOR : [];
    const texts: SymbolSequence[] = [];
    if (this.isPossible(i + 1, taken + 1)) texts.push([...separator, ...symbols, this.from(i + 1, taken + 1)]);
    if (!isRequired && this.isPossible(i + 1, taken)) texts.push([this.from(i + 1, taken)]);
    return texts;
  }
}
