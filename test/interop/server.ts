/** A server as a user starts it: a separate process on a free port. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export interface Server {
  readonly url: string;
  readonly errors: () => string;
  stop(): Promise<number | null>;
}

const CLI = fileURLToPath(new URL("../../dist/cli.js", import.meta.url));

/** @param args after `grpu serve tinker --port 0` */
export async function startServer(args: readonly string[]): Promise<Server> {
  const root = await mkdtemp(join(tmpdir(), "grpu-serve-"));
  const places = args.includes("--checkpoints") ? [] : ["--checkpoints", root];
  const child = spawn(process.execPath, [CLI, "serve", "tinker", "--port", "0", ...places, ...args]);
  let errors = "";
  const ended = new Promise<number | null>((resolve) => child.on("exit", resolve));
  const url = await new Promise<string>((resolve, reject) => {
    child.stderr.on("data", (data) => {
      errors += data;
      const found = /listening on (\S+),/.exec(errors);
      if (found) resolve(found[1]!);
    });
    void ended.then((code) => reject(new Error(`the server ended with ${code}: ${errors}`)));
  });
  return { url, errors: () => errors, stop: () => stop(child, { ended, root }) };
}

async function stop(
  child: ChildProcess,
  { ended, root }: { ended: Promise<number | null>; root: string },
): Promise<number | null> {
  child.kill("SIGINT");
  const code = await ended;
  await rm(root, { recursive: true, force: true });
  return code;
}
