/** Starts a server to attack, and watches it from outside. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export type Kind = "tinker" | "keyed" | "view" | "gateway" | "openai" | "rewards" | "demo";

export interface Measured {
  /** The longest time that the event loop stood for the process's own work. */
  readonly stallMs: number;
  /** The longest delay of the event loop, whoever was the reason (`monitorEventLoopDelay`). */
  readonly delayMs: number;
  readonly rssBytes: number;
}

export interface Attacked {
  readonly url: string;
  readonly root: string;
  /** What the process went through since the last call. */
  measure(): Promise<Measured>;
  /** The exit status or signal once it has ended, else undefined. */
  ended(): string | undefined;
  kill(): Promise<void>;
  /** Kills it, and deletes its folder unless that was given. */
  close(): Promise<void>;
  /** All that it wrote to stderr. */
  errors(): string;
}

const TARGET = fileURLToPath(new URL("target.ts", import.meta.url));

/**
 * @param of.fileBlocks limits every file that it writes to as many KiB: what a full disk does to a write
 * @param of.sessionMs how long a session of a Tinker server lives without a sign of life
 */
export async function attack(
  kind: Kind,
  of: { root?: string; weightBytes?: number; fileBlocks?: number; sessionMs?: number } = {},
): Promise<Attacked> {
  const root = of.root ?? (await mkdtemp(join(tmpdir(), "grpu-attacked-")));
  const args = ["--import", "tsx", TARGET, kind, root, String(of.weightBytes ?? 100), String(of.sessionMs ?? "")];
  const limited = ["-c", `ulimit -f ${of.fileBlocks}; exec "$0" "$@"`, process.execPath, ...args];
  const stdio = ["ignore", "ignore", "pipe", "ipc"] as const;
  const child = of.fileBlocks
    ? spawn("bash", limited, { stdio: [...stdio] })
    : spawn(process.execPath, args, { stdio: [...stdio] });
  let errors = "";
  child.stderr?.on("data", (data) => {
    errors += data;
  });
  let end: string | undefined;
  const gone = new Promise<void>((resolve) =>
    child.on("exit", (code, signal) => {
      end = String(signal ?? code);
      resolve();
    }),
  );
  const { url } = (await Promise.race([
    next(child),
    gone.then(() => Promise.reject(new Error(`the target ended with ${end}: ${errors}`))),
  ])) as { url: string };
  const kill = async () => {
    child.kill("SIGKILL");
    await gone;
  };
  return {
    url,
    root,
    ended: () => end,
    errors: () => errors,
    kill,
    async measure() {
      const answer = next(child);
      child.send("measure");
      return (await answer) as Measured;
    },
    async close() {
      await kill();
      if (!of.root) await rm(root, { recursive: true, force: true });
    },
  };
}

function next(child: ChildProcess): Promise<unknown> {
  return new Promise((resolve) => child.once("message", resolve));
}

export interface RawAnswer {
  /** Of every answer on the connection, in order. */
  readonly statuses: readonly number[];
  readonly text: string;
  /** True when the server ended the connection. */
  readonly closed: boolean;
}

/** Writes pieces to a socket, `pauseMs` apart, and reads until the server ends it or nothing more comes. */
export function sendRaw(
  url: string,
  pieces: readonly (string | Uint8Array)[],
  { pauseMs = 0, quietMs = 400, mostMs = 20_000 }: { pauseMs?: number; quietMs?: number; mostMs?: number } = {},
): Promise<RawAnswer> {
  const { hostname, port } = new URL(url);
  return new Promise((resolve) => {
    const socket = connect(Number(port), hostname);
    const read: Buffer[] = [];
    let quiet: NodeJS.Timeout | undefined;
    const end = (closed: boolean) => {
      clearTimeout(quiet);
      clearTimeout(most);
      socket.destroy();
      const text = Buffer.concat(read).toString("latin1");
      const statuses = [...text.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status));
      resolve({ statuses, text, closed });
    };
    const most = setTimeout(() => end(false), mostMs);
    socket.on("data", (data) => {
      read.push(data);
      clearTimeout(quiet);
      quiet = setTimeout(() => end(false), quietMs);
    });
    socket.on("error", () => {});
    socket.on("close", () => end(true));
    void (async () => {
      for (const piece of pieces) {
        if (socket.destroyed) return;
        socket.write(piece);
        if (pauseMs > 0) await new Promise((wake) => setTimeout(wake, pauseMs));
      }
    })();
  });
}
