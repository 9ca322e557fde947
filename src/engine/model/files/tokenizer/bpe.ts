/** Byte-pair encoding: of all neighbours in a piece the pair that was learned first is joined, until none is left. */

export interface BpeJson {
  readonly merges?: unknown;
  readonly unk_token?: string | null;
  readonly fuse_unk?: boolean;
  readonly byte_fallback?: boolean;
  readonly ignore_merges?: boolean;
  readonly end_of_word_suffix?: string | null;
  readonly continuing_subword_prefix?: string | null;
}

/** A pair of ids as one number, and of a place in the queue its rank and its position. */
const [IDS, POSITIONS] = [2 ** 24, 2 ** 26];
/** Pieces that are remembered, and their greatest length. */
const [MOST_PIECES, LONGEST_PIECE] = [10_000, 256];
const NONE = -1;

export class Bpe {
  private readonly json: BpeJson;
  private readonly ids: ReadonlyMap<string, number>;
  /** Rank by pair. */
  private readonly ranks = new Map<number, number>();
  /** The joined id by rank. */
  private readonly joined: number[] = [];
  private readonly known = new Map<string, readonly number[]>();

  constructor(json: BpeJson, ids: ReadonlyMap<string, number>) {
    if (json.continuing_subword_prefix) throw new Error("BPE with continuing_subword_prefix is not supported");
    if (!Array.isArray(json.merges)) throw new Error("the model's merges must be a list");
    this.json = json;
    this.ids = ids;
    for (const [rank, merge] of json.merges.entries()) {
      const [left, right] = (typeof merge === "string" ? merge.split(" ", 2) : merge) as [string, string];
      const [a, b, both] = [ids.get(left), ids.get(right), ids.get(left + right)];
      if (a === undefined || b === undefined || both === undefined)
        throw new Error(`merge ${rank} has a token that is not in the vocabulary (${JSON.stringify(merge)})`);
      this.ranks.set(a * IDS + b, rank);
      this.joined.push(both);
    }
  }

  encode(piece: string): readonly number[] {
    if (piece === "") return [];
    const whole = this.json.ignore_merges ? this.ids.get(piece) : undefined;
    if (whole !== undefined) return [whole];
    const cached = this.known.get(piece);
    if (cached) return cached;
    const ids = this.merged(this.symbols(piece));
    if (piece.length > LONGEST_PIECE) return ids;
    if (this.known.size >= MOST_PIECES) this.known.clear();
    this.known.set(piece, ids);
    return ids;
  }

  /** A token for each character: its own, those of its bytes, or the unknown one. */
  private symbols(piece: string): number[] {
    const { unk_token, fuse_unk, end_of_word_suffix } = this.json;
    const unknown = typeof unk_token === "string" ? this.ids.get(unk_token) : undefined;
    const characters = Array.from(piece);
    if (end_of_word_suffix) characters[characters.length - 1] += end_of_word_suffix;
    const out: number[] = [];
    let wasUnknown = false;
    for (const character of characters) {
      const id = this.ids.get(character);
      const ids = id === undefined ? this.byteTokens(character) : [id];
      if (ids) for (const each of ids) out.push(each);
      else if (unknown !== undefined && !(wasUnknown && fuse_unk)) out.push(unknown);
      wasUnknown = !ids;
    }
    return out;
  }

  private byteTokens(character: string): number[] | undefined {
    if (!this.json.byte_fallback) return undefined;
    const ids = Array.from(new TextEncoder().encode(character), (byte) => this.ids.get(byteToken(byte)));
    return ids.every((id) => id !== undefined) ? ids : undefined;
  }

  private merged(ids: number[]): number[] {
    const { length } = ids;
    const next = Int32Array.from(ids, (_, i) => (i + 1 < length ? i + 1 : NONE));
    const previous = Int32Array.from(ids, (_, i) => i - 1);
    const queue = new Queue();
    const offer = (at: number) => {
      if (at === NONE || next[at] === NONE) return;
      const rank = this.ranks.get(ids[at]! * IDS + ids[next[at]!]!);
      if (rank !== undefined) queue.push(rank * POSITIONS + at);
    };
    for (let at = 0; at < length - 1; at++) offer(at);
    for (let first = queue.pop(); first !== undefined; first = queue.pop()) {
      const at = first % POSITIONS;
      const rank = (first - at) / POSITIONS;
      const right = next[at]!;
      // The place may have been joined since.
      if (ids[at] === NONE || right === NONE || this.ranks.get(ids[at]! * IDS + ids[right]!) !== rank) continue;
      ids[at] = this.joined[rank]!;
      ids[right] = NONE;
      next[at] = next[right]!;
      if (next[at] !== NONE) previous[next[at]!] = at;
      offer(previous[at]!);
      offer(at);
    }
    return ids.filter((id) => id !== NONE);
  }
}

export const byteToken = (byte: number) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** A heap of numbers, the least first. */
class Queue {
  private readonly items: number[] = [];

  push(item: number): void {
    const { items } = this;
    let at = items.length;
    items.push(item);
    while (at > 0) {
      const up = (at - 1) >> 1;
      if (items[up]! <= item) break;
      items[at] = items[up]!;
      at = up;
    }
    items[at] = item;
  }

  pop(): number | undefined {
    const { items } = this;
    const first = items[0];
    const last = items.pop();
    if (items.length === 0 || last === undefined) return first;
    let at = 0;
    for (let down = 1; down < items.length; down = 2 * at + 1) {
      if (down + 1 < items.length && items[down + 1]! < items[down]!) down++;
      if (items[down]! >= last) break;
      items[at] = items[down]!;
      at = down;
    }
    items[at] = last;
    return first;
  }
}
