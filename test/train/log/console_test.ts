import { expect, test, vi } from "vitest";
import { clockDuration, labelled, shortNumber, sparkline } from "../../../src/train/log/format.ts";
import { ConsoleLogger } from "../../../src/train/log/loggers/console.ts";

function screen(options: { isTerminal?: boolean; color?: boolean; columns?: number } = {}) {
  const written: string[] = [];
  return {
    written,
    isTerminal: options.isTerminal ?? false,
    color: options.color ?? false,
    columns: options.columns ?? 120,
    err: (text: string) => void written.push(text),
  };
}

const step = (number: number) => ({
  phase: "train" as const,
  step: number,
  totalSteps: 3,
  metrics: { "reward/adder/mean": number / 4, "actor/entropy": 0.5, "perf/throughput": 12_345 },
});

test("without a terminal each step is one plain line", () => {
  const io = screen();
  const log = new ConsoleLogger(io);
  for (const n of [1, 2, 3]) log.log(step(n));
  log.log({ phase: "val", step: 3, totalSteps: 3, metrics: { "val/sums/pass@1": 0.75 } });
  log.finish();
  const text = io.written.join("");
  expect(text.split("\n").slice(0, -1)).toHaveLength(4);
  expect(text).toMatch(/^step 1\/3 {2}reward 0\.250 {2}entropy 0\.5 {2}12\.3k tok\/s {2}eta …\n/);
  expect(text).toContain("validation at step 3  sums/pass@1 0.750");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
  expect(text).not.toMatch(/[\x1b\r]/);
});

test("rollouts that failed are counted on the line, and why a step trained nothing is said", () => {
  const note = "nothing trained: all 8 rollouts failed";
  for (const isTerminal of [false, true]) {
    const io = screen({ isTerminal });
    const log = new ConsoleLogger(io);
    const metrics = { ...step(1).metrics, "batch/rollouts_failed": 8 };
    const episodes = Array(8).fill({});
    for (const n of [1, 2]) log.log({ ...step(n), metrics, episodes, note });
    const val = { "val/sums/pass@1": 0.5, "val/rollouts_failed": 3 };
    log.log({ phase: "val", step: 2, totalSteps: 3, metrics: val, episodes });
    const text = io.written.join("");
    expect(text).toContain("failed 8/8");
    expect(text).toContain("sums/pass@1 0.500  failed 3/8");
    // On a terminal the step's line is redrawn: the note has a line of its own, once.
    expect(text.split(note)).toHaveLength(isTerminal ? 2 : 3);
  }
});

test("the last line says how long the steps took, the first one too", () => {
  const io = screen();
  const log = new ConsoleLogger(io);
  const only = step(1);
  log.log({ ...only, totalSteps: 1, metrics: { ...only.metrics, "time/step": 52 } });
  expect(io.written.join("")).toMatch(/in 52 s\n$/);
});

