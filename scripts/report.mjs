/**
 * Counts of test runs, for .ci/run and scripts/nightly.
 *
 * `node scripts/report.mjs REPORT FAILED` prints `passed failed skipped` of vitest's JSON report, names skipped tests on stderr, and
 * appends failed ones with their reason to the file FAILED. `--record PART PASSED FAILED SKIPPED SECONDS` keeps a part of
 * scripts/nightly in test/nightly.json, and `--nightly` prints when each part last ran.
 */
import { spawnSync } from "node:child_process";
import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { relative } from "node:path";
import { fileURLToPath } from "node:url";

const NIGHTLY = fileURLToPath(new URL("../test/nightly.json", import.meta.url));
const git = (...words) => spawnSync("git", words, { encoding: "utf8" }).stdout.trim();

function counts(report, failedFile) {
  const { testResults, ...totals } = JSON.parse(readFileSync(report, "utf8"));
  const lines = (texts) => texts.map((text) => `${text.split("\n", 1)[0].slice(0, 400)}\n`).join("");
  for (const { name, assertionResults, message } of testResults) {
    const file = relative(process.cwd(), name);
    const failed = assertionResults.filter(({ status }) => status === "failed");
    const reasons = failed.map((it) => `${file} > ${it.fullName}: ${it.failureMessages[0]}`);
    // A file that cannot be loaded has no tests.
    if (message && failed.length === 0) reasons.push(`${file}: ${message}`);
    appendFileSync(failedFile, lines(reasons));
    const skipped = assertionResults.filter(({ status }) => status !== "passed" && status !== "failed");
    process.stderr.write(lines(skipped.map(({ fullName }) => `skipped: ${file} > ${fullName}`)));
  }
  return [totals.numPassedTests, totals.numFailedTests, totals.numPendingTests + totals.numTodoTests];
}

const recorded = () => (existsSync(NIGHTLY) ? JSON.parse(readFileSync(NIGHTLY, "utf8")) : {});

function record([part, ...figures]) {
  const [passed, failed, skipped, seconds] = figures.map(Number);
  const commit = git("rev-parse", "--short", "HEAD");
  const it = { date: new Date().toISOString().slice(0, 10), commit, passed, failed, skipped, seconds };
  writeFileSync(NIGHTLY, `${JSON.stringify({ ...recorded(), [part]: it }, null, 2)}\n`);
}

function lastNights() {
  const parts = Object.entries(recorded());
  if (parts.length === 0) return "scripts/nightly never ran";
  return parts
    .map(([part, { date, commit, passed, failed, skipped }]) => {
      const since = git("rev-list", "--count", `${commit}..HEAD`);
      const age = since === "" ? "a commit that is not here" : `${since} commits ago`;
      return `nightly, ${part}: ${date} at ${commit} (${age}): ${passed} passed, ${failed} failed, ${skipped} skipped`;
    })
    .join("\n");
}

const [first, ...rest] = process.argv.slice(2);
if (first === "--record") record(rest);
else if (first === "--nightly") console.log(lastNights());
else console.log(...counts(first, rest[0]));
