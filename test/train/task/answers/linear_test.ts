/** A reward's work is linear in the reply and bounded in what the reply asks for: a reply is whatever a model wrote. */
import { expect, test } from "vitest";
import { answersEqual } from "../../../../src/train/task/answers/equal.ts";
import { gsm8k, math } from "../../../../src/train/task/answers/rewards.ts";
import { lastNumber } from "../../../../src/train/task/rewards.ts";

const row = (answer: string) => ({ id: "t", instruction: "", metadata: { answer } });

const REWARDS = [math, gsm8k, lastNumber] as const;

/** Pieces that patterns and loops over a reply could come back to. */
const PIECES = [
  ...[
    " ",
    "\n",
    "\t",
    "1",
    "1,",
    "1,000",
    ",000",
    ",",
    ".",
    "1.",
    "0",
    "-",
    "$",
    "\\",
    "{",
    "}",
    "{,}",
    "|",
    "(",
    "[",
    "\\{",
  ],
  ...[
    "answer",
    "answer is ",
    "answer: ",
    "answer\n",
    "final answer is",
    "<answer>",
    "</answer>",
    "####",
    "#### 1",
    "*",
    "**",
  ],
  ...[
    "\\boxed",
    "\\boxed{",
    "\\boxed ",
    "\\boxed{1}",
    "\\text{",
    "\\text{a}",
    "\\frac",
    "\\frac{1}{",
    "\\sqrt",
    "\\left(",
    "^{",
  ],
  ...[
    "x",
    "ab ",
    "x_",
    "x^",
    "1e9",
    "\\binom{",
    "\\alpha ",
    "\\begin{pmatrix}",
    "1&",
    "\\\\",
    "\\sin",
    "=",
    "<",
    "\\cup",
    "!",
    "'",
  ],
  ...[
    "½",
    "π",
    "−",
    "\\overline{",
    ".\\overline",
    "1 ",
    "I hope it is correct. ",
    "[1",
    "(1,",
    "\\text{ and }",
    "\\pm 1",
    "a. ",
  ],
];

/** Of the processor, in ms, the least of up to three runs. */
function timeOf(run: () => unknown, limit: number): number {
  let least = Number.POSITIVE_INFINITY;
  for (let i = 0; i < 3 && least >= limit; i++) {
    const start = process.cpuUsage();
    run();
    const { user, system } = process.cpuUsage(start);
    least = Math.min(least, (user + system) / 1000);
  }
  return least;
}

const LENGTH = 10_000;

test.each(PIECES)(
  "every reward of a reply of %j, alone and between others, takes time in proportion to its length",
  (piece) => {
    const filler = piece.repeat(LENGTH / piece.length);
    const replies = [
      filler,
      `\\boxed{${filler}}`,
      `\\boxed{\\alpha${filler}b}`,
      `The answer is ${filler}1`,
      `<answer>${filler}</answer>`,
      `#### ${filler}`,
    ];
    for (const reply of replies)
      for (const reward of REWARDS) {
        const ms = timeOf(() => reward(reply, row("\\alpha b")), 250);
        // Quadratic work in 10,000 characters takes longer.
        expect(ms, `${reward.name} of ${reply.slice(0, 40)}`).toBeLessThan(250);
      }
  },
);

test.each(PIECES)("answers of %j as long as they are read cost a bounded time", (piece) => {
  const filler = piece.repeat(1000 / piece.length);
  for (const answer of [filler, `1${filler}`, `x${filler}1`, `${filler}1${"}".repeat(200)}`, filler + ")".repeat(100)])
    expect(timeOf(() => answersEqual(answer.slice(0, 1000), "x+1"), 500)).toBeLessThan(500);
});

test.each([
  ["\\binom{1000000000}{500000000}", "1"],
  ["\\binom{1000000000}{500000000}x", "x"],
  ["1000000000!", "1"],
  ["100000!", "99999!"],
  ["9^{9^{9^{9}}}", "9"],
  ["2^{10000000}", "2^{10000001}"],
  ["(1/3)^{-1000000000}", "1"],
  ["\\pi^{10^{30}}", "1"],
  ["e^{e^{e^{e^{e}}}}", "1"],
  ["\\sin(10^{1000})", "0"],
  ["\\sin(e^{100})", "0"],
  [`10^{${"9".repeat(300)}}`, "1"],
  [`${"9".repeat(900)}^{${"9".repeat(90)}}`, "1"],
  [`\\sqrt{${"7".repeat(900)}}`, "1"],
  [`${"(x+1)^{99}".repeat(90)}`, "1"],
  [`${"\\sin x".repeat(160)}`, "1"],
  [`${"\\ln(".repeat(40)}x${")".repeat(40)}`, "1"],
  [`${"1000!+".repeat(150)}1`, "1"],
  [`${"\\pm ".repeat(100)}1`, "1"],
  [
    Array.from({ length: 180 }, (_, i) => `\\ln ${i % 10}`).join(","),
    Array.from({ length: 180 }, () => "\\pi").join(","),
  ],
  [`\\lfloor ${"9".repeat(900)}.5\\rfloor`, "1"],
  [`x^{${"1".repeat(200)}/3}`, "1"],
  [`0.\\overline{${"3".repeat(900)}}`, "1/3"],
])("%j asks for much, and is refused or answered in a second", (answer, gold) => {
  expect(timeOf(() => answersEqual(answer, gold), 1000)).toBeLessThan(1000);
  expect(answersEqual(answer, answer)).toBe(true);
});
