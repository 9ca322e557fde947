/**
 * Many sessions at once against a recording gateway, some of whose clients vanish or never read; the gateway is killed and
 * started again on its store. `tsx test/attack/gateway_load.ts [--sessions 256] [--seconds 120] [--kills 2]`
 * prints figures.
 */
import { type ChildProcess, fork } from "node:child_process";
import { createConnection, type Socket } from "node:net";
import { fileURLToPath } from "node:url";
import { openTraceStore } from "../../src/train/trace/mod.ts";

const TARGET = fileURLToPath(new URL("gateway_target.ts", import.meta.url));
const KEY = "sk-attacked";

export interface LoadOptions {
  readonly store: string;
  readonly sessions: number;
  readonly seconds: number;
  /** Times that the gateway is killed and started again. */
  readonly kills: number;
  readonly port: number;
  /** The gateway's limit on what sessions hold. */
  readonly sessionMib: number;
  /** Letters of each session's first message. Default 0. */
  readonly letters?: number;
  /** Calls of each session. Default 3. */
  readonly turns?: number;
  /** Ends the run early, when so many sessions have begun. */
  readonly most?: number;
}

/** A reply as its client got it. */
interface Got {
  readonly session: string;
  readonly tokens: string;
}

export interface LoadFigures {
  readonly replies: number;
  readonly turns: number;
  /** Clients that went away in a stream, and that never read theirs. */
  readonly vanished: number;
  readonly stuck: number;
  /** Calls that failed while the gateway was down. */
  readonly refused: number;
  /** Replies that no trace holds, and traces that are there twice. */
  readonly lost: number;
  readonly twice: number;
  /** Turns after the first that do not continue the tokens of the turn before. */
  readonly broken: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** Of the gateway, after each second, of the process that runs last; the heap after a collection. */
  readonly heap: readonly number[];
  readonly rss: readonly number[];
  readonly widest: number;
  readonly killed: number;
}

interface Held {
  readonly heapUsed: number;
  readonly rss: number;
  readonly widest: number;
}

class Target {
  private child: ChildProcess | undefined;
  readonly url: string;
  private readonly args: readonly string[];

  constructor({ store, port, sessionMib }: Pick<LoadOptions, "store" | "port" | "sessionMib">) {
    this.args = [store, String(port), String(sessionMib)];
    this.url = `http://127.0.0.1:${port}`;
  }

  async start(): Promise<void> {
    const child = fork(TARGET, this.args, { execArgv: ["--import", "tsx", "--expose-gc"] });
    this.child = child;
    await new Promise<void>((resolve, reject) => {
      child.once("message", () => resolve());
      child.once("exit", (code) => reject(new Error(`the gateway ended with ${code} before it listened`)));
    });
  }

  measure(): Promise<Held> {
    return new Promise((resolve) => {
      this.child!.once("message", (held) => resolve(held as Held));
      this.child!.send({});
    });
  }

