/** Finds which of many token sequences a prompt starts with, in one pass over the prompt. */

interface Entry<T> {
  readonly tokens: readonly number[];
  readonly value: T;
}

/** Keeps sequences by length and hash. A hash only proposes: the tokens are compared before a sequence counts as found. */
export class PrefixIndex<T> {
  private readonly byLength = new Map<number, Map<number, Entry<T>[]>>();

  /** Of two equal sequences the later one is found. */
  add(tokens: readonly number[], value: T): void {
    const byHash = this.byLength.get(tokens.length) ?? new Map<number, Entry<T>[]>();
    this.byLength.set(tokens.length, byHash);
    const hash = tokens.reduce(mixed, 0);
    byHash.set(hash, [{ tokens, value }, ...(byHash.get(hash) ?? [])]);
  }

  /** The value of the longest sequence that `tokens` starts with. */
  longestOf(tokens: readonly number[]): T | undefined {
    let found: T | undefined;
    let hash = 0;
    if (this.byLength.size === 0) return undefined;
    for (let length = 1; length <= tokens.length; length++) {
      hash = mixed(hash, tokens[length - 1]!);
      const proposed = this.byLength.get(length)?.get(hash) ?? [];
      found = proposed.find((entry) => startsWith(tokens, entry.tokens))?.value ?? found;
    }
    return found;
  }
}

function mixed(hash: number, token: number): number {
  return Math.imul(hash ^ (token + 0x9e3779b9), 0x01000193);
}

function startsWith(tokens: readonly number[], prefix: readonly number[]): boolean {
  return prefix.every((token, i) => token === tokens[i]);
}
