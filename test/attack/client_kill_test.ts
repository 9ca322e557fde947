/**
 * kill -9 of clients in the middle of requests: what they had an answer for is kept, nothing is applied twice when a successor sends a
 * dead client's requests again, and a session without a client ends and leaves no memory. `GRPU_CLIENT_KILLS` sets how often,
 * `GRPU_KILL_SEED` the points.
 */
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, expect, test } from "vitest";
import { randomStream } from "../../src/leaves/random.ts";
import { type Attacked, attack } from "./attacked.ts";
import { savedPaths, stepsOf } from "./checkpoints.ts";
import { Client } from "./client.ts";
import type { DoomedEntry, DoomedPlan } from "./doomed_client.ts";
import { TOY_BYTES } from "./toy_model.ts";

const KILLS = Number(process.env.GRPU_CLIENT_KILLS ?? 10);
const SEED = Number(process.env.GRPU_KILL_SEED ?? 1);
const SESSION_MS = 4000;
const MOST_RSS_BYTES = 500 * 2 ** 20;
const CLIENT = fileURLToPath(new URL("doomed_client.ts", import.meta.url));
/** What has its first value again when no client is left. */
const RETURNING = [
  ...["sessions", "models_loaded", "samplers", "training_requests_queued", "training_requests_parked"],
  ...["sampling_requests_queued", "results_pending", "results_bytes", "policy_bytes", "device_live_bytes"],
];

/** How a client begins. */
type Start = Pick<DoomedPlan, "from" | "takeOver" | "baseSteps">;

let root: string;
let target: Attacked;
beforeEach(async () => {
  root = mkdtempSync(join(tmpdir(), "grpu-client-killed-"));
  target = await attack("tinker", { root: join(root, "saved"), weightBytes: 100_000, sessionMs: SESSION_MS });
});
afterEach(async () => {
  await target.close();
  rmSync(root, { recursive: true, force: true });
});

const title = `${KILLS} killed clients lose no answered step, none is applied twice, and their sessions end (seed ${SEED})`;
test(title, { timeout: 60_000 + KILLS * 30_000 }, async () => {
  const random = randomStream(SEED);
  const before = await gauges();
  const answered = new Map<string, number>();
  let start: Start = { baseSteps: 0 };
  for (let kill = 0; kill < KILLS; kill++) {
    const died = await runToDeath(join(root, `journal-${kill}`), { start, random });
    expect(died.failures).toEqual([]);
    for (const { path, steps } of died.saves) expect(await stepsOf(target.url, path)).toBe(steps);
    answered.set(died.model, Math.max(...died.done.map(({ steps }) => steps)));
    start = successorOf(died, { baseSteps: start.baseSteps, takesOver: random() < 0.5 });
  }
  for (const end = Date.now() + 60_000; (await gauges()).sessions !== 0 && Date.now() < end; ) await pause(100);
  await expectKept(answered);
  // The base model's policy stays for the next sampler.
  const left = { policy_bytes: TOY_BYTES, device_live_bytes: before.device_live_bytes! + TOY_BYTES };
  expect(pick(await gauges())).toEqual({ ...pick(before), ...left });
  expect((await target.measure()).rssBytes).toBeLessThan(MOST_RSS_BYTES);
  expect([target.ended(), target.errors()]).toEqual([undefined, ""]);
});

/** Each checkpoint holds the steps of its name; the steps that no save of a client held were kept when its session ended. */
async function expectKept(answered: ReadonlyMap<string, number>): Promise<void> {
  const most = new Map<string, number>();
  for (const path of await savedPaths(target.url)) {
    const steps = await stepsOf(target.url, path);
    expect(path).toMatch(new RegExp(`-${steps}$`));
    const [model] = path.replace("tinker://", "").split("/");
    most.set(model!, Math.max(steps, most.get(model!) ?? 0));
  }
  for (const [model, steps] of answered) expect(most.get(model)).toBeGreaterThanOrEqual(steps);
}

interface Died {
  readonly session: string;
  readonly model: string;
  readonly done: readonly { readonly done: number; readonly steps: number }[];
  readonly saves: readonly { readonly path: string; readonly steps: number }[];
  /** The first request without an answer. */
  readonly unanswered: number;
  readonly failures: readonly string[];
}

/** Runs a client, and kills it some time after some answers. */
async function runToDeath(journal: string, { start, random }: { start: Start; random: () => number }): Promise<Died> {
  const plan: DoomedPlan = { url: target.url, journal, ...start };
  const [answers, lateMs] = [2 + Math.floor(10 * random()), 30 * random()];
  const child = spawn(process.execPath, ["--import", "tsx", CLIENT, JSON.stringify(plan)], { stdio: "inherit" });
  const gone = new Promise<void>((resolve) => child.on("exit", () => resolve()));
  // On a busy machine a client may be silent for longer than its session lives.
  const beat = setInterval(() => void keepAlive(start.takeOver?.session ?? sessionIn(journal)), SESSION_MS / 8);
  const isEarly = () => entriesIn(journal).filter((it) => "done" in it).length < answers;
  while (child.exitCode === null && target.ended() === undefined && isEarly()) await pause(5);
  await pause(lateMs);
  child.kill("SIGKILL");
  await gone;
  clearInterval(beat);
  return diedWith(entriesIn(journal));
}

async function keepAlive(session_id: string | undefined): Promise<void> {
  // A missed one is made up for by the next.
  if (session_id) await new Client(target.url).post("session_heartbeat", { session_id }).catch(() => {});
}

/** The last line may be cut. */
function entriesIn(journal: string): DoomedEntry[] {
  if (!existsSync(journal)) return [];
  const lines = readFileSync(journal, "utf8").split("\n").slice(0, -1);
  return lines.map((line) => JSON.parse(line));
}

function sessionIn(journal: string): string | undefined {
  return entriesIn(journal).find((it) => "session" in it)?.session;
}

function diedWith(entries: readonly DoomedEntry[]): Died {
  const { session, model } = entries.find((it) => "model" in it) ?? { session: "", model: "" };
  const done = entries.filter((it) => "done" in it);
  const isDone = new Set(done.map((it) => it.done));
  const sent = entries.filter((it) => "sent" in it).map((it) => it.sent);
  return {
    ...{ session, model, done },
    saves: done.flatMap(({ path, steps }) => (path ? [{ path, steps }] : [])),
    unanswered: Math.min(...sent.filter((seq) => !isDone.has(seq))),
    failures: entries.filter((it) => "failed" in it).map((it) => it.failed),
  };
}

/** The next client goes on with the dead one's model, or begins at its last save while the dead one's session ends. */
function successorOf(died: Died, { baseSteps, takesOver }: { baseSteps: number; takesOver: boolean }): Start {
  const save = died.saves.at(-1);
  if (!takesOver && save) return { from: save.path, baseSteps: save.steps };
  return { takeOver: { session: died.session, model: died.model, seq: died.unanswered }, baseSteps };
}

const pick = (of: Record<string, number>) => Object.fromEntries(RETURNING.map((name) => [name, of[name]]));

/** The server's figures by name, without `grpu_`. */
async function gauges(): Promise<Record<string, number>> {
  let answer = await fetch(`${target.url}/metrics`);
  // 408: a busy machine took longer over the request's headers than the target allows.
  while (answer.status === 408) answer = await fetch(`${target.url}/metrics`);
  const text = await answer.text();
  return Object.fromEntries([...text.matchAll(/^grpu_(\w+) (\S+)$/gm)].map(([, name, value]) => [name, Number(value)]));
}
