/** Finds the rules that have a text at all: a schema that always contains itself has none. */
import type { GrammarRule } from "./rules.ts";

export class Needs {
  private readonly needs = new Map<GrammarRule, readonly (readonly GrammarRule[])[]>();

  /** @param alternatives each the rules that its texts hold at least */
  set(rule: GrammarRule, alternatives: readonly (readonly GrammarRule[])[]): void {
    this.needs.set(rule, alternatives);
  }

  /** The rules without a finite text. Those that were never set have one. */
  endless(): ReadonlySet<GrammarRule> {
    const endless = new Set(this.needs.keys());
    const ends = (rule: GrammarRule) =>
      this.needs.get(rule)!.some((needs) => needs.every((need) => !endless.has(need)));
    for (let before = -1; before !== endless.size; ) {
      before = endless.size;
      for (const rule of endless) if (ends(rule)) endless.delete(rule);
    }
    return endless;
  }
}
