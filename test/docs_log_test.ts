/** Holds the form of docs/log: the head of each page, links that lead somewhere, and an index that misses no page. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

const LOG = fileURLToPath(new URL("../docs/log", import.meta.url));
const INDEX = "README.md";
const PAGES = readdirSync(LOG).filter((name) => name !== INDEX);
const HEAD = ["Question", "Prediction", "Result", "Commit", "Superseded by"];
const textOf = (page: string) => readFileSync(join(LOG, page), "utf8");

function faultsOf(page: string, text: string): string[] {
  const faults: string[] = [];
  const date = /^(\d{4}-\d\d-\d\d)(-[a-z0-9]+)+\.md$/.exec(page)?.[1];
  const [front = "", ...rest] = text.split("\n\n---\n\n");
  const [title = "", ...lines] = front.split("\n\n");
  if (rest.length === 0) faults.push("no line --- below the head");
  if (date === undefined) faults.push("its name is not YYYY-MM-DD-short-slug.md");
  if (!new RegExp(`^# .+\n${date}$`).test(title)) faults.push("does not begin with a title and the date of its name");
  const places = lines.map((line) => HEAD.indexOf(line.slice(0, line.indexOf(": "))));
  if (places.includes(-1)) faults.push("a line of its head has no known name");
  if (places.some((place, at) => at > 0 && place <= places[at - 1]!)) faults.push("its head is out of order");
  if (lines.some((line) => /^Commit: (?![0-9a-f]{8}$)/.test(line)))
    faults.push("its commit is no hash of eight digits");
  if (lines.some((line) => /^Superseded by: (?!\[)/.test(line))) faults.push("what supersedes it is no link");
  return faults;
}

const GOOD = "# T\n2026-01-02\n\nQuestion: a?\n\nResult: b.\n\nCommit: 0123abcd\n\n---\n\nText\n";

describe("pages of experiments", () => {
  test.each(PAGES)("%s has the head of a page", (page) => {
    expect(faultsOf(page, textOf(page))).toEqual([]);
  });

  test("a page as it should be has no fault", () => {
    expect(faultsOf("2026-01-02-a-b.md", GOOD)).toEqual([]);
  });

  test.each([
    ["2026-01-03-a-b.md", GOOD, "does not begin with a title and the date of its name"],
    ["a-b.md", GOOD, "its name is not YYYY-MM-DD-short-slug.md"],
    ["2026-01-02-a.md", GOOD.replace("Result", "Answer"), "a line of its head has no known name"],
    ["2026-01-02-a.md", GOOD.replace("Question: a?\n\nResult", "Result: a?\n\nQuestion"), "its head is out of order"],
    ["2026-01-02-a.md", GOOD.replace("---", ""), "no line --- below the head"],
    ["2026-01-02-a.md", GOOD.replace("0123abcd", "main"), "its commit is no hash of eight digits"],
    ["2026-01-02-a.md", GOOD.replace("\n\n---", "\n\nSuperseded by: b\n\n---"), "what supersedes it is no link"],
  ])("%s, %j: %s", (page, text, fault) => {
    expect(faultsOf(page, text)).toContain(fault);
  });

  test.each([INDEX, ...PAGES])("%s links to files that exist", (page) => {
    const targets = [...textOf(page).matchAll(/\]\(([^):]+)\)/g)].map(([, target]) => target!);
    expect(targets.filter((target) => !existsSync(join(LOG, target)))).toEqual([]);
  });
});

test("the index lists every page once, and those without a conclusion say what supersedes them", () => {
  const [conclusions, list] = textOf(INDEX).split("## All pages");
  const listed = [...list!.matchAll(/^- (\S+) \[.+\]\((\S+)\)/gm)].map(([, , page]) => page!);
  expect(listed.toSorted()).toEqual(PAGES.toSorted());
  expect(listed.map((page) => page.slice(0, 10))).toEqual(
    listed
      .map((page) => page.slice(0, 10))
      .toSorted()
      .toReversed(),
  );
  const silent = PAGES.filter((page) => !conclusions!.includes(`(${page})`));
  expect(silent.filter((page) => !textOf(page).includes("\nSuperseded by: "))).toEqual([]);
});