  async kill(): Promise<void> {
    const ended = new Promise((resolve) => this.child!.once("exit", resolve));
    this.child!.kill("SIGKILL");
    await ended;
  }
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

export async function runLoad(options: LoadOptions): Promise<LoadFigures> {
  const { sessions, seconds, kills } = options;
  const target = new Target(options);
  await target.start();
  const started = performance.now();
  const until = started + seconds * 1000;
  const load = new Load(target.url, { ...options, until });
  const workers = Array.from({ length: sessions }, (_, i) => load.work(i));
  const [heap, rss]: [number[], number[]] = [[], []];
  let [widest, killed] = [0, 0];
  while (!load.isOver) {
    await pause(1000);
    const share = (performance.now() - started) / (1000 * seconds);
    if (killed < kills && share > (killed + 1) / (kills + 1)) {
      killed++;
      await target.kill();
      await target.start();
      heap.length = 0;
      rss.length = 0;
    }
    const held = await target.measure();
    heap.push(held.heapUsed);
    rss.push(held.rss);
    widest = Math.max(widest, held.widest);
  }
  await Promise.all(workers);
  load.release();
  await target.kill();
  return { ...load.figures(), ...(await compare(options.store, load.got)), heap, rss, widest, killed };
}

/**
 * By how much the heap after a collection grows while the load stays the same, bytes: the median of the last third of the
 * samples less that of the first, the very first left out.
 */
export function growthOf(heap: readonly number[]): number {
  const steady = heap.slice(1);
  const third = Math.ceil(steady.length / 3);
  return median(steady.slice(-third)) - median(steady.slice(0, third));
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

/** Every reply in the store once, and each turn on the tokens of the one before. */
async function compare(path: string, got: readonly Got[]): Promise<Pick<LoadFigures, "lost" | "twice" | "broken">> {
  const store = await openTraceStore(path);
  const kept = new Map<string, number>();
  let broken = 0;
  for (const session of new Set(got.map((it) => it.session))) {
    const traces = await store.traces({ session_id: session });
    const byId = new Map(traces.map((trace) => [trace.trace_id, trace]));
    for (const { prompt_token_ids, completion_token_ids, parent_trace_id, messages } of traces) {
      const key = `${session} ${prompt_token_ids} ${completion_token_ids}`;
      kept.set(key, (kept.get(key) ?? 0) + 1);
      const parent = byId.get(parent_trace_id ?? "");
      const before = parent && [...parent.prompt_token_ids, ...parent.completion_token_ids];
      const isContinued = before?.every((id, i) => id === prompt_token_ids[i]) ?? false;
      if (messages.length > 1 && !isContinued) broken++;
    }
  }
  await store.close();
  const lost = got.filter(({ session, tokens }) => !kept.has(`${session} ${tokens}`)).length;
  return { lost, twice: [...kept.values()].filter((count) => count > 1).length, broken };
}

/** What the clients do, and what they saw. */
class Load {
  readonly got: Got[] = [];
  private readonly url: string;
  private readonly until: number;
  private readonly padding: string;
  private readonly calls: number;
  private readonly most: number;
  private readonly latencies: number[] = [];
  private readonly stuck: Socket[] = [];
  private vanished = 0;
  private refused = 0;
  private turns = 0;
  private count = 0;

  constructor(url: string, it: Pick<LoadOptions, "letters" | "turns" | "most"> & { readonly until: number }) {
    this.url = url;
    this.until = it.until;
    this.padding = "x".repeat(it.letters ?? 0);
    this.calls = it.turns ?? 3;
    this.most = it.most ?? Number.POSITIVE_INFINITY;
  }

  get isOver(): boolean {
    return performance.now() >= this.until || this.count >= this.most;
  }

  /** One client: a session after the other, each of several turns. */
  async work(client: number): Promise<void> {
    for (let round = 0; !this.isOver; round++) {
      const session = `${client}-${round}`;
      const kind = this.count++ % 100;
      if (kind === 37) await this.vanish(session);
      else if (kind === 71) this.neverRead(session);
      else await this.talk(session);
    }
  }

  private async talk(session: string): Promise<void> {
    let messages: object[] = [{ role: "user", content: `session ${session} ${this.padding}` }];
    for (let turn = 0; turn < this.calls && performance.now() < this.until; turn++) {
      const message = await this.ask(session, messages, turn % 2 === 1);
      if (!message) return;
      this.turns++;
      messages = [...messages, message, { role: "user", content: `turn ${turn}` }];
    }
  }

  private async ask(session: string, messages: object[], stream: boolean): Promise<object | undefined> {
    const started = performance.now();
    try {
      const answer = await this.send(session, { messages, stream });
      if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
      const reply = stream ? await readStream(answer) : readWhole((await answer.json()) as Answer);
      this.latencies.push(performance.now() - started);
      this.got.push({ session, tokens: `${reply.prompt} ${reply.tokens}` });
      return { role: "assistant", content: reply.text };
    } catch (error) {
      // The gateway is down for a while; any other failure is one.
      if (!/fetch failed|terminated|ended early|other side/.test((error as Error).message)) throw error;
      this.refused++;
      await pause(50);
      return undefined;
    }
  }

  private send(session: string, body: object, signal?: AbortSignal): Promise<Response> {
    return fetch(`${this.url}/sessions/${session}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${KEY}` },
      body: JSON.stringify({ ...body, return_token_ids: true }),
      ...(signal && { signal }),
    });
  }

