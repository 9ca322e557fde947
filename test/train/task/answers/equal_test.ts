import fc from "fast-check";
import { expect, test } from "vitest";
import { answersEqual } from "../../../../src/train/task/answers/equal.ts";

/** Cases of the MATH data set's kinds. */
const EQUAL: readonly (readonly [string, string])[] = [
  ["\\frac{1}{2}", "1/2"],
  ["2**3", "8"],
  ["x \\not= 3", "x \\neq 3"],
  ["\\(5\\)", "5"],
  ["(-8)^{1/3}", "-2"],
  ["0.333333", "\\frac13"],
  ["\\dfrac{1}{2}", "0.5"],
  ["\\frac12", "\\tfrac{1}{2}"],
  ["\\frac1{72}", "\\frac{1}{72}"],
  [".5", "0.5"],
  ["1\\frac{1}{2}", "\\frac{3}{2}"],
  ["-\\frac{1}{3}", "\\frac{-1}{3}"],
  ["1,000", "1000"],
  ["1{,}234{,}567", "1,234,567"],
  ["\\$1,234.50", "1234.5"],
  ["10\\%", "10"],
  ["36\\text{ cm}^2", "36"],
  ["36 cm", "36"],
  ["5\\text{ hours}", "5"],
  ["90^\\circ", "90"],
  ["90^{\\circ}", "90\\text{ degrees}"],
  ["x=5", "5"],
  ["x \\in [0,1)", "[0, 1)"],
  ["\\left(1, 2\\right)", "(1,2)"],
  ["(\\frac{1}{2}, 3)", "(0.5,3)"],
  ["\\{1,2,3\\}", "\\{3, 2, 1\\}"],
  ["1,2", "2, 1"],
  ["1 \\text{ and } 2", "1,2"],
  ["(-\\infty, 2]", "(-\\infty,2]"],
  ["2\\sqrt{3}", "\\sqrt{12}"],
  ["\\sqrt3", "\\sqrt{3}"],
  ["\\sqrt[3]{8}", "2"],
  ["\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"],
  ["(x+1)^2", "x^2+2x+1"],
  ["2xy", "2yx"],
  ["2x+y=3", "y+2x-3=0"],
  ["\\frac{\\pi}{4}", "\\pi/4"],
  ["2\\pi r", "\\pi\\cdot 2r"],
  ["2^{10}", "1024"],
  ["3\\times 10^{5}", "300000"],
  ["\\binom{5}{2}", "10"],
  ["\\text{(C)}", "C"],
  ["\\text{Evelyn}", "Evelyn"],
  ["1+2i", "2i+1"],
  ["|-3|", "3"],
  // Commas separate inside of brackets.
  ["[0,100]", "[0, 100]"],
  ["(0,180)", "(0, 180)"],
  ["[100,200)", "[100, 200)"],
  ["\\{1,200\\}", "\\{1, 200\\}"],
  ["0,180", "0, 180"],
  ["14{,\\!}916", "14916"],
  ["14,\\!916", "14916"],
  ["(1{,}200, 3)", "(1200, 3)"],
  ["1 000 000", "1000000"],
  // Either a list or a number.
  ["1,200", "1, 200"],
  ["1,200", "1200"],
  // Exact and large.
  ["20!", "2432902008176640000"],
  ["\\frac{2020!}{2018!}", "2020 \\cdot 2019"],
  ["2^{100}\\sqrt{4}", "2^{101}"],
  ["\\sqrt8-2\\sqrt2", "0"],
  ["\\sin\\pi", "0"],
  ["0.333333", "\\frac13"],
  ["1.41421356", "\\sqrt2"],
  // Notations.
  ["\\bigl(1, 2\\bigr)", "(1,2)"],
  ["\\Bigl[\\biggl(1\\biggr)\\Bigr]", "1"],
  ["a=1 \\text{ or } a=-2", "1,-2"],
  ["x = \\pm 2", "-2, 2"],
  ["(x, y) = (1, 2)", "(1,2)"],
  ["\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"],
  ["\\frac1e", "e^{-1}"],
  ["\\log_{10} 1000", "3"],
  ["\\log_2 8", "3"],
  ["\\sin^2 x + \\cos^2 x", "1"],
  ["\\tan^{-1} 1", "\\frac{\\pi}{4}"],
  ["+\\infty", "\\infty"],
  ["{5 \\choose 2}", "10"],
  ["{n+1 \\choose 2}", "\\frac{n(n+1)}{2}"],
  ["n!", "n(n-1)!"],
  ["0.\\overline{3}", "1/3"],
  ["0.1\\overline{6}", "1/6"],
  ["3 1/2", "3.5"],
  ["\\lfloor 3.7 \\rfloor", "3"],
  ["\\sin 30^\\circ", "\\frac12"],
  ["e^{i\\pi}", "-1"],
  ["\\sqrt[3]{-8}", "-2"],
  ["50\\%", "0.5"],
  ["12.5\\%", "12.5"],
  ["\\text{yes}", "Yes"],
  ["\\text{June 5}", "June 5"],
  ["5 \\text{ apples}", "5"],
  // Relations.
  ["2x+2y=6", "x+y=3"],
  ["-x<4", "x>-4"],
  ["1<x\\le 3", "(1,3]"],
  ["x<0 \\text{ or } x \\ge 1", "(-\\infty,0)\\cup[1,\\infty)"],
  ["\\{x | x > 2\\}", "(2,\\infty)"],
  ["\\mathbb{R}", "(-\\infty,\\infty)"],
  ["101_2", "101_{2}"],
  ["101_2", "101"],
];

