/** How a template is cut into text and tags: as Jinja2 cuts it (test/fixtures/chat_templates/cut.py), in linear time. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { compileTemplate } from "../../../../src/engine/model/files/chat_template.ts";

/** A source, and its text; null where Jinja2 refuses it. */
type Row = readonly [source: string, text: string | null];

const rows = JSON.parse(
  readFileSync(new URL("../../../fixtures/chat_templates/cut.json", import.meta.url), "utf8"),
) as readonly Row[];

test.each([
  ["{% if true %}\r\nx\r\n{% endif %}\r\ny", "x\ny"],
  ["a\rb\r\n", "a\nb"],
  ["{{ 'a\r\nb' }}", "a\nb"],
  ["x -}", "x -}"],
  ["x %}", "x %}"],
  ["{% raw %}{{ x }}{% endraw %}", "{{ x }}"],
  ["a {%+ if true %}b{% endif %}", "a b"],
])("%j", (source, text) => {
  expect(compileTemplate(source)({}).text).toBe(text);
});

test(`${rows.length} random sources are cut as by Jinja2`, () => {
  const wrong = rows.filter(([source, text]) => {
    try {
      return compileTemplate(source)({ x: "X" }).text !== text;
    } catch {
      return text !== null;
    }
  });
  expect(wrong).toEqual([]);
  expect(rows.filter(([, text]) => text === null).length).toBeGreaterThan(50);
});

describe("takes a time that is linear in the length of the template", () => {
  const many = (text: string) => text.repeat(Math.floor(2 ** 19 / text.length));
  test.each([
    ["spaces after a tag", `{{ x }}${many(" ")}`],
    ["spaces before a tag", `${many(" ")}{{- x }}`],
    ["spaces in a tag", `{{ x${many(" ")}}}`],
    ["line ends", `{{ x }}${many("\n")}y`],
    ["lines of spaces", many(" \n ")],
    ["braces", many("{ ")],
    ["a comment", `{#${many(" -")}#}`],
    ["raw blocks", `{% raw %}${many("{% ")}{% endraw %}`],
    ["tags that do not end", many("{% raw ")],
    ["a text that does not end", `{{ '${many("\\")}`],
    ["tests of one condition", `{% if x %}${many("{% elif y %}")}{% endif %}`],
    ["filters", `{{ x${many("|trim")} }}`],
    ["sums", `{{ 1${many("+1")} }}`],
    ["comparisons", `{{ 1${many("<1")} }}`],
    ["arguments", `{{ x(${Array.from({ length: 60_000 }, (_, i) => `a${i}=1`).join()}) }}`],
    ["signs", `{{ ${many("-")}1 }}`],
    ["negations", `{{ ${many("not ")}1 }}`],
    ["blocks in each other", many("{% if x %}")],
    ["generation tags", many("{% generation ")],
  ])("%s", (_, source) => {
    const started = performance.now();
    try {
      compileTemplate(source)({ x: "X" });
    } catch (error) {
      expect((error as Error).message).toMatch(/^Cannot (read|format)/);
    }
    expect(performance.now() - started).toBeLessThan(3000);
  });
});
