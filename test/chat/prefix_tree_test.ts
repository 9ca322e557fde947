import { describe, expect, test } from "vitest";
import { PrefixTree, unitsOf } from "../../src/chat/prefix_tree.ts";
import { Transcript } from "../../src/chat/transcript.ts";
import type { ChatMessage } from "../../src/engine/contract/text.ts";
import { randomStream } from "../../src/leaves/random.ts";
import { CHATML, chatTokenizer } from "../fixtures/chat.ts";

/** The rule, written out: all sequences are compared. */
class AllSequences<T> {
  private readonly entries: { readonly sequence: readonly number[]; readonly value: T }[] = [];

  add(sequence: readonly number[], value: T): void {
    this.entries.push({ sequence, value });
  }

  private startsOf(sequence: readonly number[]) {
    return this.entries.filter((entry) => entry.sequence.every((id, i) => id === sequence[i]));
  }

  longestOf(sequence: readonly number[]): T | undefined {
    const found = this.startsOf(sequence).filter((entry) => entry.sequence.length > 0);
    const most = Math.max(...found.map((entry) => entry.sequence.length));
    return found.findLast((entry) => entry.sequence.length === most)?.value;
  }

  distinctStarts(): number {
    const starts = this.entries.flatMap(({ sequence }) => sequence.map((_, i) => `${sequence.slice(0, i + 1)}`));
    return new Set(starts).size;
  }
}

/** Sequences that share beginnings: most continue or branch off an earlier one. */
function sequences(seed: number, count: number): number[][] {
  const random = randomStream(seed);
  const below = (most: number) => Math.floor(random() * most);
  const all: number[][] = [[]];
  for (let i = 0; i < count; i++) {
    const from = all[below(all.length)]!;
    all.push([...from.slice(0, below(from.length + 1)), ...Array.from({ length: below(5) }, () => below(3))]);
  }
  return all;
}

describe.each(Array.from({ length: 8 }, (_, seed) => seed))("random sequences %i", (seed) => {
  const all = sequences(seed, 80);

  test("the longest beginning is found as by comparing all; each element is held once", () => {
    const [tree, reference] = [new PrefixTree<number>(), new AllSequences<number>()];
    for (const [i, sequence] of all.entries()) {
      expect(tree.longestOf(sequence)).toBe(reference.longestOf(sequence));
      tree.add(sequence, i);
      reference.add(sequence, i);
    }
    const others = sequences(seed + 1000, 100);
    expect(others.map((each) => tree.longestOf(each))).toEqual(others.map((each) => reference.longestOf(each)));
    expect(tree.size).toBe(reference.distinctStarts());
  });

  test("a place keeps its sequence while others are added, and lies on the path of what starts with it", () => {
    const tree = new PrefixTree();
    const places = all.map((sequence) => tree.add(sequence));
    all.forEach((sequence, i) => {
      expect(places[i]!.sequence()).toEqual(sequence);
      expect(places[i]!.length).toBe(sequence.length);
      const path = tree.pathOf(sequence);
      const starts = all.map((other) => other.every((id, k) => id === sequence[k]));
      expect(places.map((place) => path.has(place))).toEqual(starts);
    });
  });
});

test("a value is kept where its sequence is added again without one", () => {
  const tree = new PrefixTree<string>();
  tree.add([1, 2], "first");
  tree.add([1, 2]);
  expect(tree.longestOf([1, 2, 3])).toBe("first");
  tree.add([1, 2], "second");
  expect(tree.longestOf([1, 2, 3])).toBe("second");
  expect(tree.longestOf([1])).toBeUndefined();
});

test("texts are compared by code units, halves of characters too", () => {
  const tree = new PrefixTree();
  const half = tree.add(unitsOf("a\ud83d"));
  expect(tree.pathOf(unitsOf("a\ud83d\ude00")).has(half)).toBe(true);
  expect(tree.pathOf(unitsOf("a\ud83e")).has(half)).toBe(false);
});

test("a conversation of many turns holds each token once", () => {
  const tokenizer = chatTokenizer(CHATML);
  const sequences = new PrefixTree<unknown>();
  const transcript = new Transcript({ tokenizer }, sequences);
  const messages: ChatMessage[] = [{ role: "user", content: "the and".repeat(200) }];
  let whole: readonly number[] = [];
  for (let turn = 0; turn < 100; turn++) {
    const prompt = transcript.prompt(messages);
    const responseIds = tokenizer.encode(`the ${turn}<|im_end|>`, { addSpecialTokens: false });
    const message = { role: "assistant", content: `the ${turn}` };
    transcript.record(prompt, { responseIds, message });
    whole = [...prompt.ids, ...responseIds];
    messages.push(message, { role: "user", content: `and ${turn}` });
  }
  expect(transcript.prompt(messages).origin).toBe("continued");
  expect(sequences.size).toBe(whole.length);
});
