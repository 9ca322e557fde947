/** Log lines from pieces of text. */
import { describe, expect, test } from "vitest";
import type { LogLine } from "../../../src/cluster/ray/contract.ts";
import { LineSplitter, MOST_OF_A_LINE, parseLine } from "../../../src/cluster/ray/lines.ts";

function split(pieces: readonly string[]): LogLine[] {
  const lines: LogLine[] = [];
  const splitter = new LineSplitter((line) => void lines.push(line));
  for (const piece of pieces) splitter.feed(piece);
  splitter.end();
  return lines;
}

describe("LineSplitter", () => {
  const LOG = "one\n\n\x1b[36m(W pid=3)\x1b[0m two\nlast";
  const expected = [{ text: "one" }, { text: "" }, { text: "two", worker: { name: "W", pid: 3 } }, { text: "last" }];

  test("gives the same lines for every cut into two pieces, and for single characters", () => {
    for (let at = 0; at <= LOG.length; at++) expect(split([LOG.slice(0, at), LOG.slice(at)])).toEqual(expected);
    expect(split([...LOG])).toEqual(expected);
  });

  test("adds no empty line at the end", () => {
    expect(split(["a\n"])).toEqual([{ text: "a" }]);
    expect(split([])).toEqual([]);
  });

  test("keeps a line of the limit, and counts what it leaves out of a longer one", () => {
    expect(split(["x".repeat(MOST_OF_A_LINE), "\n"])[0]!.text).toHaveLength(MOST_OF_A_LINE);
    const [long, next] = split(["x".repeat(MOST_OF_A_LINE - 1), "yz", "z".repeat(998), "\nnext\n"]);
    expect(long!.text.slice(-30)).toBe("xxxxy ... (999 more characters)".slice(-30));
    expect(next).toEqual({ text: "next" });
  });
});

test("the rest of a line that is too long takes no memory", () => {
  const splitter = new LineSplitter(() => {});
  for (let i = 0; i < 1_100; i++) splitter.feed("x".repeat(1_024));
  expect(JSON.stringify(splitter).length).toBeLessThan(MOST_OF_A_LINE + 3 * 1_024 + 100);
});

describe("parseLine()", () => {
  const cases: [line: string, parsed: LogLine][] = [
    ["\x1b[36m(TaskRunner pid=812)\x1b[0m step:1", { text: "step:1", worker: { name: "TaskRunner", pid: 812 } }],
    ["(main_task pid=7, ip=10.0.0.7) x", { text: "x", worker: { name: "main_task", pid: 7, ip: "10.0.0.7" } }],
    ["(pid=7, ip=fd00::1) x", { text: "x", worker: { name: "", pid: 7, ip: "fd00::1" } }],
    ["(WorkerDict pid=7) ", { text: "", worker: { name: "WorkerDict", pid: 7 } }],
    ["(WorkerDict pid=7)   indented", { text: "  indented", worker: { name: "WorkerDict", pid: 7 } }],
    ["(my actor: a b pid=7) x", { text: "x", worker: { name: "my actor: a b", pid: 7 } }],
    ["(W pid=7)", { text: "", worker: { name: "W", pid: 7 } }],
    ["(raylet) (W pid=7) x", { text: "(raylet) (W pid=7) x" }],
    ["\x1b(Ba\x1bMb\x1b7c\x1b#8d\x1b=e\x1b]0;title\x1b\\f", { text: "abcdef" }],
    ["\x1b[?25lhidden\x1b[0 q", { text: "hidden" }],
    ["(raylet) a message", { text: "(raylet) a message" }],
    ["f(x pid=7) y", { text: "f(x pid=7) y" }],
    ["(step pid=seven) y", { text: "(step pid=seven) y" }],
    ["\x1b[1m\x1b[32mgreen\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07\x1b[K", { text: "green link" }],
  ];
  test.each(cases)("%j", (line, parsed) => {
    expect(parseLine(line)).toEqual(parsed);
  });
});