  private async vanish(session: string): Promise<void> {
    const gone = new AbortController();
    try {
      const body = { messages: [{ role: "user", content: "vanish" }], stream: true };
      const answer = await this.send(session, body, gone.signal);
      await answer.body!.getReader().read();
    } catch {
      // The gateway is down.
    }
    gone.abort();
    this.vanished++;
  }

  /** Asks for a stream and never reads it. */
  private neverRead(session: string): void {
    const body = JSON.stringify({ messages: [{ role: "user", content: "stuck" }], stream: true, max_tokens: 1500 });
    const { hostname, port } = new URL(this.url);
    const socket = createConnection(Number(port), hostname);
    socket.on("error", () => {});
    socket.pause();
    socket.write(
      `POST /sessions/${session}/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${KEY}\r\n` +
        `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    this.stuck.push(socket);
  }

  release(): void {
    for (const socket of this.stuck) socket.destroy();
  }

  figures() {
    const sorted = [...this.latencies].sort((a, b) => a - b);
    const at = (share: number) => sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
    const { vanished, refused, turns } = this;
    return {
      replies: this.got.length,
      turns,
      vanished,
      stuck: this.stuck.length,
      refused,
      p50Ms: at(0.5),
      p99Ms: at(0.99),
    };
  }
}

interface Reply {
  readonly text: string;
  readonly prompt: readonly number[];
  readonly tokens: readonly number[];
}

interface Choice {
  readonly message?: { readonly content: string };
  readonly delta?: { readonly content?: string };
  readonly token_ids?: readonly number[];
}

interface Answer {
  readonly prompt_token_ids?: readonly number[];
  readonly choices: readonly Choice[];
}

function readWhole({ prompt_token_ids = [], choices: [choice] }: Answer): Reply {
  return { text: choice!.message!.content, prompt: prompt_token_ids, tokens: choice!.token_ids ?? [] };
}

async function readStream(answer: Response): Promise<Reply> {
  const lines = (await answer.text()).split("\n").filter((line) => line.startsWith("data: "));
  if (lines.at(-1) !== "data: [DONE]") throw new Error("the stream ended early");
  let [text, prompt]: [string, readonly number[]] = ["", []];
  const tokens: number[] = [];
  for (const line of lines.slice(0, -1)) {
    const { prompt_token_ids, choices } = JSON.parse(line.slice(6)) as Answer;
    if (prompt_token_ids) prompt = prompt_token_ids;
    text += choices[0]?.delta?.content ?? "";
    tokens.push(...(choices[0]?.token_ids ?? []));
  }
  return { text, prompt, tokens };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { mkdtempSync, rmSync } = await import("node:fs");
  const { tmpdir } = await import("node:os");
  const { join } = await import("node:path");
  const { parseArgs } = await import("node:util");
  const option = (value: string) => ({ type: "string" as const, default: value });
  const { values } = parseArgs({
    options: {
      sessions: option("256"),
      seconds: option("120"),
      kills: option("2"),
      port: option("8997"),
      letters: option("0"),
      "session-mib": option("256"),
    },
  });
  const dir = mkdtempSync(join(tmpdir(), "grpu-load-"));
  const [sessions, seconds, kills, port] = [values.sessions, values.seconds, values.kills, values.port].map(Number);
  const figures = await runLoad({
    store: join(dir, "traces.db"),
    sessions: sessions!,
    seconds: seconds!,
    kills: kills!,
    port: port!,
    sessionMib: Number(values["session-mib"]),
    letters: Number(values.letters),
  });
  const mib = (values: readonly number[]) => values.map((bytes) => Math.round(bytes / 2 ** 20));
  console.log(
    JSON.stringify(
      {
        ...figures,
        growthMib: growthOf(figures.heap) / 2 ** 20,
        heap: mib(figures.heap).join(" "),
        rss: mib(figures.rss).join(" "),
      },
      null,
      1,
    ),
  );
  rmSync(dir, { recursive: true });
}
