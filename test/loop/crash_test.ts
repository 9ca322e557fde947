/** Kills a run at random moments, many times over: what is left always resumes to the very same end. */
import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { randomStream } from "../../src/data/random.ts";

const CHILD = fileURLToPath(new URL("../fixtures/crash_child.ts", import.meta.url));
const KILLS = 12;
/** A run takes about this long after it has started. */
const RUN_MS = 900;

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "grpu-crash-"));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** Runs the child, killing it so long after its start; the text of its weights when it came to its end. */
function runChild(folder: string, killAfterMs?: number): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ["--import", "tsx", CHILD, folder], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    let out = "";
    let err = "";
    child.stdout.on("data", (part) => {
      if (out === "" && killAfterMs !== undefined) setTimeout(() => child.kill("SIGKILL"), killAfterMs);
      out += part;
    });
    child.stderr.on("data", (part) => {
      err += part;
    });
    child.on("close", (code) => {
      if (code !== 0 && code !== null) reject(new Error(err));
      else resolve(/^done (.*)$/m.exec(out)?.[1]);
    });
  });
}

function metricsOf(folder: string): string {
  const text = readFileSync(join(folder, "metrics.jsonl"), "utf8");
  return text.replace(/"(time|perf)\/[^"]*":[^,}]*,?/g, "");
}

test(`a run killed up to ${KILLS} times ends bit for bit like one that was left alone`, async () => {
  const [whole, killed] = [join(dir, "whole"), join(dir, "killed")];
  const expected = await runChild(whole);
  expect(expected).toBeDefined();
  const random = randomStream(11);
  let ended: string | undefined;
  let kills = 0;
  for (; kills < KILLS && ended === undefined; kills++)
    ended = await runChild(killed, random() * RUN_MS * 0.4);
  expect(kills).toBeGreaterThan(2);
  ended ??= await runChild(killed);
  expect(ended).toBe(expected);
  expect(metricsOf(killed)).toBe(metricsOf(whole));
  expect(readdirSync(killed).filter((name) => name.startsWith("global_step_"))).toHaveLength(2);
});
