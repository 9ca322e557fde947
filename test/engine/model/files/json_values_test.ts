/** Values of JSON in chat templates: numbers as they are written, keys in their order. */
import { expect, test } from "vitest";
import { compileTemplate } from "../../../../src/engine/model/files/chat_template.ts";
import { parseJson } from "../../../../src/leaves/json.ts";

const TEXT = '{"b": 1, "10": 2, "2": [1.0, 1e3, 1234567890123456789, -0]}';
const render = (source: string, x: unknown = parseJson(TEXT)) => compileTemplate(source)({ x }).text;

test.each([
  // An int of Python has no -0.
  ["{{ x | tojson }}", TEXT.replace("-0", "0")],
  ["{{ x }}", "{'b': 1, '10': 2, '2': [1.0, 1e3, 1234567890123456789, 0]}"],
  ["{% for key in x %}{{ key }} {% endfor %}", "b 10 2 "],
  [
    "{% for key, value in x.items() %}{{ key }}={{ value }};{% endfor %}",
    "b=1;10=2;2=[1.0, 1e3, 1234567890123456789, 0];",
  ],
  [
    "{% for n in x['2'] %}{{ n is number }} {{ n is integer }} {{ n is float }};{% endfor %}",
    "True False True;True False True;True True False;True True False;",
  ],
  ["{{ x['2'][1] + 1 }} {{ x['2'][2] | int }} {{ x['2'][0] == 1 }}", "1001.0 1234567890123456789 True"],
])("%s", (source, text) => {
  expect(render(source)).toBe(text);
});

test("a bigint is an int of all its digits", () => {
  expect(render("{{ x | tojson }} {{ x.id is integer }}", { id: 2n ** 64n })).toBe('{"id": 18446744073709551616} True');
});

test("an int above 2^53 is computed with all its digits", () => {
  expect(render("{{ x['2'][2] + 1 }} {{ x['2'][2] % 10 }} {{ x['2'][2] * x['2'][2] }}")).toBe(
    "1234567890123456790 9 1524157875323883675019051998750190521",
  );
});

test("a variable's own number is as it is written", () => {
  expect(compileTemplate("{{ x }} {{ y }}")(parseJson('{"x":1.0,"y":1e3}') as Record<string, unknown>).text).toBe(
    "1.0 1e3",
  );
});
