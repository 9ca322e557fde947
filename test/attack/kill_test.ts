/**
 * kill -9 of a server at random points, with clients that vanish in the middle of requests: every save that was confirmed
 * is there afterwards, and each holds exactly the steps that its client had taken. `GRPU_KILLS` sets how often,
 * `GRPU_KILL_SEED` the points.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { afterEach, beforeEach, expect, test } from "vitest";
import { randomStream } from "../../src/leaves/random.ts";
import { attack } from "./attacked.ts";
import { savedPaths, stepsOf } from "./checkpoints.ts";
import { Client } from "./client.ts";

const KILLS = Number(process.env.GRPU_KILLS ?? 4);
const SEED = Number(process.env.GRPU_KILL_SEED ?? 1);

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "grpu-killed-"));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

/** Sends a request whose client ends after some time, without reading the answer. */
async function vanish(url: string, { body, afterMs }: { body: object; afterMs: number }): Promise<void> {
  const end = new AbortController();
  setTimeout(() => end.abort(), afterMs);
  const headers = { "content-type": "application/json" };
  const request = { method: "POST", headers, body: JSON.stringify(body), signal: end.signal };
  await fetch(`${url}/api/v1/optim_step`, request).catch(() => {});
}

/** Trains from a checkpoint until the server is gone: each step is saved under its number. */
async function train(
  url: string,
  of: { random: () => number; from: string; steps: number; saved: Map<string, number> },
) {
  const { random, from, saved } = of;
  const client = new Client(url);
  const { session_id } = await client.post("create_session", {});
  const start = { session_id, model_seq_id: 0 };
  const made =
    from === ""
      ? await client.result("create_model", { ...start, base_model: "toy", lora_config: { rank: 4 } })
      : await client.result("load_weights", { ...start, path: from, optimizer: true });
  const model_id = String(made.model_id);
  for (let [seq_id, steps] = [1, of.steps + 1]; ; steps++) {
    const step = { model_id, seq_id: seq_id++, adam_params: {} };
    // The client dies with its request under way, and its successor sends it again, or two of them do at once.
    if (random() < 0.5) await vanish(url, { body: step, afterMs: 4 * random() });
    const again = random() < 0.3 ? [client.result("optim_step", step)] : [];
    await Promise.all([client.result("optim_step", step), ...again]);
    const save = { model_id, seq_id: seq_id++, path: `at-${steps}` };
    const { path } = await client.result("save_weights", save);
    saved.set(String(path), steps);
  }
}

/** Reads saves whole: each holds the steps of its name, also one that was not confirmed. */
async function expectWhole(url: string, paths: readonly string[]): Promise<void> {
  for (const path of paths) expect(`at-${await stepsOf(url, path)}`).toBe(path.split("/").at(-1));
}

const title = `${KILLS} kills lose no confirmed save and apply no step twice (seed ${SEED})`;
test(title, { timeout: 60_000 + KILLS * 10_000 }, async () => {
  const [random, points] = [randomStream(SEED), randomStream(SEED + 1)];
  const saved = new Map<string, number>();
  const read = new Set<string>();
  for (let kill = 0; kill <= KILLS; kill++) {
    const target = await attack("tinker", { root, weightBytes: 100_000 });
    try {
      const listed = await savedPaths(target.url);
      for (const path of saved.keys()) expect(listed).toContain(path);
      // What was new at the last kill, and all at the end: reading all after each takes time with the square of the kills.
      await expectWhole(target.url, kill < KILLS ? listed.filter((path) => !read.has(path)) : listed);
      for (const path of listed) read.add(path);
      const [from, steps] = [...saved].sort(([, a], [, b]) => b - a)[0] ?? ["", 0];
      const training = train(target.url, { random, from, steps, saved }).catch((error: unknown) => error);
      let isOver = false;
      void training.then(() => {
        isOver = true;
      });
      // Somewhere in the steps after some saves, however fast the machine is.
      const enough = saved.size + 1 + Math.floor(6 * points());
      while (saved.size < enough && !isOver) await pause(1);
      await pause(40 * points());
      await target.kill();
      // It ends because the server is gone, not because an answer was wrong.
      expect(String(await training)).toMatch(/fetch failed|terminated|other side closed/);
    } finally {
      await target.close();
    }
  }
  expect(Math.max(...saved.values())).toBeGreaterThanOrEqual(KILLS + 1);
});
