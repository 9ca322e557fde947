/** A teacher with another tokenizer: what it reads of the student's rows, and where its log-probs come back. */
import { expect, test } from "vitest";
import type { Tokenizer } from "../../../../src/engine/contract/text.ts";
import { byteTokenizer } from "../../../../src/engine/model/files/tokenizer.ts";
import type { PackedRows } from "../../../../src/train/data/pack.ts";
import type { Step } from "../../../../src/train/data/types.ts";
import { type Readers, textRows } from "../../../../src/train/loop/distill/text_rows.ts";

const encoder = new TextEncoder();

/** Takes the longest piece at each place. Its last token is `<end>`. */
function piecesTokenizer(pieces: readonly string[], more: Partial<Tokenizer> = {}): Tokenizer {
  const end = pieces.length;
  const textOf = (id: number, skipSpecialTokens: boolean) =>
    id === end ? (skipSpecialTokens ? "" : "<end>") : pieces[id]!;
  return {
    vocabSize: end + 1,
    eosTokenIds: [end],
    encode(text) {
      const ids: number[] = [];
      for (let at = 0; at < text.length; ) {
        const fitting = pieces.filter((piece) => text.startsWith(piece, at));
        const longest = fitting.reduce((best, piece) => (piece.length > best.length ? piece : best), "");
        if (longest === "") throw new Error(`no piece for ${text.slice(at)}`);
        ids.push(pieces.indexOf(longest));
        at += longest.length;
      }
      return ids;
    },
    decode: (ids, { skipSpecialTokens = true } = {}) => ids.map((id) => textOf(id, skipSpecialTokens)).join(""),
    tokenBytes: (id) => (id === end ? undefined : encoder.encode(pieces[id])),
    ...more,
  };
}

const STUDENT = byteTokenizer();
const [EOS] = STUDENT.eosTokenIds as [number];
const TEACHER = piecesTokenizer(["a", "b", "ab", "c", "é", "bc", "Q:", " ", "<end>x"]);

/** One row: a prompt, and parts of the reply with whether they are trained on. */
function rowOf(prompt: string, ...parts: readonly (readonly [ids: readonly number[], mask: 0 | 1])[]) {
  const prompt_ids = STUDENT.encode(prompt);
  const reply = parts.flatMap(([ids]) => ids);
  const tokens = Uint32Array.from([...prompt_ids, ...reply]);
  const mask = [...prompt_ids.map(() => 0), ...parts.flatMap(([ids, bit]) => ids.map(() => bit))];
  const step = { prompt_ids, response_ids: reply } as unknown as Step;
  return {
    tokens,
    offsets: Uint32Array.of(0, tokens.length),
    mask: Uint32Array.from(mask),
    rolloutLogprobs: Float32Array.from(mask, (bit, t) => (bit ? -(t + 1) : 0)),
    stepOfToken: new Uint32Array(tokens.length),
    trajectoryOfRow: Uint32Array.of(0),
    trajectories: [{ uid: "row", steps: [step] }],
  } as unknown as PackedRows;
}

const text = (written: string) => [...encoder.encode(written)];
const read = (rows: PackedRows, readers: Partial<Readers> = {}) =>
  textRows(rows, { student: STUDENT, teacher: TEACHER, name: "the teacher", ...readers });
/** The teacher's tokens as text, cut by bars, those with a log-prob in capitals' place: marked by a star. */
const shown = (rows: PackedRows, readers: Partial<Readers> = {}) => {
  const { tokens, mask } = read(rows, readers);
  const { teacher = TEACHER } = readers;
  return Array.from(tokens, (id, t) => teacher.decode([id], { skipSpecialTokens: false }) + (mask[t] ? "*" : "")).join(
    "|",
  );
};

const [E1, E2] = text("é") as [number, number];

test.each([
  ["one token for two bytes", rowOf("Q:", [text("abc"), 1]), "Q:|ab*|c*", 3],
  ["the end of a reply", rowOf("Q:", [[...text("ab"), EOS], 1]), "Q:|ab*|<end>*", 3],
  ["a character of several tokens", rowOf("Q:", [text("aé"), 1]), "Q:|a*|é*", 3],
  ["a reply that is cut inside a character", rowOf("Q:", [[...text("a"), E1], 1]), "Q:|a*", 1],
  ["bytes that are no text", rowOf("Q:", [[...text("a"), E2, ...text("b")], 1]), "Q:|a*", 1],
  ["the prompt and the reply apart", rowOf("a", [text("b"), 1]), "a|b*", 1],
  [
    "an answer of the environment",
    rowOf("Q:", [text("a"), 1], [text("b"), 0], [[...text("c"), EOS], 1]),
    "Q:|a*|b|c*|<end>*",
    3,
  ],
  ["an empty reply", rowOf("Q:", [[EOS], 1]), "Q:|<end>*", 1],
  ["no reply", rowOf("Q:"), "Q:", 0],
])("reads %s", (_, rows, expected, aligned) => {
  expect(shown(rows)).toBe(expected);
  expect(read(rows).aligned).toBe(aligned);
});

test("the log-probs of a span are shared, and a token without a partner keeps the student's", () => {
  const rows = rowOf("Q:", [[...text("ab"), EOS, E1], 1]);
  const asked = read(rows);
  expect([...asked.tokens]).toEqual([6, 2, 9]);
  const values = asked.atRows(Float32Array.of(0, -9, -1));
  // The student has -3, -4 for "ab", -5 for the end and -6 for half a character.
  expect([...values]).toEqual([0, 0, -4, -5, -1, -6]);
});

test("a space that the teacher's tokenizer puts before a text is no part of it", () => {
  const spaced = piecesTokenizer([" ab", "c"], { encode: (written) => (written === "abc" ? [0, 1] : []) });
  expect(shown(rowOf("", [text("abc"), 1]), { teacher: spaced })).toBe(" ab*|c*");
});

test("a text that the teacher writes otherwise counts up to the difference", () => {
  const lowered = piecesTokenizer(["a", "b", "x"], { encode: (written) => (written === "abc" ? [0, 1, 2] : []) });
  expect(shown(rowOf("", [text("abc"), 1]), { teacher: lowered })).toBe("a*|b*");
});

test("the end of a reply is the end token that the teacher's chat template writes", () => {
  const teacher = piecesTokenizer(["a", "<turn>"], { eosTokenIds: [2, 1], chatTemplate: "{{ x }}<turn>" });
  expect(shown(rowOf("", [[...text("a"), EOS], 1]), { teacher })).toBe("a*|<turn>*");
});

test("refuses a text that the teacher has no tokens for", () => {
  expect(() => read(rowOf("Q:", [text("z"), 1]))).toThrow('Cannot distil from the teacher: it has no tokens for "z"');
});
