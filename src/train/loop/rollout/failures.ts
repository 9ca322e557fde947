/** Failures of rollouts, rewards and evaluators: shows the first of each kind in full, counts all. */
import { stackOf } from "../../../leaves/errors.ts";
import type { FailureLog } from "../contract.ts";

/** How many kinds of failure are shown. */
const MOST_SHOWN = 20;

export class RolloutFailures implements FailureLog {
  private readonly counts = new Map<string, number>();
  private readonly warn: (message: string) => void;

  constructor(warn: (message: string) => void) {
    this.warn = warn;
  }

  /** Shows the stack of the first failure of a kind. */
  add(error: unknown, where: string): void {
    const kind = kindOf(error);
    const before = this.counts.get(kind) ?? 0;
    this.counts.set(kind, before + 1);
    if (before > 0 || this.counts.size > MOST_SHOWN) return;
    this.warn(`The rollout ${where} failed: ${stackOf(error)}\nLater failures of this kind are only counted.`);
  }

  finish(): void {
    const kinds = [...this.counts].sort(([, a], [, b]) => b - a);
    const total = kinds.reduce((sum, [, count]) => sum + count, 0);
    if (total < 2) return;
    const rows = kinds.slice(0, MOST_SHOWN).map(([kind, count]) => `  ${count} x ${kind}`);
    const rest = kinds.length > MOST_SHOWN ? [`  and ${kinds.length - MOST_SHOWN} more kinds`] : [];
    this.warn([`${total} tries of rollouts failed:`, ...rows, ...rest].join("\n"));
  }
}

/** Messages that differ only in numbers are of one kind. */
export function kindOf(error: unknown): string {
  const [line] = String(error).split("\n");
  return line!.replace(/\d+(\.\d+)?/g, "#").slice(0, 200);
}
