/**
 * The fuzzer: random requests at a server, and random damage to every kind of file that is read, each in a process of
 * its own. `npm run fuzz -- [--cases N] [--seed S] [--seconds T]`. The same seed makes the same cases. Exits 1 with
 * every fault found: the end of a process, an event loop that stands, memory beyond a bound, an error that is not one
 * of ours, an answer of 500, a checkpoint that is gone.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { Agent } from "node:http";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { type Attacked, attack } from "./attacked.ts";
import type { Known } from "./bodies.ts";
import { Client } from "./client.ts";
import { fuzzRequest, send } from "./fuzz_requests.ts";
import { Chance } from "./mutate.ts";

const MOST_STALL_MS = 250;
const MOST_RSS_BYTES = 1.5 * 2 ** 30;
const MOST_FAULTS = 20;
/** Requests, or files, between two looks at the process. */
const BATCH = 400;
const AT_ONCE = 8;

const faults: string[] = [];

function fault(text: string): void {
  faults.push(text);
  process.stderr.write(`FAULT ${text}\n`);
}

interface Plan {
  readonly seed: number;
  readonly cases: number;
  /** When to stop, ms of performance.now(). */
  readonly end: number;
}

const isOver = ({ end }: Plan) => performance.now() > end || faults.length >= MOST_FAULTS;

