/** What a job prints of verl's metrics file once the trainer has ended. */
import { spawnSync } from "node:child_process";
import { mkdirSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { VerlLog } from "../../../src/cluster/verl/log.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";

const SCRIPT = fileURLToPath(new URL("../../../config/ray/verl_metrics.py", import.meta.url));
const hasPython = spawnSync("python3", ["-c", ""]).status === 0;
const dir = temporaryFolder("verl-metrics");

const ask = (root: string) =>
  spawnSync("python3", [SCRIPT], { encoding: "utf8", env: { ...process.env, VERL_FILE_LOGGER_ROOT: root } });

test.skipIf(!hasPython)("the last four steps of the newest file, as the log's reader takes them", () => {
  mkdirSync(join(dir, "project"));
  const write = (name: string, steps: readonly number[], seconds: number) => {
    const file = join(dir, "project", name);
    writeFileSync(file, steps.map((step) => `${JSON.stringify({ step, data: { "actor/lr": step / 8 } })}\n`).join(""));
    utimesSync(file, seconds, seconds);
  };
  write("sums.jsonl", [0, 1, 2, 3, 4, 5], 2_000_000);
  write("earlier.jsonl", [9], 1_000_000);
  const { status, stdout } = ask(dir);
  const log = new VerlLog();
  const events = stdout.split("\n").flatMap((text) => log.read({ text, worker: undefined }));
  const metrics = (step: number) => ({ kind: "metrics", step, metrics: { "actor/lr": step / 8 } });
  expect([status, events]).toEqual([0, [2, 3, 4, 5].map(metrics)]);
});

test.skipIf(!hasPython)("nothing where the file lies on another machine", () => {
  expect(ask(join(dir, "none"))).toMatchObject({ status: 0, stdout: "" });
});
