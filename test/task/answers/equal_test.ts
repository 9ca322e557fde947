import { expect, test } from "vitest";
import { answersEqual } from "../../../src/task/answers/equal.ts";

/** From `test_cases` of hendrycks/math, Minerva's appendix D and the tests of math-verify, with cases of our own. */
const EQUAL: readonly (readonly [string, string])[] = [
  ["\\frac{1}{2}", "1/2"],
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
];

const UNEQUAL: readonly (readonly [string, string])[] = [
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
];

test.each(EQUAL)("%s equals %s", async (one, other) => {
  expect(await answersEqual(one, other)).toBe(true);
  expect(await answersEqual(other, one)).toBe(true);
});

test.each(UNEQUAL)("%s does not equal %s", async (one, other) => {
  expect(await answersEqual(one, other)).toBe(false);
  expect(await answersEqual(other, one)).toBe(false);
});
