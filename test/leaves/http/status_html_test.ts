/** The parts of status pages: how figures are written, and what is escaped. */
import { describe, expect, test } from "vitest";
import {
  bar,
  compact,
  escapeHtml,
  mono,
  plural,
  refreshedPage,
  roughDuration,
  sizeText,
  table,
  tile,
} from "../../../src/leaves/http/status_html.ts";

test.each([
  [0, "0"],
  [0.1234, "0.123"],
  [99.95, "100"],
  [12.34, "12.3"],
  [100, "100"],
  [123.6, "124"],
  [9999, "9999"],
  [10_000, "10 k"],
  [12_345, "12.3 k"],
  [999_999, "1000 k"],
  [1e6, "1 M"],
  [2.5e9, "2.5 G"],
])("the figure %d is written %s", (value, text) => {
  expect(compact(value)).toBe(text);
});

test.each([
  [0, "0 B"],
  [1023, "1020 B"],
  [1024, "1 KiB"],
  [1536, "1.5 KiB"],
  [2 ** 20, "1 MiB"],
  [5 * 2 ** 30, "5 GiB"],
  [2 ** 40, "1 TiB"],
  [2 ** 50, "1020 TiB"],
])("%d bytes are written %s", (value, text) => {
  expect(sizeText(value)).toBe(text);
});

test.each([
  [-5, "0 s"],
  [89.4, "89 s"],
  [90, "2 min"],
  [5399, "90 min"],
  [5400, "2 h"],
  [129_599, "36 h"],
  [129_600, "2 days"],
  [864_000, "10 days"],
])("%d seconds are written %s", (seconds, text) => {
  expect(roughDuration(seconds)).toBe(text);
});

test("text is escaped, also as code", () => {
  expect(escapeHtml(`<a href="x">'&'</a>`)).toBe("&#60;a href=&#34;x&#34;&#62;&#39;&#38;&#39;&#60;/a&#62;");
  expect(mono("<x>")).toBe("<code>&#60;x&#62;</code>");
  expect([plural(0, "step"), plural(1, "step"), plural(2, "step")]).toEqual(["steps", "step", "steps"]);
  expect(tile(3, "steps")).toBe('<div class="card tile"><b>3</b><span>steps</span></div>');
});

test.each([
  [-1, "0.0%"],
  [0.255, "25.5%"],
  [2, "100.0%"],
])("a bar of %d is %s wide", (share, width) => {
  expect(bar("Memory", { share, text: "some" })).toBe(
    `<div class="bar"><span>Memory</span><i><u style="width:${width}"></u></i><span class="soft">some</span></div>`,
  );
});

describe("a table", () => {
  const rows = (count: number) => Array.from({ length: count }, (_, i) => [String(i), "x"]);
  const of = (count: number) => table("Things", { head: ["No", "What"], rows: rows(count), none: "None." });

  test("without rows says so", () => {
    expect(of(0)).toBe('<h2>Things</h2><p class="soft">None.</p>');
  });

  test("has its head, its rows and their number", () => {
    expect(of(1)).toBe(
      '<h2>Things <span class="soft">1</span></h2><div class="card scroll"><table><tr><th>No</th><th>What</th></tr><tr><td>0</td><td>x</td></tr></table></div>',
    );
  });

  test("shows twelve rows, and counts the others", () => {
    expect(of(12)).not.toContain("more");
    expect(of(12)).toContain("<td>11</td>");
    expect(of(15)).not.toContain("<td>12</td>");
    expect(of(15)).toContain('<p class="soft rest">and 3 more</p></div>');
  });
});

test("a page has its title escaped, its content, and a script that its policy allows", () => {
  const page = refreshedPage({ title: "<t>", nonce: "n0", content: "<p>body</p>" });
  expect(page).toMatch(/^<!doctype html>\n<html lang="en">/);
  for (const part of ["<title>&#60;t&#62;</title>", "<main><p>body</p></main>", '<script nonce="n0">'])
    expect(page).toContain(part);
});