test("on a terminal the line is redrawn and never wider than it", () => {
  const io = screen({ isTerminal: true, color: true, columns: 60 });
  const log = new ConsoleLogger(io);
  for (const n of [1, 2]) log.log(step(n));
  for (const line of io.written) {
    expect(line.startsWith("\r\x1b[2K")).toBe(true);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: colours and the redraw
    expect(line.replace(/\r|\x1b\[\w+/g, "").length).toBeLessThan(60);
  }
  log.finish();
  expect(io.written.at(-1)).toBe("\n");
});

test.each([40, 60, 79, 100, 160])("on %i columns no fact is cut, and the most important come first", (columns) => {
  const io = screen({ isTerminal: true, columns });
  const log = new ConsoleLogger(io);
  log.log(step(1));
  const facts = io.written[0]!.replace(/^.*\d\/3/s, "")
    .trim()
    .split(/ {2,}/)
    .filter(Boolean);
  const all = ["eta …", "reward 0.250", ...(columns >= 100 ? ["▁"] : []), "entropy 0.5", "12.3k tok/s"];
  expect(facts).toEqual(all.slice(0, facts.length));
  const length = io.written[0]!.replace("\r\x1b[2K", "").length;
  if (facts.length < all.length) expect(length + 2 + all[facts.length]!.length).toBeGreaterThanOrEqual(columns);
});

test("the last step stays on the screen, with the time that the phase took", () => {
  const io = screen({ isTerminal: true });
  const log = new ConsoleLogger(io);
  for (const n of [1, 2, 3]) log.log(step(n));
  expect(io.written.at(-2)).toMatch(/3\/3 {2}in 0 s/);
  expect(io.written.at(-1)).toBe("\n");
  log.log({ phase: "val", step: 3, totalSteps: 3, metrics: { "val/sums/pass@1": 0.75 } });
  expect(io.written.at(-1)).toMatch(/^validation/);
});

test("validation tells every pass@k, rewards that say more, and folds between them", () => {
  const metrics = {
    "val/sums/pass@1": 0.5,
    "val/sums/pass@8": 0.75,
    "val/reward/adder/mean": 0.5,
    "val/reward/judge/mean": 0.125,
  };
  const record = { phase: "val" as const, step: 3, totalSteps: 3, metrics };
  const plain = screen();
  new ConsoleLogger(plain).log(record);
  expect(plain.written).toEqual([
    "validation at step 3  sums/pass@1 0.500  sums/pass@8 0.750  reward/judge/mean 0.125\n",
  ]);
  const narrow = screen({ isTerminal: true, columns: 50 });
  new ConsoleLogger(narrow).log(record);
  expect(narrow.written).toEqual([
    "validation at step 3  sums/pass@1 0.500\n",
    "  sums/pass@8 0.750  reward/judge/mean 0.125\n",
  ]);
});

test("labelled() folds at spaces, under the text", () => {
  expect(labelled("task", "add one digit to two", 20)).toBe("task    add one\n        digit to\n        two\n");
  expect(labelled("run", "x", Number.POSITIVE_INFINITY)).toBe("run     x\n");
});

test("NO_COLOR leaves the bar and drops the colours", () => {
  const io = screen({ isTerminal: true, color: false });
  new ConsoleLogger(io).log(step(2));
  expect(io.written.join("")).toContain("━");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
  expect(io.written.join("")).not.toMatch(/\x1b\[\d+m/);
});

test.each([
  [0, "0"],
  [0.12345, "0.123"],
  [3, "3"],
  [99.96, "100"],
  [12_345, "12.3k"],
  [3_400_000, "3.4M"],
  [0.00001234, "1.2e-5"],
  [-0.5, "-0.5"],
])("shortNumber(%d)", (value, text) => {
  expect(shortNumber(value)).toBe(text);
});

test.each([
  [12, "12 s"],
  [185, "3:05"],
  [3723, "1:02:03"],
  [-1, "0 s"],
])("duration(%d)", (seconds, text) => {
  expect(clockDuration(seconds)).toBe(text);
});

test("sparkline() rises from the smallest to the largest value", () => {
  expect(sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)).toBe("▁▂▃▄▅▆▇█");
  expect(sparkline([5, 5], 8)).toBe("▁▁");
  expect(sparkline([0, 0, 7, 7], 2)).toBe("▁█");
  expect(sparkline([], 8)).toBe("");
});

test.each([false, true])("a long step says what it is at, on a terminal: %s", (isTerminal) => {
  vi.useFakeTimers();
  try {
    const io = screen({ isTerminal });
    const log = new ConsoleLogger(io);
    const at = { phase: "train" as const, step: 1, totalSteps: 3 };
    const attempts = { ...at, doing: "generating", total: 36, unit: "attempts" };
    log.during({ ...attempts, done: 0 });
    vi.advanceTimersByTime(2000);
    expect(io.written).toEqual([]);
    vi.advanceTimersByTime(2000);
    // The only line without a bar on a terminal: it stays.
    expect(io.written.join("")).toBe(
      "step 1/3  generating 0 of 36 attempts  3 s  a GPU's first step compiles its kernels\n",
    );
    io.written.length = 0;
    log.during({ ...attempts, done: 24 });
    log.during({ ...at, doing: "updating" });
    vi.advanceTimersByTime(31_000);
    const said = io.written.join("");
    if (isTerminal) expect(said).toMatch(/train ━*─+ 0\/3 {2}updating {2}3\d s$/);
    else expect(said).toMatch(/^step 1\/3 {2}updating {2}3\d s\n$/);
    log.log(step(1));
    io.written.length = 0;
    // Nothing runs, so nothing is said.
    vi.advanceTimersByTime(60_000);
    expect(io.written).toEqual([]);
    log.during({ ...attempts, step: 2, done: 24 });
    vi.advanceTimersByTime(29_000);
    if (!isTerminal) expect(io.written).toEqual([]);
    vi.advanceTimersByTime(2000);
    expect(io.written.join("")).toContain("generating 24 of 36 attempts  3");
    log.finish();
    io.written.length = 0;
    vi.advanceTimersByTime(60_000);
    expect(io.written).toEqual([]);
  } finally {
    vi.useRealTimers();
  }
});

test("a run that is stopped says so at once, and what a second Ctrl-C does", () => {
  const io = screen();
  new ConsoleLogger(io).stopping();
  expect(io.written.join("")).toMatch(/^stopping: .* press Ctrl-C again to stop at once\n$/);
});