/** @returns how many requests were sent. */
async function fuzzServer(plan: Plan): Promise<number> {
  const agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE });
  let target = await attack("tinker");
  let known = await prepare(target);
  const statuses = new Map<number, number>();
  let [sent, stall, rss] = [0, 0, 0];
  for (; sent < plan.cases && !isOver(plan); sent += BATCH) {
    const batch = Array.from({ length: Math.min(BATCH, plan.cases - sent) }, (_, i) => sent + i);
    const queue = [...batch];
    const worker = async () => {
      for (let n = queue.shift(); n !== undefined; n = queue.shift()) {
        const of = fuzzRequest(known, { chance: new Chance(plan.seed, n), n });
        const status = await send(target.url, { agent, of });
        statuses.set(status, (statuses.get(status) ?? 0) + 1);
        if (status === 500) fault(`request ${n} was answered 500: ${of.method} ${of.path} ${shown(of.body)}`);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    const range = `requests ${batch[0]} to ${batch.at(-1)}`;
    if (target.ended() !== undefined) {
      fault(`the server ended with ${target.ended()} at ${range}: ${target.errors().slice(-2000)}`);
      await target.close();
      target = await attack("tinker");
      known = await prepare(target);
      continue;
    }
    const measured = await target.measure();
    if (measured.stallMs > MOST_STALL_MS)
      fault(`the event loop stood for ${measured.stallMs.toFixed()} ms at ${range}`);
    if (measured.rssBytes > MOST_RSS_BYTES) fault(`the server held ${measured.rssBytes} bytes at ${range}`);
    [stall, rss] = [Math.max(stall, measured.stallMs), Math.max(rss, measured.rssBytes)];
    if (!(await isKept(target, known))) fault(`a checkpoint was lost by ${range}`);
    // The session and its model may have been ended by the requests.
    if (sent % (BATCH * 10) === 0) known = { ...known, ...(await new Client(target.url).open().catch(() => known)) };
  }
  if (target.errors() !== "") fault(`the server wrote: ${target.errors().slice(-2000)}`);
  agent.destroy();
  await target.close();
  const told = [...statuses].sort().map(([status, count]) => `${status || "ended"}: ${count}`);
  say(
    `${Math.min(sent, plan.cases)} requests (${told.join(", ")}); longest stall ${stall.toFixed()} ms, memory at most ${mebibytes(rss)}`,
  );
  return Math.min(sent, plan.cases);
}

interface Prepared extends Known {
  /** Of a run that no request names. */
  readonly kept: string;
}

async function prepare(target: Attacked): Promise<Prepared> {
  const client = new Client(target.url);
  const { model } = await client.open();
  const { path } = await client.result("save_weights", { model_id: model, seq_id: 1, path: "kept" });
  return { ...(await client.open()), kept: String(path) };
}

async function isKept(target: Attacked, { kept }: Prepared): Promise<boolean> {
  const [run] = kept.replace("tinker://", "").split("/");
  const answer = await fetch(`${target.url}/api/v1/training_runs/${run}/checkpoints`);
  return answer.ok && (await answer.text()).includes(kept);
}

interface FilesReport {
  readonly faults: readonly string[];
  readonly worst: number;
  readonly worstAt: number;
  readonly rss: number;
}

/** @returns how many files were read. */
async function fuzzFiles(plan: Plan): Promise<number> {
  let reader = await openReader();
  let [read, worst, rss] = [0, 0, 0];
  for (; read < plan.cases && !isOver(plan); read += BATCH) {
    const to = Math.min(read + BATCH, plan.cases);
    const report = await askReader(reader, { seed: plan.seed, from: read, to });
    if (typeof report === "string") {
      fault(`files ${read} to ${to}: ${report}`);
      reader.kill("SIGKILL");
      reader = await openReader();
      continue;
    }
    for (const text of report.faults) fault(text);
    if (report.worst > MOST_STALL_MS) fault(`case ${report.worstAt} took ${report.worst.toFixed()} ms`);
    if (report.rss > MOST_RSS_BYTES) fault(`reading held ${report.rss} bytes at files ${read} to ${to}`);
    [worst, rss] = [Math.max(worst, report.worst), Math.max(rss, report.rss)];
  }
  reader.disconnect();
  say(`${Math.min(read, plan.cases)} files; longest ${worst.toFixed()} ms, memory at most ${mebibytes(rss)}`);
  return Math.min(read, plan.cases);
}

const READER = fileURLToPath(new URL("fuzz_files.ts", import.meta.url));

async function openReader(): Promise<ChildProcess> {
  const stdio = ["ignore", "ignore", "inherit", "ipc"] as const;
  const child = spawn(process.execPath, ["--import", "tsx", READER], { stdio: [...stdio] });
  await new Promise((resolve) => child.once("message", resolve));
  return child;
}

/** What the reader reports, or how it ended. */
function askReader(
  reader: ChildProcess,
  of: { seed: number; from: number; to: number },
): Promise<FilesReport | string> {
  return new Promise((resolve) => {
    const late = setTimeout(() => resolve("the reader did not answer for 60 s"), 60_000);
    const done = (report: FilesReport | string) => {
      clearTimeout(late);
      reader.removeAllListeners();
      resolve(report);
    };
    reader.once("message", (report) => done(report as FilesReport));
    reader.once("exit", (code, signal) => done(`the reader ended with ${signal ?? code}`));
    reader.send(of);
  });
}

function shown(body: string | Uint8Array | undefined): string {
  return typeof body === "string"
    ? body.slice(0, 300)
    : Buffer.from(body ?? "")
        .toString("hex")
        .slice(0, 300);
}

const mebibytes = (bytes: number) => `${Math.round(bytes / 2 ** 20)} MiB`;
const say = (line: string) => process.stdout.write(`${line}\n`);

const { values } = parseArgs({
  options: { cases: { type: "string" }, seed: { type: "string" }, seconds: { type: "string" } },
});
const seed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 31));
const cases = Number(values.cases ?? 10_000);
const end = performance.now() + 1000 * Number(values.seconds ?? 3600);
if (![seed, cases, end].every(Number.isFinite)) throw new Error("--cases, --seed and --seconds take numbers");
say(`seed ${seed}, ${cases} cases: half of them requests, half files`);
const half = Math.ceil(cases / 2);
const [requests, files] = await Promise.all([
  fuzzServer({ seed, cases: half, end }),
  fuzzFiles({ seed, cases: cases - half, end }),
]);
say(`${requests + files} cases, ${faults.length} faults`);
process.exit(faults.length > 0 ? 1 : 0);
