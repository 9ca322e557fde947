/**
 * The Tinker server under load: 64 clients that sample without pause and two that train, for two minutes (SERVE_BENCH_SECONDS,
 * SERVE_BENCH_SAMPLERS and SERVE_BENCH_TRAINERS change it). It must answer without errors, in constant memory and evenly to all clients.
 */
import { fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { type LoadedServer, runServeLoad, type ServeLoaded, type TimedMemory } from "../test/fixtures/serve_load.ts";
import { check, heading, remark } from "./harness.ts";
import type { ServeChildOpened, ServeChildReport } from "./serve_child.ts";

const SAMPLERS = Number(process.env.SERVE_BENCH_SAMPLERS ?? 64);
const TRAINERS = Number(process.env.SERVE_BENCH_TRAINERS ?? 2);
/** From then on, or from half of a shorter load on, memory must be flat. */
const SETTLED_S = 300;
const MEBI = 2 ** 20;

export async function run(): Promise<void> {
  const seconds = Number(process.env.SERVE_BENCH_SECONDS ?? 120);
  const { server, device } = await startServer();
  heading(`${SAMPLERS} clients sample and ${TRAINERS} train for ${seconds} s on ${device}`);
  const load = await runServeLoad({ server, seconds, samplers: SAMPLERS, trainers: TRAINERS });
  await server.close();
  check(load.errors.length === 0, `${load.errors.length} errors, the first: ${load.errors[0]}`);
  const steps = load.steps.reduce((a, b) => a + b, 0);
  remark(
    `${Math.round(load.sampledTokens / seconds)} tokens/s sampled, ${(steps / seconds).toFixed(1)} optimiser steps/s`,
  );
  remarkLatency(load);
  remark(
    `samples of a client: ${Math.min(...load.samples)} to ${Math.max(...load.samples)}; steps: ${load.steps.join(", ")}`,
  );
  remarkMemory(load, seconds);
}

/** In a process of its own, so that what the clients allocate does not count and stops no request. */
async function startServer(): Promise<{ server: LoadedServer; device: string }> {
  const child = fork(fileURLToPath(new URL("serve_child.ts", import.meta.url)));
  const [{ url, device }] = (await once(child, "message")) as [ServeChildOpened];
  const memory = async () => {
    child.send("report");
    return ((await once(child, "message")) as [ServeChildReport])[0];
  };
  const close = async () => {
    child.disconnect();
    await once(child, "exit");
  };
  return { server: { url, memory, close }, device };
}

/** Quantiles; requests during which the server was stopped to collect garbage are counted apart. */
function remarkLatency({ latencies, stoppedLatencies }: ServeLoaded): void {
  const median = quantile(latencies, 0.5);
  const told = [0.5, 0.9, 0.95, 0.99, 0.999, 1]
    .map((share) => [share, quantile(latencies, share)] as const)
    .map(([share, ms]) => `${100 * share}%: ${ms.toFixed(0)} (${(ms / median).toFixed(2)})`);
  remark(`ms for a sample of 32 tokens, and times the median, of ${latencies.length}: ${told.join(", ")}`);
  const all = [...latencies, ...stoppedLatencies].sort((a, b) => a - b);
  remark(
    `with the ${stoppedLatencies.length} that waited for a garbage collection of the bench: 99% within ${quantile(all, 0.99).toFixed(0)} ms`,
  );
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.floor(share * (sorted.length - 1))]!;
}

function remarkMemory({ memory }: ServeLoaded, seconds: number): void {
  const settled = memory.filter(({ at }) => at >= Math.min(SETTLED_S, seconds / 2));
  const [first, last] = [settled[0]!, settled.at(-1)!];
  const mebi = ({ at, rss, held, device, results }: TimedMemory) =>
    `${at.toFixed(0)} s: process ${(rss / MEBI).toFixed(0)}, objects ${(held / MEBI).toFixed(0)} (results ${(results / MEBI).toFixed(0)} of them), device ${(device / MEBI).toFixed(1)}`;
  const most = Math.max(...settled.map(({ rss }) => rss));
  remark(
    `MiB after ${mebi(first)}; after ${mebi(last)}; the process at most ${(most / MEBI).toFixed(0)} from the first on`,
  );
}
