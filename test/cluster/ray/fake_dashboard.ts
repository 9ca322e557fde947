/** A small stand-in of Ray's dashboard: real HTTP and WebSockets, with the replies that Ray 2.60 was seen to give. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Duplex } from "node:stream";
import { type WebSocket, WebSocketServer } from "ws";
import { quickClock } from "../../fixtures/clock.ts";

export interface FakeJob {
  status: string;
  log: string;
  entrypoint: string;
  metadata: Record<string, string>;
  runtime_env: Record<string, unknown>;
  message: string | null;
  error_type: string | null;
  driver_exit_code: number | null;
}

export interface FakeRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: Buffer;
}

type Answer = (request: FakeRequest) => readonly [status: number, body: string] | "hang up" | undefined;

const BROWSERS = ["origin", "referer", "sec-fetch-mode", "sec-fetch-site", "sec-fetch-dest"];

export class FakeDashboard {
  readonly jobs = new Map<string, FakeJob>();
  readonly packages = new Map<string, Buffer>();
  readonly requests: FakeRequest[] = [];
  /** Replaces the reply to a request. */
  answer: Answer = () => undefined;
  /** The clock of its clients: it is silent by it. */
  readonly clock = quickClock();
  /** Sends a log and closes; the default sends all of it in messages of ten lines, is silent as Ray is, and closes at the end. */
  tail: (socket: WebSocket, job: FakeJob, connection: number) => Promise<void> = (socket, job) =>
    this.sendAll(socket, job);
  connections = 0;
  /** Lets a job run as far as the test wants. */
  onSubmit: (job: FakeJob) => void = () => {};
  token: string | undefined;
  private readonly server = createServer((request, response) => void this.serve(request, response));
  private readonly sockets = new Set<Socket>();
  private readonly upgrade = new WebSocketServer({ noServer: true });
  private port = 0;

  constructor() {
    this.server.on("connection", (socket) => {
      this.sockets.add(socket);
      socket.on("close", () => this.sockets.delete(socket));
    });
    this.server.on("upgrade", (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      const refusal = this.refusal(request);
      const job = this.jobs.get(idOf(request.url ?? ""));
      if (refusal || !job) {
        const [status, text] = refusal ?? [404, "Job does not exist"];
        socket.end(`HTTP/1.1 ${status} No\r\ncontent-length: ${text.length}\r\n\r\n${text}`);
        return;
      }
      this.upgrade.handleUpgrade(request, socket, head, (each) => {
        void this.tail(each, job, ++this.connections);
      });
    });
  }

  get address(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  addJob(id: string, job: Partial<FakeJob> = {}): FakeJob {
    const made = { ...NEW_JOB, ...job };
    this.jobs.set(id, made);
    return made;
  }

  listen(): Promise<this> {
    return new Promise((resolve) => {
      this.server.listen(this.port, "127.0.0.1", () => {
        this.port = (this.server.address() as AddressInfo).port;
        resolve(this);
      });
    });
  }

  /** As if its process was killed. It may listen again, on the same port. */
  close(): Promise<void> {
    for (const socket of this.sockets) socket.destroy();
    return new Promise((resolve) => this.server.close(() => resolve()));
  }

  private async sendAll(socket: WebSocket, job: FakeJob): Promise<void> {
    for (let sent = 0; socket.readyState === socket.OPEN; ) {
      const { log, status } = job;
      for (const text of messages(log.slice(sent))) socket.send(text);
      sent = log.length;
      const isOver = status !== "RUNNING" && status !== "PENDING";
      if (!isOver) await wait(BETWEEN_LOOKS_MS);
      else await this.silence(socket);
      if (isOver && job.log.length === sent) socket.close(1000);
    }
  }

  /** Lets time pass for a client that has everything that was sent to it. */
  async silence(socket: WebSocket, ms = END_SILENCE_MS): Promise<void> {
    await received(socket);
    this.clock.pass(ms);
  }

  private refusal({ headers, method }: IncomingMessage): [number, string] | undefined {
    if (method !== "GET" && BROWSERS.some((name) => name in headers))
      return [405, `'${method}' method not allowed for browser traffic.`];
    if (this.token === undefined) return undefined;
    if (headers.authorization === undefined) return [401, "Unauthorized: Missing authentication token"];
    return headers.authorization === `Bearer ${this.token}`
      ? undefined
      : [403, "Forbidden: Invalid authentication token"];
  }

  private async serve(message: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of message) parts.push(part as Buffer);
    const { method = "GET", url: path = "/", headers } = message;
    const request = { method, path, headers, body: Buffer.concat(parts) };
    this.requests.push(request);
    const answer = this.answer(request) ?? this.refusal(message) ?? this.reply(request);
    if (answer === "hang up") return void message.socket.destroy();
    response.writeHead(answer[0]).end(answer[1]);
  }

  private reply({ method, path, body }: FakeRequest): [number, string] {
    const name = path.split("/").at(-1)!;
    if (path === "/api/version") return [200, JSON.stringify({ version: "4", ray_version: "2.60.0" })];
    if (path.startsWith("/api/packages/gcs/")) {
      if (method === "PUT") this.packages.set(name, body);
      return this.packages.has(name) ? [200, ""] : [404, `Package ${name} does not exist`];
    }
    if (path === "/api/jobs/") return method === "POST" ? this.submit(body) : [200, JSON.stringify(this.list())];
    return this.ofJob(method, path);
  }

  private list(): unknown[] {
    return [...this.jobs].map(([submission_id, { log: _, ...job }]) => ({ submission_id, ...job }));
  }

  private submit(body: Buffer): [number, string] {
    const { submission_id, ...job } = JSON.parse(String(body));
    if (this.jobs.has(submission_id))
      return [
        500,
        `Traceback (most recent call last):\nValueError: Job with submission_id ${submission_id} already exists. Please use a different submission_id.`,
      ];
    this.onSubmit(this.addJob(submission_id, { ...job, status: "PENDING" }));
    return [200, JSON.stringify({ job_id: submission_id, submission_id })];
  }

  private ofJob(method: string, path: string): [number, string] {
    const id = idOf(path);
    const job = this.jobs.get(id);
    if (!job) return [404, `Job ${id} does not exist`];
    if (path.endsWith("/logs")) return [200, JSON.stringify({ logs: job.log })];
    if (path.endsWith("/stop")) {
      const runs = job.status === "RUNNING";
      if (runs) job.status = "STOPPED";
      return [200, JSON.stringify({ stopped: runs || job.status === "PENDING" })];
    }
    if (method === "DELETE") return [200, JSON.stringify({ deleted: this.jobs.delete(id) })];
    const { log: _, ...shown } = job;
    return [
      200,
      JSON.stringify({ submission_id: id, type: "SUBMISSION", job_id: null, start_time: 1, end_time: null, ...shown }),
    ];
  }
}

const NEW_JOB: FakeJob = {
  status: "RUNNING",
  log: "",
  entrypoint: "python main.py",
  metadata: {},
  runtime_env: {},
  message: null,
  error_type: null,
  driver_exit_code: null,
};

function idOf(path: string): string {
  return /^\/api\/jobs\/([^/]+)/.exec(path)?.[1] ?? "";
}

/** How long Ray is silent before it closes: it looks twice, a second apart. */
export const END_SILENCE_MS = 3_000;
/** How often a log that is being written is looked at. */
const BETWEEN_LOOKS_MS = 5;
const wait = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** Resolves once the client has read everything that was sent to it, or has gone. */
export function received(socket: WebSocket): Promise<void> {
  return new Promise((resolve) => {
    for (const event of ["pong", "close"]) socket.once(event, () => resolve());
    socket.ping();
  });
}

/** Ten lines each, as Ray sends them. */
export function messages(log: string): string[] {
  const lines = log.match(/[^\n]*\n|[^\n]+$/g) ?? [];
  return Array.from({ length: Math.ceil(lines.length / 10) }, (_, i) => lines.slice(i * 10, i * 10 + 10).join(""));
}
