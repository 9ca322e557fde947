/** Spans of two tokenizations of one text, and log-probs shared over them. */
import { describe, expect, test } from "vitest";
import { alignSpans, shareOverSpans } from "../../../../src/engine/algorithm/distill/spans.ts";
import { randomStream } from "../../../../src/leaves/random.ts";

/** Ends of spans on both sides. */
const ends = (student: number[], teacher: number[]) =>
  alignSpans(student, teacher).map((span) => [span.student[1], span.teacher[1]]);

test.each([
  [
    "equal tokens",
    [1, 2, 1],
    [1, 2, 1],
    [
      [1, 1],
      [2, 2],
      [3, 3],
    ],
  ],
  ["one token for three", [1, 1, 1], [3], [[3, 1]]],
  ["three tokens for one", [3], [1, 1, 1], [[1, 3]]],
  ["tokens that overlap", [2, 2, 1], [1, 2, 2], [[3, 3]]],
  [
    "a cut in the middle",
    [2, 1, 3],
    [1, 2, 1, 2],
    [
      [2, 2],
      [3, 4],
    ],
  ],
  [
    "a token without bytes",
    [1, 0, 2],
    [1, 2, 0],
    [
      [2, 1],
      [3, 3],
    ],
  ],
  ["a token without bytes at the start", [0, 1], [1], [[2, 1]]],
  ["nothing", [], [], []],
])("%s", (_, student, teacher, expected) => {
  expect(ends(student, teacher)).toEqual(expected);
});

describe("random cuts of a text", () => {
  const random = randomStream(7);
  const draw = (bytes: number) => {
    const lengths: number[] = [];
    for (let left = bytes; left > 0; ) {
      const length = Math.min(left, Math.floor(random() * 4));
      lengths.push(length);
      left -= length;
    }
    return lengths;
  };

  test("spans partition both sides, are the shortest, and their differences add up to the text's", () => {
    for (let i = 0; i < 500; i++) {
      const bytes = 1 + Math.floor(random() * 30);
      const [student, teacher] = [draw(bytes), draw(bytes)];
      const spans = alignSpans(student, teacher);
      const sum = (values: number[], [first, end]: readonly [number, number]) =>
        values.slice(first, end).reduce((total, value) => total + value, 0);
      for (const side of ["student", "teacher"] as const) {
        const starts = [0, ...spans.map((span) => span[side][1])];
        expect(spans.map((span) => span[side][0])).toEqual(starts.slice(0, -1));
      }
      for (const { student: own, teacher: other } of spans) expect(sum(student, own)).toBe(sum(teacher, other));
      const places = (lengths: number[]) =>
        new Set(lengths.map((_, t) => sum(lengths, [0, t + 1])).filter((end) => end > 0));
      const shared = [...places(student)].filter((end) => places(teacher).has(end));
      expect(spans).toHaveLength(shared.length);
      const logprobs = { student: student.map(() => -random()), teacher: teacher.map(() => -random()) };
      const values = shareOverSpans(spans, logprobs);
      for (const { student: own, teacher: other } of spans)
        expect(sum([...values], own)).toBeCloseTo(sum(logprobs.teacher, other), 5);
    }
  });
});

test("a span's difference is shared equally, and tokens outside of spans keep their own log-prob", () => {
  const spans = [{ student: [1, 3], teacher: [0, 1] }] as const;
  const shared = shareOverSpans(spans, { student: [-1, -2, -4, -8], teacher: [-3] });
  expect([...shared]).toEqual([-1, -0.5, -2.5, -8]);
});
