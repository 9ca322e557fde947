/** Other systems, each in a process of its own that prints a JSON object a line. */
import { spawnSync } from "node:child_process";
import { delimiter } from "node:path";
import { fileURLToPath } from "node:url";

/** A peer is ended after so long; what it printed until then counts. */
export const PEER_SECONDS = 100;

export interface PeerLine {
  /** What was done, with its rate. */
  readonly what?: string;
  readonly tokens_per_s?: number;
  /** Of `what`, where it is not of tokens. */
  readonly rate?: number;
  readonly greedy?: readonly number[];
  /** Of a product: its first element. */
  readonly first?: number;
  readonly skipped?: string;
}

/** What a script of this folder's parent prints with the first Python (`PYTHON`, separated as in `PATH`) that has what it needs. */
export function linesOfPython(script: string, args: readonly string[]): PeerLine[] {
  let lines: PeerLine[] = [];
  for (const python of (process.env.PYTHON ?? "python3").split(delimiter)) {
    lines = linesWith(python, script, args);
    if (!lines[0]?.skipped) break;
  }
  return lines;
}

/** What a script in JavaScript prints; `PEER_MODULES` is the folder that its packages are installed in. */
export function linesOfNode(script: string, args: readonly string[]): PeerLine[] {
  return linesWith(process.execPath, script, args);
}

function linesWith(program: string, script: string, args: readonly string[]): PeerLine[] {
  const path = fileURLToPath(new URL(`../${script}`, import.meta.url));
  const { stdout, stderr, error, status } = spawnSync(program, [path, ...args], {
    encoding: "utf8",
    timeout: PEER_SECONDS * 1000,
    maxBuffer: 2 ** 26,
  });
  const lines = (stdout ?? "")
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line) as PeerLine);
  if (status === 0) return lines;
  const isLate = (error as NodeJS.ErrnoException | undefined)?.code === "ETIMEDOUT";
  const why = isLate ? `ended after ${PEER_SECONDS} s` : (error?.message ?? stderr.trim().split("\n").at(-1));
  return [...lines, { skipped: `${script}: ${why}` }];
}
