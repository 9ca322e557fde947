/** Loggers and checkpoints without the command line: plain options, and no state of the process. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FolderCheckpoints } from "../../../src/train/log/checkpoint/folder_checkpoints.ts";
import type { LogRecord } from "../../../src/train/log/logger.ts";
import { ConsoleLogger } from "../../../src/train/log/loggers/console.ts";
import { jsonlFiles } from "../../../src/train/log/loggers/jsonl.ts";
import { ReportFile } from "../../../src/train/log/loggers/report_file.ts";
import type { PageData } from "../../../src/train/log/page/page_data.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "grpu-library-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const record = (step: number): LogRecord => ({
  phase: "train",
  step,
  totalSteps: 3,
  metrics: { "reward/solver/mean": step / 4 },
});

/** What the report's page shows. */
function reported(folder: string): PageData {
  const html = readFileSync(join(folder, "report.html"), "utf8");
  return JSON.parse(/<script id="data" type="application\/json">(.*)<\/script>/.exec(html)![1]!);
}

test.each([
  [3, "complete"],
  [2, "stopped"],
])("JSONL files and a report of a run that ends after step %i of 3", async (steps, status) => {
  const folder = join(dir, "sums");
  const loggers = [...jsonlFiles(folder), new ReportFile(folder, { title: "Sums", subtitle: "adding" })];
  for (let step = 1; step <= steps; step++) for (const logger of loggers) await logger.log(record(step));
  for (const logger of loggers) await logger.finish?.();
  expect(readFileSync(join(folder, "metrics.jsonl"), "utf8").split("\n")).toHaveLength(steps + 1);
  const [run] = reported(folder).runs;
  expect(run).toMatchObject({ name: "sums", title: "Sums", subtitle: "adding", status, totalSteps: 3 });
  expect(run!.curves.train.reward).toMatchObject({ count: steps, last: steps / 4 });
});

test("a report of a run that logged nothing is a page without curves", () => {
  new ReportFile(dir).finish();
  expect(reported(dir).runs[0]).toMatchObject({ status: "stopped", curves: { train: {}, val: {} } });
});

test("the console logger prints to any screen", () => {
  let printed = "";
  const screen = { err: (text: string) => (printed += text), isTerminal: false, color: false, columns: 80 };
  const logger = new ConsoleLogger(screen);
  logger.log(record(1));
  logger.finish();
  expect(printed).toMatch(/^step 1\/3 {2}reward 0\.250 {2}eta/);
});

test("checkpoints in a folder are found again, the newest first", async () => {
  mkdirSync(join(dir, "run"));
  const store = new FolderCheckpoints<{ step: number }>(join(dir, "run"), { resumeMode: "auto", keep: 1 });
  expect(await store.find()).toBeUndefined();
  for (const step of [1, 2]) {
    const write = async (to: string) => writeFileSync(join(to, "weights"), String(step));
    await store.save(`global_step_${step}`, { state: { step }, write });
  }
  const found = await store.find();
  expect(found).toEqual({ dir: join(dir, "run", "global_step_2"), state: { step: 2 } });
  expect(readFileSync(join(found!.dir, "weights"), "utf8")).toBe("2");
});
