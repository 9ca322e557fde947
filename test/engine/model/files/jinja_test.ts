/** Expressions, tags, filters, tests, functions and methods of Jinja2 (test/fixtures/chat_templates/jinja.py), and Python's formats. */
import { readFileSync } from "node:fs";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { compileTemplate } from "../../../../src/engine/model/files/chat_template.ts";
import { parseJson } from "../../../../src/leaves/json.ts";

interface Figures {
  readonly values: Readonly<Record<string, unknown>>;
  /** Sources that Jinja2 renders and that are refused here: what prints an address in memory, and what no template needs. */
  readonly refused: readonly string[];
  /** A source, and its text; null where Jinja2 refuses it. */
  readonly rows: readonly (readonly [source: string, text: string | null])[];
}

const path = new URL("../../../fixtures/chat_templates/jinja.json", import.meta.url);
const { values, refused, rows } = parseJson(readFileSync(path, "utf8")) as Figures;

function render(source: string): string | null {
  try {
    return compileTemplate(source)(values).text;
  } catch (error) {
    expect((error as Error).message).toMatch(/^Cannot (read|format) .*chat_template/s);
    return null;
  }
}

beforeEach(() => {
  vi.useFakeTimers({ now: new Date(2026, 2, 5, 9, 7, 3), toFake: ["Date"] });
});
afterEach(() => {
  vi.useRealTimers();
});

test(`${rows.length} sources have the text that Jinja2 gives them, or are refused as by it`, () => {
  const wrong = rows
    .map(([source, text]) => ({ source, text, ours: render(source) }))
    .filter(({ text, ours }) => ours !== text);
  expect(wrong).toEqual([]);
  expect(rows.filter(([, text]) => text === null).length).toBeGreaterThan(500);
});

test.each(refused)("%s is refused, though Jinja2 renders it", (source) => {
  expect(render(source)).toBeNull();
});
