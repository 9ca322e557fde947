/**
 * A step's load on the service for a cluster: 10,000 replies to judge, and 10,000 rollouts of two turns, from clients in this
 * process to a service in another one. The reward is a comparison and the game does nothing, so that only the service is timed.
 */
import { fork } from "node:child_process";
import { once } from "node:events";
import { Agent, request } from "node:http";
import { fileURLToPath } from "node:url";
import { chatTokenizer } from "../test/fixtures/chat.ts";
import { check, heading, remark, report } from "./harness.ts";
import type { ChildReport } from "./service_child.ts";

const ROLLOUTS = Number(process.env.BENCH_ROLLOUTS ?? 10_000);
const TOKEN = "the-token-of-the-benchmark";
const MIB = 2 ** 20;

/** A reply of about 500 tokens of a usual tokenizer. */
const SOLUTION = "The digits are added one by one. ".repeat(60);

type Post = (path: string, body: object) => Promise<unknown>;
/** Runs one client's share: `next` gives the numbers of its units, and undefined at the end. */
type Client = (post: Post, next: () => number | undefined) => Promise<void>;

export async function run(): Promise<void> {
  heading(`service: ${ROLLOUTS} rollouts of a step`);
  const cases: readonly [what: string, kind: string, clients: number, client: Client][] = [
    ["replies judged, one a request", "rewards", 64, judging(1)],
    ["replies judged, 64 a request", "rewards", 64, judging(64)],
    ["rollouts of two turns", "rollouts", 64, playing],
    ["rollouts of two turns, all open at once", "rollouts", ROLLOUTS, playing],
  ];
  for (const [what, kind, clients, client] of cases) await measure({ what, kind, clients, client });
}

async function measure(it: { what: string; kind: string; clients: number; client: Client }): Promise<void> {
  const { what, kind, clients, client } = it;
  const child = fork(fileURLToPath(new URL("service_child.ts", import.meta.url)), [kind, TOKEN]);
  const [opened] = (await once(child, "message")) as [ChildReport];
  const ask = async () => {
    child.send("report");
    return ((await once(child, "message")) as [ChildReport])[0];
  };
  const latencies: number[] = [];
  // More sockets than this only wait at the server.
  const agent = new Agent({ keepAlive: true, maxSockets: Math.min(clients, 512) });
  const post = poster({ url: opened.url, agent, latencies });
  await load({ post, client, clients: Math.min(clients, 64), units: 500 });
  const before = await ask();
  latencies.length = 0;
  const started = performance.now();
  await load({ post, client, clients, units: ROLLOUTS });
  const seconds = (performance.now() - started) / 1000;
  const after = await ask();
  child.disconnect();
  agent.destroy();
  check(after.judged + after.done - before.judged - before.done >= ROLLOUTS, what);
  const timing = { median: seconds, least: seconds, most: seconds };
  report({ what, rate: ROLLOUTS / seconds, unit: "rollouts/s", timing, detail: `${clients} clients` });
  latencies.sort((a, b) => a - b);
  const at = (share: number) => latencies[Math.floor(share * (latencies.length - 1))]!.toFixed(1);
  const memory = `${(after.rssBytes / MIB).toFixed(0)} MiB resident, ${(after.heapBytes / MIB).toFixed(0)} MiB of objects`;
  const cpu = after.cpuSeconds - before.cpuSeconds;
  remark(
    `${latencies.length} requests: half within ${at(0.5)} ms, 99 of 100 within ${at(0.99)} ms; ${memory}; ${cpu.toFixed(1)} s of a processor`,
  );
}

async function load(it: { post: Post; client: Client; clients: number; units: number }): Promise<void> {
  let unit = 0;
  const next = () => (unit < it.units ? unit++ : undefined);
  await Promise.all(Array.from({ length: it.clients }, () => it.client(it.post, next)));
}

function judging(batch: number): Client {
  return async (post, next) => {
    for (;;) {
      const items = Array.from({ length: batch }, next).filter((unit) => unit !== undefined);
      if (items.length === 0) return;
      const item = { solution: SOLUTION, ground_truth: "42", extra_info: { split: "train", grpu_task: 0 } };
      await post("/rewards", { id: crypto.randomUUID(), items: items.map(() => item) });
    }
  };
}

interface Reply {
  readonly action: string;
  readonly calls?: readonly { readonly call: number }[];
}

const RESULT = (() => {
  const token_ids = chatTokenizer().encode(`${"so ".repeat(66)}<|im_end|>`, { addSpecialTokens: false });
  return { token_ids, log_probs: token_ids.map((id) => -id / 300), stop_reason: "completed" };
})();

const playing: Client = async (post, next) => {
  for (let unit = next(); unit !== undefined; unit = next()) {
    const id = crypto.randomUUID();
    const task = { split: "train", index: 0 };
    let body: object = { task, rollout_index: unit, step: 1, sampling_params: { temperature: 1 } };
    for (let seq = 0; ; seq++) {
      const reply = (await post("/rollouts", { id, seq, ...body })) as Reply;
      check(reply.action !== "error", "a rollout");
      if (reply.action === "done") break;
      body = { results: (reply.calls ?? []).map(({ call }) => ({ call, ...RESULT })) };
    }
  }
};

function poster({ url, agent, latencies }: { url: string; agent: Agent; latencies: number[] }): Post {
  const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
  return (path, body) =>
    new Promise((resolve, reject) => {
      const started = performance.now();
      const sent = request(`${url}${path}`, { method: "POST", agent, headers }, (response) => {
        let text = "";
        response.setEncoding("utf8");
        response.on("data", (piece) => {
          text += piece;
        });
        response.on("end", () => {
          latencies.push(performance.now() - started);
          if (response.statusCode === 200) resolve(JSON.parse(text));
          else reject(new Error(`${response.statusCode}: ${text}`));
        });
      });
      sent.on("error", reject);
      sent.end(JSON.stringify(body));
    });
}