const UNEQUAL: readonly (readonly [string, string])[] = [
  ["1.0000000001", "1"],
  ["\\ln|x|", "\\ln x"],
  ["1", "2"],
  ["(0,1)", "[0,1]"],
  ["(1,2)", "(2,1)"],
  ["\\{1,2\\}", "\\{1,2,2\\}"],
  ["1,2", "1,2,3"],
  ["x+1", "y+1"],
  ["x<5", "x>5"],
  ["10^{9}", "10^{9}+10"],
  ["0.333", "\\frac{1}{3}"],
  ["C", "B"],
  ["", ""],
  ["\\frac{1}{0}", "\\frac{2}{0}"],
  ["import(1)", "2"],
  ["1000", "1,00,0"],
  // Exact at any size; other numbers relative to the larger; 0 is 0 alone.
  ["2^{40}-1", "2^{40}"],
  ["10000000001", "10000000000"],
  ["20!", "20!+1"],
  ["6.02\\times10^{-23}", "1.6\\times10^{-19}"],
  ["0", "6.67\\times10^{-11}"],
  ["0", "e^{-40}"],
  ["10^{-23}\\pi", "10^{-19}\\pi"],
  ["10^{11}x", "10^{11}x+1"],
  ["10^{11}x^2y", "10^{11}x^2y+10^{-11}"],
  ["2^{60}\\sqrt2", "2^{60}\\sqrt2+1"],
  ["\\sqrt{10^{20}+1}", "10^{10}"],
  ["\\frac{10^{20}}{3}", "\\frac{10^{20}+1}{3}"],
  ["0.12345678901234567", "0.12345678901234568"],
  ["3.14", "\\pi"],
  ["(1,100)", "1100"],
  ["5 \\text{ hours and } 30 \\text{ minutes}", "530"],
  ["5 \\text{ hours and } 30 \\text{ minutes}", "5"],
  ["3m", "3"],
  ["4m", "4"],
  ["101_2", "1012"],
  ["101_2", "5"],
  ["101_2", "101_3"],
  ["|x|", "x"],
  ["\\sqrt{x^2}", "x"],
  ["\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}"],
  ["\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1&2\\end{pmatrix}"],
  ["x<2", "x\\le 2"],
  ["x+y=5", "5"],
  ["y=5", "x=5"],
  ["x=1, y=2", "x=2, y=1"],
  ["-\\infty", "\\infty"],
  ["\\text{yes}", "no"],
  // No names of every object.
  ["constructor", "toString"],
  ["\\constructor", "\\toString"],
  ["\\frac{constructor}{2}", "\\frac{toString}{2}"],
  ["\\text{constructor}x", "\\text{toString}x"],
];

test.each(EQUAL)("%s equals %s", (one, other) => {
  expect(answersEqual(one, other)).toBe(true);
  expect(answersEqual(other, one)).toBe(true);
});

test.each(UNEQUAL)("%s does not equal %s", (one, other) => {
  expect(answersEqual(one, other)).toBe(false);
  expect(answersEqual(other, one)).toBe(false);
});

test("polynomials are equal to their other forms, and to no other polynomial", () => {
  fc.assert(
    fc.property(fc.array(fc.bigInt(-(10n ** 30n), 10n ** 30n), { minLength: 1, maxLength: 5 }), (roots) => {
      const factors = roots.map((root) => `(x-(${root}))`).join("");
      let coefficients = [1n];
      for (const root of roots)
        coefficients = [...coefficients, 0n].map((each, i) => each - root * (coefficients[i - 1] ?? 0n));
      const sum = (added: bigint) =>
        coefficients.map((each, i) => `(${i === roots.length ? each + added : each})x^{${roots.length - i}}`).join("+");
      return answersEqual(factors, sum(0n)) && !answersEqual(factors, sum(1n));
    }),
    { numRuns: 50 },
  );
});

test("integers and ratios are equal where they are, at any size", () => {
  const size = fc.bigInt(-(10n ** 60n), 10n ** 60n);
  fc.assert(
    fc.property(
      size,
      size.filter((each) => each !== 0n),
      fc.bigInt(1n, 10n ** 20n),
      (top, bottom, factor) => {
        const one = `\\frac{${top}}{${bottom}}`;
        const same = `\\frac{${top * factor}}{${bottom * factor}}`;
        return answersEqual(one, same) && !answersEqual(one, `\\frac{${top * factor + 1n}}{${bottom * factor}}`);
      },
    ),
    { numRuns: 100 },
  );
});

test("what cannot be read ends in a verdict", () => {
  const pieces = fc.constantFrom(
    ..."\\frac \\sqrt \\text { } ( ) [ ] , | ^ _ 1 2.5 x ab \\le = \\cup ! % \\pm \\{ \\} ; & \\\\ ' . - + / * \\sin \\begin{pmatrix} \\end{pmatrix} and \\overline __proto__".split(
      " ",
    ),
  );
  fc.assert(
    fc.property(fc.array(pieces, { maxLength: 25 }), fc.array(pieces, { maxLength: 25 }), (a, b) => {
      const [one, other] = [a.join(""), b.join(" ")];
      expect(typeof answersEqual(one, other)).toBe("boolean");
      expect(answersEqual(one, other)).toBe(answersEqual(other, one));
      expect(answersEqual(one, one)).toBe(one.trim() !== "" && answersEqual(one, ` ${one} `));
    }),
    { numRuns: 400 },
  );
});
